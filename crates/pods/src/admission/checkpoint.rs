//! `allocated_pods_state` and `actuated_pods_state`: resources per pod, as the Go kubelet keeps them.
//!
//! Promises: files that either agent reads; written to a temporary file, synced and renamed, by one
//! task, and only when the content changed; a file that cannot be read stops the start with a text
//! that says what to do.

use api::core::v1::{Container, Pod, ResourceRequirements};
use api::ids::PodUid;
use engine::pod::Actuated;
use ports::{OnExit, Tasks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// Name of the file with what was admitted.
pub(crate) const ALLOCATED: &str = "allocated_pods_state";
/// Name of the file with what was applied.
pub(crate) const ACTUATED: &str = "actuated_pods_state";

/// A state file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is there but cannot be read.
    #[error("cannot read checkpoint file {0:?}")]
    Unreadable(PathBuf, #[source] sys::fs::FsError),
    /// Its content or checksum is wrong.
    #[error(
        "could not restore state from checkpoint: {reason}, please drain this node and delete pod \
         resource information checkpoint file {path:?} before restarting Kubelet"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    data: String,
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    entries: BTreeMap<PodUid, Entry>,
}

/// Resources of one pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// By container name.
    #[serde(rename = "ContainerResources", default)]
    pub(crate) containers: BTreeMap<String, ResourceRequirements>,
    /// Of the pod itself.
    #[serde(rename = "PodLevelResources", default)]
    pub(crate) pod_level: Option<ResourceRequirements>,
}

impl Entry {
    /// What a pod's spec asks for.
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
            .map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
            .collect();
        Self { containers, pod_level: spec.resources.clone() }
    }

    /// The pod with these resources instead of its own; `None` if nothing differs.
    pub(crate) fn applied_to(&self, pod: &Pod) -> Option<Pod> {
        let mut changed = pod.clone();
        let spec = changed.spec.as_mut()?;
        let all = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        for container in all {
            if let Some(resources) = self.containers.get(&container.name)
                && container.resources.clone().unwrap_or_default() != *resources
            {
                container.resources = Some(resources.clone());
            }
        }
        if let (Some(own), Some(kept)) = (&mut spec.resources, &self.pod_level) {
            *own = kept.clone();
        }
        (changed.spec != pod.spec).then_some(changed)
    }
}

/// One state file. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ResourceStore {
    inner: Arc<Mutex<Content>>,
    /// Counts up with every change to be written.
    wanted: watch::Sender<u64>,
    written: watch::Sender<u64>,
}

impl ResourceStore {
    /// Reads the file, if there is one, and starts its writer.
    pub(crate) fn open(
        path: PathBuf,
        name: ports::TaskName,
        tasks: &Tasks,
    ) -> Result<Self, CheckpointError> {
        let content = read(&path)?;
        let store = Self {
            inner: Arc::new(Mutex::new(content)),
            wanted: watch::Sender::new(0),
            written: watch::Sender::new(0),
        };
        let writer = store.clone();
        let cancel = tasks.token();
        tasks.spawn(name, OnExit::Fine, async move { writer.write_loop(path, cancel).await });
        Ok(store)
    }

    /// What is stored for a pod.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<Entry> {
        self.lock().entries.get(uid).cloned()
    }

    /// The stored resources in the form the plan reads.
    pub(crate) fn of(&self, uid: &PodUid) -> Actuated {
        let entry = self.get(uid).unwrap_or_default();
        Actuated { containers: entry.containers, pod_level: entry.pod_level }
    }

    /// Stores all resources of a pod.
    pub(crate) fn record_pod(&self, uid: &PodUid, pod: &Pod) {
        self.change(|content| {
            let entry = Entry::of(pod);
            content.entries.insert(uid.clone(), entry.clone()).as_ref() != Some(&entry)
        });
    }

    /// Stores the resources of one container.
    pub(crate) fn record_container(&self, uid: &PodUid, container: &Container) {
        let resources = container.resources.clone().unwrap_or_default();
        self.change(|content| {
            let entry = content.entries.entry(uid.clone()).or_default();
            let old = entry.containers.insert(container.name.clone(), resources.clone());
            old.as_ref() != Some(&resources)
        });
    }

    /// Stores the resources of the pod itself.
    pub(crate) fn record_pod_level(&self, uid: &PodUid, pod: &Pod) {
        let resources = pod.spec.as_ref().and_then(|s| s.resources.clone());
        self.change(|content| {
            let entry = content.entries.entry(uid.clone()).or_default();
            let changed = entry.pod_level != resources;
            entry.pod_level = resources;
            changed
        });
    }

    /// Forgets pods; the file follows with the next change, as upstream has it.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.lock().entries.retain(|uid, _| keep(uid));
    }

    /// Waits until everything stored so far is on disk.
    pub(crate) async fn saved(&self) {
        let wanted = *self.wanted.borrow();
        // The writer ends only with everything.
        let _ = self.written.subscribe().wait_for(|written| *written >= wanted).await;
    }

    fn change(&self, change: impl FnOnce(&mut Content) -> bool) {
        if change(&mut self.lock()) {
            self.wanted.send_modify(|count| *count += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        match self.inner.lock() {
            Ok(content) => content,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    async fn write_loop(self, path: PathBuf, cancel: tokio_util::sync::CancellationToken) {
        let mut wanted = self.wanted.subscribe();
        loop {
            let turn = *wanted.borrow_and_update();
            if turn > *self.written.borrow() {
                let text = encode(&self.lock());
                let target = path.clone();
                let result =
                    sys::blocking::run(move || sys::fs::write_atomic(target, text, 0o600)).await;
                if let Ok(Err(error)) = result {
                    tracing::error!(err = %error.source, path = %path.display(), "cannot write checkpoint");
                }
                // A failed write is not repeated before the next change, but nobody waits for ever.
                self.written.send_replace(turn);
                continue;
            }
            tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                changed = wanted.changed() => if changed.is_err() { return }, // cancel-safe: a watch
            }
        }
    }
}

fn read(path: &Path) -> Result<Content, CheckpointError> {
    let text = match sys::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Ok(Content::default()),
        Err(error) => return Err(CheckpointError::Unreadable(path.to_owned(), error)),
    };
    let corrupt = |reason: String| CheckpointError::Corrupt { path: path.to_owned(), reason };
    let envelope: Envelope = serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()))?;
    if envelope.checksum != checksum(&envelope.data) {
        return Err(corrupt("checkpoint is corrupted".to_owned()));
    }
    serde_json::from_str(&envelope.data).map_err(|e| corrupt(e.to_string()))
}

fn encode(content: &Content) -> String {
    let data = serde_json::to_string(content).unwrap_or_default();
    let checksum = checksum(&data);
    serde_json::to_string(&Envelope { data, checksum }).unwrap_or_default()
}

fn checksum(data: &str) -> u64 {
    u64::from(units::hash::string_checksum(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("rubelet-checkpoint-{name}-{}", std::process::id()));
        sys::fs::create_dir_all(&dir, 0o755).unwrap();
        dir
    }

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"uid": "u", "name": "p"},
            "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"cpu": "100m"}}}
            ]}
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn what_was_stored_is_read_back_by_the_next_start() {
        let dir = folder("roundtrip");
        let tasks = Tasks::new();
        let store = ResourceStore::open(dir.join(ALLOCATED), "test", &tasks).unwrap();
        let uid = PodUid::from("u");
        store.record_pod(&uid, &pod());
        store.saved().await;
        let again = ResourceStore::open(dir.join(ALLOCATED), "test", &tasks).unwrap();
        assert_eq!(again.get(&uid), Some(Entry::of(&pod())));
        let text = sys::fs::read_to_string(dir.join(ALLOCATED)).unwrap();
        assert!(
            text.starts_with(r#"{"data":"{\"entries\":{\"u\":{\"ContainerResources\":{\"c\":"#),
            "{text}"
        );
        tasks.shutdown().await;
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[tokio::test]
    async fn a_damaged_file_stops_the_start_with_advice() {
        let dir = folder("damaged");
        sys::fs::write(dir.join("f"), r#"{"data":"{\"entries\":{}}","checksum":1}"#).unwrap();
        let error = ResourceStore::open(dir.join("f"), "test", &Tasks::new()).unwrap_err();
        assert!(error.to_string().contains("please drain this node and delete"), "{error}");
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[test]
    fn allocated_resources_replace_those_of_the_spec() {
        let entry = Entry::of(&pod());
        assert_eq!(entry.applied_to(&pod()), None);
        let mut resized = pod();
        let container = &mut resized.spec.as_mut().unwrap().containers[0];
        container.resources =
            serde_json::from_value(serde_json::json!({"requests": {"cpu": "9"}})).unwrap();
        assert_eq!(entry.applied_to(&resized).unwrap().spec, pod().spec);
    }
}
