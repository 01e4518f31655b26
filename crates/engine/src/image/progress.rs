//! Progress of a pull, from the content and ingests of containerd's content store.
//!
//! ```text
//!   manifests of the repository ─▶ the one with a running ingest ─▶ its parts: stored │ being ingested │ not begun
//! ```
//!
//! A manifest without a running ingest is not the one being pulled: it is another tag's, complete or with
//! layers that were discarded after unpacking.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Prefix of the labels that say where content came from; the registry follows.
const SOURCE: &str = "containerd.io/distribution.source.";
/// Prefix of the labels by which a manifest references its parts.
const PARTS: &str = "containerd.io/gc.ref.content";
/// Larger content is not a manifest.
pub const LARGEST_MANIFEST: i64 = 4 << 20;

/// A part of an image: a layer, or its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its digest.
    pub digest: String,
    /// Its size.
    pub bytes: u64,
}

/// Content that is being ingested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intake {
    /// The part's digest.
    pub digest: String,
    /// How much of it has arrived.
    pub bytes: u64,
    /// When the ingest began.
    pub since: Option<Timestamp>,
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullBytes {
    /// Bytes that have arrived, compressed.
    pub done: u64,
    /// The whole image.
    pub total: u64,
    /// Bytes per second of the running ingests.
    pub rate: Option<u64>,
}

impl PullBytes {
    /// Estimated time for the rest at this rate.
    pub fn left(&self) -> Option<Duration> {
        let rate = self.rate.filter(|rate| *rate > 0)?;
        Some(Duration::from_secs(self.total.saturating_sub(self.done).div_ceil(rate)))
    }
}

impl fmt::Display for PullBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", Shown(self.done), Shown(self.total))?;
        if let Some(rate) = self.rate {
            write!(f, ", {}/s", Shown(rate))?;
        }
        match self.left() {
            Some(left) => write!(f, ", {}s left", left.as_secs()),
            None => Ok(()),
        }
    }
}

/// A number of bytes in human-readable form.
struct Shown(u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 >= size {
                let tenths = self.0.saturating_mul(10) / size;
                return write!(f, "{}.{} {unit}", tenths / 10, tenths % 10);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Whether content with these labels is a manifest that came from the repository (`host[:port]/path`).
pub fn is_manifest_of(repository: &str, bytes: i64, labels: &BTreeMap<String, String>) -> bool {
    let Some((registry, path)) = repository.split_once('/') else { return false };
    // The store keeps registries without their ports.
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    let from = |source: &str| source == registry || source == host;
    let ours = labels.iter().any(|(key, paths)| {
        key.strip_prefix(SOURCE).is_some_and(from) && paths.split(',').any(|known| known == path)
    });
    ours && bytes <= LARGEST_MANIFEST && labels.keys().any(|key| key.starts_with(PARTS))
}

/// The parts that a manifest names; empty if it is an index, or of an unknown form.
pub fn parts(manifest: &[u8]) -> Vec<Part> {
    #[derive(Deserialize)]
    struct Entry {
        digest: String,
        size: u64,
    }
    #[derive(Deserialize)]
    struct Manifest {
        config: Entry,
        layers: Vec<Entry>,
    }
    let Ok(manifest) = serde_json::from_slice::<Manifest>(manifest) else { return Vec::new() };
    let all = manifest.layers.into_iter().chain([manifest.config]);
    all.map(|entry| Part { digest: entry.digest, bytes: entry.size }).collect()
}

/// The digest of the part that an ingest of this name is for (containerd: `MakeRefKey`).
pub fn taken_in(name: &str) -> Option<&str> {
    name.strip_prefix("layer-").or_else(|| name.strip_prefix("config-"))
}

/// The progress of the pull; `None` if none of the manifests has a running ingest.
pub fn progress(
    manifests: &[Vec<Part>],
    held: &BTreeMap<String, u64>,
    intakes: &[Intake],
    now: Timestamp,
) -> Option<PullBytes> {
    let coming = |part: &Part| intakes.iter().find(|intake| intake.digest == part.digest);
    let parts = manifests.iter().find(|parts| parts.iter().any(|part| coming(part).is_some()))?;
    let mut bytes = PullBytes { done: 0, total: 0, rate: None };
    let (mut taken, mut since) = (0_u64, None::<Timestamp>);
    let mut counted: Vec<&str> = Vec::new();
    for part in parts {
        // A layer may be listed twice but is downloaded once.
        if counted.contains(&part.digest.as_str()) {
            continue;
        }
        counted.push(&part.digest);
        bytes.total = bytes.total.saturating_add(part.bytes);
        let here = match (held.get(&part.digest), coming(part)) {
            (Some(_), _) => part.bytes,
            (None, Some(intake)) => {
                taken = taken.saturating_add(intake.bytes);
                since = [since, intake.since].into_iter().flatten().min();
                intake.bytes.min(part.bytes)
            }
            (None, None) => 0,
        };
        bytes.done = bytes.done.saturating_add(here);
    }
    let took = since.map(|since| now.duration_since(since).as_millis());
    bytes.rate = took
        .and_then(|millis| u64::try_from(millis).ok())
        .filter(|millis| *millis > 0)
        .map(|millis| taken.saturating_mul(1000) / millis);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(digest: &str, bytes: u64) -> Part {
        Part { digest: digest.to_owned(), bytes }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn parts_that_are_here_come_or_have_not_begun_are_summed_up() {
        let old = vec![part("gone", 1 << 40)];
        let pulled = vec![
            part("base", 100 << 20),
            part("app", 60 << 20),
            part("later", 40 << 20),
            part("base", 100 << 20),
        ];
        let held = BTreeMap::from([("base".to_owned(), 100 << 20)]);
        let intakes = [Intake { digest: "app".into(), bytes: 30 << 20, since: Some(at(10)) }];
        let seen = progress(&[old.clone(), pulled.clone()], &held, &intakes, at(20)).unwrap();
        assert_eq!(seen, PullBytes { done: 130 << 20, total: 200 << 20, rate: Some(3 << 20) });
        assert_eq!(seen.to_string(), "130.0 MiB of 200.0 MiB, 3.0 MiB/s, 24s left");
        let started = [Intake { digest: "app".into(), bytes: 0, since: None }];
        let seen = progress(&[old.clone(), pulled], &held, &started, at(20)).unwrap();
        assert_eq!(seen.to_string(), "100.0 MiB of 200.0 MiB");
        assert_eq!(progress(&[old], &held, &intakes, at(20)), None, "the pull of another image");
    }

    #[test]
    fn manifests_are_told_by_where_they_came_from_and_what_they_hold() {
        let labels = |source: &str, paths: &str, part: &str| {
            BTreeMap::from([
                (format!("containerd.io/distribution.source.{source}"), paths.to_owned()),
                (format!("containerd.io/{part}"), "sha256:1".to_owned()),
            ])
        };
        let ours = labels("registry.k8s.io", "pause,e2e/busybox", "gc.ref.content.l.0");
        assert!(is_manifest_of("registry.k8s.io/e2e/busybox", 900, &ours));
        assert!(!is_manifest_of("registry.k8s.io/busybox", 900, &ours));
        assert!(!is_manifest_of("example.com/e2e/busybox", 900, &ours));
        assert!(!is_manifest_of("registry.k8s.io/e2e/busybox", 64 << 20, &ours), "a layer");
        assert!(!is_manifest_of("busybox", 900, &ours));
        let layer = labels("registry.k8s.io", "pause", "uncompressed");
        assert!(!is_manifest_of("registry.k8s.io/pause", 900, &layer));
        let with_port = labels("127.0.0.1", "x", "gc.ref.content.config");
        assert!(is_manifest_of("127.0.0.1:5000/x", 900, &with_port));
    }

    #[test]
    fn a_manifest_names_its_parts_and_anything_else_names_none() {
        let manifest =
            br#"{"config": {"digest": "c", "size": 1}, "layers": [{"digest": "l", "size": 2}]}"#;
        assert_eq!(parts(manifest), [part("l", 2), part("c", 1)]);
        for odd in ["", "{}", "[]", r#"{"manifests": []}"#, r#"{"config": 1, "layers": 2}"#] {
            assert_eq!(parts(odd.as_bytes()), []);
        }
        assert_eq!(taken_in("layer-sha256:a"), Some("sha256:a"));
        assert_eq!(taken_in("config-sha256:a"), Some("sha256:a"));
        assert_eq!(taken_in("index-sha256:a"), None);
    }

    #[test]
    fn sizes_are_for_people() {
        let shown = |bytes| Shown(bytes).to_string();
        assert_eq!(
            [shown(0), shown(1023), shown(1536), shown(5 << 30)],
            ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
        );
        assert_eq!(shown(u64::MAX), "1717986918.3 GiB");
        let nothing = PullBytes { done: 5, total: 0, rate: Some(1) };
        assert_eq!(nothing.left(), Some(Duration::ZERO));
    }
}
