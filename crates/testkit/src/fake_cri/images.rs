//! The images of the fake runtime and what pulls do.

use std::collections::BTreeMap;
use std::time::Duration;

use cri::Code;
use proto::cri_v1::{Image, ImageSpec, Int64Value};
use units::hash::fnv1a_64;

const DEFAULT_SIZE_BYTES: u64 = 1_000_000;

/// What a pull of an image does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    /// How long it takes.
    pub takes: Duration,
    /// The error it ends with, if any.
    pub error: Option<(Code, String)>,
    /// The image's size.
    pub size_bytes: u64,
    /// The user the image asks for.
    pub uid: Option<i64>,
    /// The user the image asks for, by name.
    pub username: String,
}

impl Default for Pull {
    fn default() -> Self {
        Self {
            takes: Duration::ZERO,
            error: None,
            size_bytes: DEFAULT_SIZE_BYTES,
            uid: None,
            username: String::new(),
        }
    }
}

impl Pull {
    /// A pull that fails.
    pub fn fails(code: Code, text: &str) -> Self {
        Self { error: Some((code, text.to_owned())), ..Self::default() }
    }

    /// A pull that takes a while.
    pub fn takes(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Images {
    by_id: BTreeMap<String, Image>,
    pulls: BTreeMap<String, Pull>,
}

impl Images {
    pub(super) fn on_pull(&mut self, image: &str, pull: Pull) {
        self.pulls.insert(normalise(image), pull);
    }

    pub(super) fn pull_of(&self, image: &str) -> Pull {
        self.pulls.get(&normalise(image)).cloned().unwrap_or_default()
    }

    /// Puts an image in place as its pull would; gives its id.
    pub(super) fn add(&mut self, image: &str) -> String {
        let reference = normalise(image);
        let pull = self.pull_of(image);
        let hash = fnv1a_64(reference.as_bytes());
        let id = format!("sha256:{hash:016x}{:048x}", 0xf00d_u64);
        let repository = repository_of(&reference);
        let digest = format!("{repository}@sha256:{hash:016x}{:048x}", 0xd16e57_u64);
        let tagged = !reference.contains('@');
        let image = Image {
            id: id.clone(),
            repo_tags: if tagged { vec![reference.clone()] } else { Vec::new() },
            repo_digests: vec![if tagged { digest } else { reference }],
            size: pull.size_bytes,
            uid: pull.uid.map(|value| Int64Value { value }),
            username: pull.username,
            spec: None,
            pinned: false,
        };
        self.by_id.insert(id.clone(), image);
        id
    }

    pub(super) fn find(&self, reference: &str) -> Option<&Image> {
        let normal = normalise(reference);
        self.by_id.get(reference).or_else(|| {
            self.by_id.values().find(|image| {
                image.repo_tags.contains(&normal) || image.repo_digests.contains(&normal)
            })
        })
    }

    pub(super) fn remove(&mut self, reference: &str) {
        if let Some(id) = self.find(reference).map(|image| image.id.clone()) {
            self.by_id.remove(&id);
        }
    }

    pub(super) fn list(&self, wanted: Option<&ImageSpec>) -> Vec<Image> {
        match wanted.filter(|spec| !spec.image.is_empty()) {
            Some(spec) => self.find(&spec.image).cloned().into_iter().collect(),
            None => self.by_id.values().cloned().collect(),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.by_id.values().flat_map(|image| image.repo_tags.clone()).collect()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.by_id.values().map(|image| image.size).sum()
    }
}

/// A reference with registry, path and tag spelled out.
fn normalise(image: &str) -> String {
    let first = image.split('/').next().unwrap_or(image);
    let has_host = image.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let full = match (has_host, image.contains('/')) {
        (true, _) => image.to_owned(),
        (false, true) => format!("docker.io/{image}"),
        (false, false) => format!("docker.io/library/{image}"),
    };
    let last = full.rsplit('/').next().unwrap_or(&full);
    if last.contains([':', '@']) { full } else { format!("{full}:latest") }
}

fn repository_of(reference: &str) -> &str {
    let slash = reference.rfind('/').unwrap_or(0);
    match reference.get(slash..).and_then(|last| last.find([':', '@'])) {
        Some(end) => reference.get(..slash + end).unwrap_or(reference),
        None => reference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_spelled_out() {
        for (image, want) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("a/b:1", "docker.io/a/b:1"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost/x", "localhost/x:latest"),
            ("host:5000/x", "host:5000/x:latest"),
        ] {
            assert_eq!(normalise(image), want);
        }
        assert_eq!(repository_of("host:5000/x:1"), "host:5000/x");
    }

    #[test]
    fn an_image_is_found_by_each_of_its_names() {
        let mut images = Images::default();
        let id = images.add("busybox");
        let digest = images.find(&id).unwrap().repo_digests.first().unwrap().clone();
        for name in ["busybox", "busybox:latest", "docker.io/library/busybox", &id, &digest] {
            assert!(images.find(name).is_some(), "{name}");
        }
        images.remove("busybox");
        assert!(images.find(&id).is_none());
    }
}
