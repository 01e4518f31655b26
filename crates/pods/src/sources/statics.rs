//! The identity of static pods: who they are on this node, and who they were before us.
//!
//! Promises: the same manifest in the same place is the same pod across our restarts and releases; a
//! static pod that another agent already runs keeps its UID as long as its manifest did not change, so
//! that a takeover restarts nothing.

use crate::view::ListedPod;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::static_pod::{self, StaticOrigin, StaticPodError, StaticSettings};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a manifest was read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// A file.
    File {
        /// Its path.
        path: &'a Path,
        /// When it was last written.
        modified: Option<Timestamp>,
    },
    /// A URL.
    Url(&'a str),
    /// A URL with a whole list of pods.
    UrlList(&'a str),
}

/// Makes pods of manifests.
#[derive(Debug)]
pub(crate) struct StaticPods {
    settings: StaticSettings,
    /// What ran when we started.
    running: Arc<BTreeMap<PodUid, ListedPod>>,
    /// UIDs taken over, by the UID that we would have given.
    adopted: BTreeMap<String, String>,
    store: PathBuf,
}

impl StaticPods {
    pub(crate) fn new(
        settings: StaticSettings,
        running: Arc<BTreeMap<PodUid, ListedPod>>,
        store: PathBuf,
    ) -> Self {
        let adopted = sys::fs::read(&store)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { settings, running, adopted, store }
    }

    /// The pod that a manifest means on this node.
    pub(crate) fn prepare(&mut self, pod: Pod, origin: Origin<'_>) -> Result<Pod, StaticPodError> {
        let given = pod.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty());
        let mut pod = match origin {
            Origin::File { path, .. } => {
                let path = path.to_string_lossy();
                static_pod::prepare(pod, &StaticOrigin::File(&path), &self.settings)?
            }
            Origin::Url(url) => static_pod::prepare(pod, &StaticOrigin::Url(url), &self.settings)?,
            Origin::UrlList(url) => {
                static_pod::prepare(pod, &StaticOrigin::UrlList(url), &self.settings)?
            }
        };
        if !given && let Some(uid) = self.known_as(&pod, origin) {
            static_pod::set_uid(&mut pod, &uid);
        }
        Ok(pod)
    }

    /// The UID under which the pod already runs here, if it is the same pod.
    fn known_as(&mut self, pod: &Pod, origin: Origin<'_>) -> Option<String> {
        let own = pod.metadata.uid.clone()?;
        if let Some(adopted) = self.adopted.get(&own) {
            return Some(adopted.clone());
        }
        let Origin::File { modified: Some(modified), .. } = origin else { return None };
        if self.running.contains_key(own.as_str()) {
            return None;
        }
        let found = self.running.iter().find(|(_, running)| is_same(pod, running, modified))?;
        let uid = found.0.to_string();
        tracing::info!(
            pod = %pod.key(), podUID = %uid,
            "taking over a running static pod"
        );
        self.adopted.insert(own, uid.clone());
        self.keep();
        Some(uid)
    }

    fn keep(&self) {
        let Ok(bytes) = serde_json::to_vec(&self.adopted) else { return };
        let result = match self.store.parent() {
            Some(folder) => sys::fs::create_dir_all(folder, 0o700),
            None => Ok(()),
        };
        let result = result.and_then(|()| sys::fs::write_atomic(&self.store, bytes, 0o600));
        if let Err(error) = result {
            tracing::warn!(err = %error.source, "cannot keep the UIDs of adopted static pods");
        }
    }
}

/// A running pod is this manifest's if it has its name, came from a file that was not written since the
/// other agent saw it, and all its containers have the definition of the manifest.
fn is_same(pod: &Pod, running: &ListedPod, modified: Timestamp) -> bool {
    let seen = running
        .annotations
        .get(api::pod::SEEN_ANNOTATION)
        .and_then(|seen| seen.parse::<Timestamp>().ok());
    let from_file =
        running.annotations.get(api::pod::SOURCE_ANNOTATION).is_some_and(|s| s == "file");
    let named = pod.metadata.name.as_deref() == Some(running.name.as_str())
        && pod.metadata.namespace.as_deref() == Some(running.namespace.as_str());
    let Some(spec) = pod.spec.as_ref() else { return false };
    let hash_of = |name: &str| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .find(|c| c.name == name)
            .map(|c| format!("{:x}", engine::pod::container_hash(c)))
    };
    let same_containers = !running.hashes.is_empty()
        && running.hashes.iter().all(|(name, hash)| hash_of(name).as_ref() == Some(hash));
    running.alive
        && from_file
        && named
        && seen.is_some_and(|seen| modified <= seen)
        && same_containers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "etcd-n", "namespace": "default", "uid": "ours"},
            "spec": {"containers": [{"name": "etcd", "image": "etcd:1"}]}
        }))
        .unwrap()
    }

    fn running() -> ListedPod {
        let hash = format!("{:x}", engine::pod::container_hash(&pod().spec.unwrap().containers[0]));
        ListedPod {
            name: "etcd-n".into(),
            namespace: "default".into(),
            alive: true,
            annotations: [
                (api::pod::SEEN_ANNOTATION.into(), "2026-01-01T00:00:10.000000000Z".into()),
                (api::pod::SOURCE_ANNOTATION.into(), "file".into()),
            ]
            .into(),
            hashes: [("etcd".into(), hash)].into(),
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_unchanged_manifest_is_the_pod_that_runs() {
        assert!(is_same(&pod(), &running(), at("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn a_manifest_written_after_it_was_seen_is_another_pod() {
        assert!(!is_same(&pod(), &running(), at("2026-01-01T00:00:11Z")));
    }

    #[test]
    fn another_image_is_another_pod() {
        let mut changed = pod();
        changed.spec.as_mut().unwrap().containers[0].image = Some("etcd:2".into());
        assert!(!is_same(&changed, &running(), at("2026-01-01T00:00:00Z")));
    }
}
