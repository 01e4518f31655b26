//! Pull records on disk.
//!
//! `<root>/image_manager/pulling/sha256-…` is a pull that was begun, `…/pulled/sha256-…` an image that
//! was pulled. Blocking: callers use the blocking pool. One lock over all files: they are tiny and
//! a pull outweighs them by far.

use engine::image::record::{
    PullCredentials, PullIntent, PulledRecord, RecordError, file_name, is_record_file,
};
use jiff::Timestamp;
use proto::cri_v1::Image;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use sys::fs::{self, FsError};

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordFault {
    /// The file.
    #[error("access record")]
    File(#[from] FsError),
    /// Its content.
    #[error("read record")]
    Content(#[from] RecordError),
    /// An earlier panic left the counters in doubt.
    #[error("record counters are poisoned")]
    Poisoned,
}

/// How many intents and records upstream would keep in memory. We read files when they are needed, and only say
/// how full that memory would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    intents: usize,
    pulled: usize,
}

impl Capacity {
    /// On a node for this many pods (upstream: `NewCachedPullRecordsAccessor`).
    pub(super) fn of_node(max_pods: u32, max_parallel_pulls: Option<usize>) -> Self {
        let pods = usize::try_from(max_pods).unwrap_or(usize::MAX);
        let intents = pods.max(max_parallel_pulls.unwrap_or(0)).saturating_mul(2);
        Self { intents: intents.clamp(1, 1024), pulled: pods.saturating_mul(5).clamp(1, 2000) }
    }
}

/// How many files there are, and how much of [`Capacity`] they would take in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) intents: usize,
    pub(super) pulled: usize,
    pub(super) intents_percent: usize,
    pub(super) pulled_percent: usize,
}

/// The records' folders.
#[derive(Debug)]
pub(super) struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    capacity: Capacity,
    /// Pulls in flight per image.
    running: Mutex<BTreeMap<String, u32>>,
}

impl Records {
    /// Makes the folders and rewrites files of the older version.
    pub(super) fn open(kubelet_root: &Path, capacity: Capacity) -> Result<Self, FsError> {
        let folder = |name| kubelet_root.join("image_manager").join(name);
        let records = Self {
            pulling: folder("pulling"),
            pulled: folder("pulled"),
            capacity,
            running: Mutex::default(),
        };
        fs::create_dir_all(&records.pulling, 0o700)?;
        fs::create_dir_all(&records.pulled, 0o700)?;
        for (path, bytes) in files(&records.pulling) {
            let encoded = PullIntent::decode(&bytes)
                .and_then(|r| (!r.is_current()).then(|| r.encode()).transpose());
            rewrite(&path, encoded);
        }
        for (path, bytes) in files(&records.pulled) {
            let encoded = PulledRecord::decode(&bytes)
                .and_then(|r| (!r.is_current()).then(|| r.encode()).transpose());
            rewrite(&path, encoded);
        }
        Ok(records)
    }

    /// Turns intents of an earlier run into records when the runtime has their image now.
    pub(super) fn adopt(&self, images: &[Image], now: Timestamp) {
        let intents: BTreeSet<String> = files(&self.pulling)
            .into_iter()
            .filter_map(|(_, bytes)| PullIntent::decode(&bytes).ok())
            .map(|intent| intent.image)
            .collect();
        for image in images {
            for name in image.repo_digests.iter().chain(&image.repo_tags) {
                if intents.contains(name) && self.merge(name, &image.id, None, now).is_ok() {
                    self.remove_intent(name);
                }
            }
        }
    }

    /// A pull begins.
    pub(super) fn begin(&self, image: &str) -> Result<(), RecordFault> {
        let mut running = self.running.lock().map_err(|_| RecordFault::Poisoned)?;
        let bytes = PullIntent::new(image).encode()?;
        write(&self.pulling, image, bytes)?;
        *running.entry(image.into()).or_default() += 1;
        Ok(())
    }

    /// A pull ended; the last one of an image removes its intent.
    pub(super) fn end(&self, image: &str) {
        let Ok(mut running) = self.running.lock() else { return };
        match running.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                if self.remove_intent(image) {
                    running.remove(image);
                }
            }
        }
    }

    /// Whether a pull of the image was begun and its end is not known.
    pub(super) fn has_intent(&self, image: &str) -> Result<bool, RecordFault> {
        let running = self.running.lock().map_err(|_| RecordFault::Poisoned)?;
        if running.get(image).is_some_and(|count| *count > 0) {
            return Ok(true);
        }
        match fs::read(self.pulling.join(file_name(image))) {
            Ok(bytes) => Ok(PullIntent::decode(&bytes)?.image == image),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The record of an image.
    pub(super) fn pulled(&self, image_ref: &str) -> Result<Option<PulledRecord>, RecordFault> {
        match fs::read(self.pulled.join(file_name(image_ref))) {
            Ok(bytes) => {
                Ok(Some(PulledRecord::decode(&bytes)?).filter(|r| r.image_ref == image_ref))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Adds credentials to the record of an image; `None` only makes sure that there is one.
    pub(super) fn merge(
        &self,
        image: &str,
        image_ref: &str,
        credentials: Option<&PullCredentials>,
        now: Timestamp,
    ) -> Result<(), RecordFault> {
        let _one_writer = self.running.lock().map_err(|_| RecordFault::Poisoned)?;
        // A record that cannot be read is written anew.
        let existing = self.pulled(image_ref).ok().flatten();
        let merged = PulledRecord::with(existing.as_ref(), image, image_ref, credentials, now);
        if let Some(record) = merged {
            write(&self.pulled, image_ref, record.encode()?)?;
        }
        Ok(())
    }

    /// Removes records of images that are gone, unless they changed since `before`.
    pub(super) fn prune(&self, present: &BTreeSet<String>, before: Timestamp) {
        let Ok(_one_writer) = self.running.lock() else { return };
        for (path, bytes) in files(&self.pulled) {
            let Ok(record) = PulledRecord::decode(&bytes) else { continue };
            if record.last_updated_time < before
                && !present.contains(&record.image_ref)
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(err = %telemetry::Chain(&error), "image record stays");
            }
        }
    }

    /// How many intents and records there are.
    pub(super) fn counts(&self) -> Counts {
        let count = |folder: &Path| {
            let names = fs::list_dir(folder).unwrap_or_default();
            names.iter().filter(|n| is_record_file(n)).count()
        };
        let (intents, pulled) = (count(&self.pulling), count(&self.pulled));
        let percent = |count: usize, of: usize| count.min(of).saturating_mul(100) / of.max(1);
        Counts {
            intents,
            pulled,
            intents_percent: percent(intents, self.capacity.intents),
            pulled_percent: percent(pulled, self.capacity.pulled),
        }
    }

    fn remove_intent(&self, image: &str) -> bool {
        let removed = fs::remove_file(self.pulling.join(file_name(image)));
        if let Err(error) = &removed {
            tracing::warn!(err = %telemetry::Chain(error), image, "image pull intent stays");
        }
        removed.is_ok()
    }
}

/// Record files of a folder with their content; unreadable ones are left out.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let names = fs::list_dir(folder).unwrap_or_default();
    let paths = names.iter().filter(|n| is_record_file(n)).map(|n| folder.join(n));
    paths.filter_map(|path| fs::read(&path).ok().map(|bytes| (path, bytes))).collect()
}

/// Writes a record, also after somebody removed the folders: no image could be pulled any more.
fn write(folder: &Path, of: &str, bytes: Vec<u8>) -> Result<(), FsError> {
    fs::create_dir_all(folder, 0o700)?;
    fs::write_atomic(folder.join(file_name(of)), bytes, 0o600)
}

fn rewrite(path: &Path, encoded: Result<Option<Vec<u8>>, RecordError>) {
    let outcome = match encoded {
        Ok(None) => return,
        Ok(Some(bytes)) => fs::write_atomic(path, bytes, 0o600).map_err(RecordFault::from),
        Err(e) => Err(e.into()),
    };
    if let Err(error) = outcome {
        let path = path.display();
        tracing::warn!(err = %telemetry::Chain(&error), %path, "image record is not of this version");
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests {
    use super::*;
    use engine::image::keyring::{Coordinates, Credential, CredentialSource};

    fn open(name: &str) -> (Records, PathBuf) {
        let root = std::env::temp_dir().join(format!("rubelet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        (reopen(&root), root)
    }

    fn reopen(root: &Path) -> Records {
        Records::open(root, Capacity::of_node(1, None)).unwrap()
    }

    fn counted(records: &Records) -> (usize, usize) {
        let counts = records.counts();
        (counts.intents, counts.pulled)
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    #[test]
    fn an_intent_lives_until_the_last_pull_of_its_image_ended() {
        let (records, root) = open("intents");
        records.begin("r.io/a:1").unwrap();
        records.begin("r.io/a:1").unwrap();
        records.end("r.io/a:1");
        assert!(records.has_intent("r.io/a:1").unwrap());
        // A crash: a new process finds the file.
        assert!(reopen(&root).has_intent("r.io/a:1").unwrap());
        records.end("r.io/a:1");
        assert!(!records.has_intent("r.io/a:1").unwrap());
        assert_eq!(counted(&records), (0, 0));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_upstream_would_keep_in_memory_is_told_in_percent() {
        let (records, root) = open("percent");
        records.begin("r.io/a:1").unwrap();
        for id in ["sha256:1", "sha256:2"] {
            records.merge("r.io/a", id, None, now()).unwrap();
        }
        let counts = records.counts();
        assert_eq!((counts.intents_percent, counts.pulled_percent), (50, 40));
        std::fs::remove_dir_all(root).unwrap();
        let usual = Capacity { intents: 220, pulled: 550 };
        assert_eq!(Capacity::of_node(110, Some(4)), usual);
        let most = Capacity { intents: 1024, pulled: 2000 };
        assert_eq!(Capacity::of_node(500, Some(600)), most);
        assert_eq!(Capacity::of_node(0, None), Capacity { intents: 1, pulled: 1 });
    }

    #[test]
    fn removed_folders_come_back_with_the_next_record() {
        let (records, root) = open("removed");
        std::fs::remove_dir_all(&root).unwrap();
        records.begin("r.io/a:1").unwrap();
        records.merge("r.io/a:1", "sha256:1", None, now()).unwrap();
        assert_eq!(counted(&records), (1, 1));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_pull_cut_off_by_a_crash_must_be_proven_again() {
        let (records, root) = open("adopt");
        records.begin("r.io/a:1").unwrap();
        let again = reopen(&root);
        let image =
            Image { id: "sha256:1".into(), repo_tags: vec!["r.io/a:1".into()], ..Image::default() };
        again.adopt(&[image], now());
        assert!(!again.has_intent("r.io/a:1").unwrap());
        let record = again.pulled("sha256:1").unwrap().unwrap();
        assert!(record.credential_mapping.is_empty());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn records_of_gone_images_are_pruned_unless_fresh() {
        let (records, root) = open("prune");
        let credential = Credential {
            username: String::new(),
            password: String::new(),
            hash: "h".into(),
            source: Some(CredentialSource::Secret(Coordinates {
                namespace: "ns".into(),
                name: "s".into(),
                uid: "u".into(),
            })),
        };
        let used = PullCredentials::of_pull(Some(&credential));
        for id in ["sha256:1", "sha256:2"] {
            records.merge("r.io/a", id, Some(&used), now()).unwrap();
        }
        records.prune(&BTreeSet::new(), now());
        assert_eq!(counted(&records), (0, 2), "not older than the pass");
        let later = now() + jiff::SignedDuration::from_secs(1);
        records.prune(&["sha256:2".to_string()].into(), later);
        assert_eq!(counted(&records), (0, 1));
        assert!(records.pulled("sha256:2").unwrap().is_some());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn files_of_the_older_version_are_rewritten_and_broken_ones_force_proof() {
        let (records, root) = open("migrate");
        let path = root.join("image_manager/pulling").join(file_name("a"));
        let old = "{\"kind\":\"ImagePullIntent\",\
                   \"apiVersion\":\"kubelet.config.k8s.io/v1alpha1\",\"image\":\"a\"}";
        std::fs::write(&path, old).unwrap();
        std::fs::write(root.join("image_manager/pulled").join(file_name("x")), "{").unwrap();
        let again = reopen(&root);
        assert!(std::fs::read_to_string(&path).unwrap().contains("v1beta1"));
        assert!(again.has_intent("a").unwrap());
        assert!(records.pulled("x").is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
