//! `allocated_pods_state` and `actuated_pods_state`: resources per pod, as the Go kubelet keeps them.
//!
//! Promises: files that either agent reads; written to a temporary file, synced and renamed, by one
//! task, and only when the content changed; a file that cannot be read stops the start with a text
//! that says what to do; what was stored before our end is on disk after it, and nobody waits for a
//! writer that has ended.
use api::core::v1::{Container, Pod};
use api::ids::PodUid;
use api::pod::PodExt;
use engine::allocation::{AllocationGates, AllocationState, PodAllocation};
use engine::pod::{Actuated, PodGates};
use ports::Tasks;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Name of the file with what was admitted.
pub(crate) const ALLOCATED: &str = "allocated_pods_state";
/// Name of the file with what was applied.
pub(crate) const ACTUATED: &str = "actuated_pods_state";

/// A state file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {reason}, please drain this node and delete pod \
     resource information checkpoint file {path:?} before restarting Kubelet"
)]
pub struct CheckpointError {
    /// The file.
    pub path: PathBuf,
    /// Why it cannot be read, or what is wrong with its content or checksum.
    pub reason: String,
}

/// Whether the file with what was admitted can be used; nothing is written.
pub fn check_allocated(root: &Path) -> Result<(), CheckpointError> {
    read(&root.join(ALLOCATED)).map(drop)
}

/// Whether the file with what was applied can be used; nothing is written.
pub fn check_actuated(root: &Path) -> Result<(), CheckpointError> {
    read(&root.join(ACTUATED)).map(drop)
}

/// One state file. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ResourceStore {
    inner: Arc<Mutex<AllocationState>>,
    gates: AllocationGates,
    /// Counts up with every change to be written.
    wanted: watch::Sender<u64>,
    /// How far the writer is. Its other end is the writer's alone and goes with it.
    written: watch::Receiver<u64>,
}

impl ResourceStore {
    /// Reads the file, if there is one, and starts its writer.
    pub(crate) fn open(
        path: PathBuf,
        name: ports::TaskName,
        gates: PodGates,
        tasks: &Tasks,
    ) -> Result<Self, CheckpointError> {
        let state = read(&path)?;
        let (progress, written) = watch::channel(0);
        let store = Self {
            inner: Arc::new(Mutex::new(state)),
            gates: AllocationGates {
                init_containers: gates.resize_init_containers,
                pod_level: gates.resize_pod_level,
            },
            wanted: watch::Sender::new(0),
            written,
        };
        let writer = store.clone();
        let cancel = tasks.token();
        tasks.spawn_anew(name, move || {
            writer.clone().write_loop(path.clone(), progress.clone(), cancel.clone())
        });
        Ok(store)
    }

    /// What is stored for a pod.
    fn get(&self, uid: &PodUid) -> Option<PodAllocation> {
        self.lock().get(uid).cloned()
    }

    /// The pod with the stored resources instead of its own; `None` if nothing differs or is stored.
    pub(crate) fn applied_to(&self, pod: &Pod) -> Option<Pod> {
        self.lock().get(&pod.uid())?.apply(pod, self.gates)
    }

    /// The stored resources in the form the plan reads.
    pub(crate) fn of(&self, uid: &PodUid) -> Actuated {
        self.get(uid).as_ref().map(Actuated::from).unwrap_or_default()
    }

    /// Stores all resources of a pod.
    pub(crate) fn record_pod(&self, uid: &PodUid, pod: &Pod) {
        let allocation = PodAllocation::of(pod, self.gates);
        self.change(|state| state.set(uid, allocation));
    }

    /// Stores the resources of one container.
    pub(crate) fn record_container(&self, uid: &PodUid, container: &Container) {
        let resources = container.resources.clone().unwrap_or_default();
        self.change(|state| state.set_container(uid, &container.name, resources));
    }

    /// Stores the resources of the pod itself.
    pub(crate) fn record_pod_level(&self, uid: &PodUid, pod: &Pod) {
        let resources = pod.spec.as_ref().and_then(|s| s.resources.clone());
        let resources = resources.filter(|_| self.gates.pod_level);
        self.change(|state| state.set_pod_level(uid, resources));
    }

    /// Forgets pods; the file follows with the next change, as upstream has it.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.lock().retain(keep);
    }

    /// Waits until everything stored so far is on disk, or will not be because everything ends.
    pub(crate) async fn saved(&self) {
        let wanted = *self.wanted.borrow();
        // An error means that the writer has ended, and with it everything.
        let _ = self.written.clone().wait_for(|written| *written >= wanted).await;
    }

    fn change(&self, change: impl FnOnce(&mut AllocationState) -> bool) {
        if change(&mut self.lock()) {
            self.wanted.send_modify(|count| *count += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, AllocationState> {
        match self.inner.lock() {
            Ok(state) => state,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    async fn write_loop(
        self,
        path: PathBuf,
        written: watch::Sender<u64>,
        cancel: CancellationToken,
    ) {
        let mut wanted = self.wanted.subscribe();
        loop {
            let version = *wanted.borrow_and_update();
            if version > *written.borrow() {
                let encoded = self.lock().to_checkpoint();
                match encoded {
                    Ok(text) => write(&path, text).await,
                    Err(error) => tracing::error!(err = %error, "cannot encode checkpoint"),
                }
                // A failed write is not repeated before the next change, but nobody waits for ever.
                written.send_replace(version);
                continue;
            }
            if cancel.is_cancelled() {
                return;
            }
            tokio::select! {
                // Cancel-safe: a token. What was stored before is written first.
                () = cancel.cancelled() => {}
                changed = wanted.changed() => if changed.is_err() { return }, // cancel-safe: a watch
            }
        }
    }
}

async fn write(path: &Path, text: String) {
    let target = path.to_owned();
    let result = sys::blocking::run(move || sys::fs::write_atomic(target, text, 0o600)).await;
    if let Ok(Err(error)) = result {
        tracing::error!(err = %error.source, path = %path.display(), "cannot write checkpoint");
    }
}

fn read(path: &Path) -> Result<AllocationState, CheckpointError> {
    let unusable = |reason| CheckpointError { path: path.to_owned(), reason };
    match sys::fs::read(path) {
        Ok(bytes) => match units::gojson::syntax_fault(&bytes) {
            Some(fault) => Err(unusable(fault)),
            None => AllocationState::from_checkpoint(&units::gojson::text(&bytes))
                .map_err(|error| unusable(error.to_string())),
        },
        Err(error) if error.is_not_found() => Ok(AllocationState::default()),
        Err(error) => Err(unusable(error.in_go())),
    }
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
        let store =
            ResourceStore::open(dir.join(ALLOCATED), "test", PodGates::default(), &tasks).unwrap();
        let uid = PodUid::from("u");
        store.record_pod(&uid, &pod());
        store.saved().await;
        let again =
            ResourceStore::open(dir.join(ALLOCATED), "test", PodGates::default(), &tasks).unwrap();
        let expected = PodAllocation::of(&pod(), AllocationGates::default());
        assert_eq!(again.get(&uid), Some(expected));
        let text = sys::fs::read_to_string(dir.join(ALLOCATED)).unwrap();
        assert!(
            text.starts_with(r#"{"data":"{\"entries\":{\"u\":{\"ContainerResources\":{\"c\":"#),
            "{text}"
        );
        tasks.shutdown().await;
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_told_in_upstreams_words() {
        let dir = folder("unread");
        sys::fs::create_dir_all(dir.join(ALLOCATED), 0o755).unwrap();
        sys::fs::write(dir.join(ACTUATED), [0xff]).unwrap();
        let path = dir.join(ALLOCATED);
        let want = format!(
            "could not restore state from checkpoint: read {}: is a directory, please drain this ",
            path.display()
        );
        let fault = check_allocated(&dir).unwrap_err().to_string();
        assert!(fault.starts_with(&want), "{fault}");
        let fault = check_actuated(&dir).unwrap_err().to_string();
        assert!(
            fault.contains(": invalid character 'ÿ' looking for beginning of value, "),
            "{fault}"
        );
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn our_end_writes_what_was_stored_before_it_and_keeps_nobody_waiting() {
        let dir = folder("end");
        let tasks = Tasks::new();
        let store =
            ResourceStore::open(dir.join(ALLOCATED), "test", PodGates::default(), &tasks).unwrap();
        store.record_pod(&PodUid::from("before"), &pod());
        tasks.shutdown().await;
        let text = sys::fs::read_to_string(dir.join(ALLOCATED)).unwrap();
        assert!(text.contains("before"), "{text}");
        store.record_pod(&PodUid::from("after"), &pod());
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), store.saved()).await;
        assert!(waited.is_ok(), "the writer has ended");
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[tokio::test]
    async fn a_damaged_file_stops_the_start_with_advice() {
        let dir = folder("damaged");
        sys::fs::write(dir.join("f"), r#"{"data":"{\"entries\":{}}","checksum":1}"#).unwrap();
        let error = ResourceStore::open(dir.join("f"), "test", PodGates::default(), &Tasks::new())
            .unwrap_err();
        assert!(error.to_string().contains("please drain this node and delete"), "{error}");
        sys::fs::write(dir.join(ALLOCATED), "").unwrap();
        let error = check_allocated(&dir).unwrap_err().to_string();
        let want = "could not restore state from checkpoint: unexpected end of JSON input, please";
        assert!(error.starts_with(want), "{error}");
        assert!(check_actuated(&dir).is_ok(), "it is not there");
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[tokio::test]
    async fn a_file_without_pods_is_read_as_the_go_kubelet_writes_it() {
        let dir = folder("empty");
        let text = AllocationState::default().to_checkpoint().unwrap();
        assert!(text.starts_with(r#"{"data":"{}","checksum":"#), "{text}");
        sys::fs::write(dir.join("f"), text).unwrap();
        let tasks = Tasks::new();
        let store =
            ResourceStore::open(dir.join("f"), "test", PodGates::default(), &tasks).unwrap();
        assert_eq!(store.get(&PodUid::from("u")), None);
        tasks.shutdown().await;
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }

    #[tokio::test]
    async fn allocated_resources_replace_those_of_the_spec() {
        let dir = folder("replace");
        let tasks = Tasks::new();
        let store =
            ResourceStore::open(dir.join("f"), "test", PodGates::default(), &tasks).unwrap();
        store.record_pod(&PodUid::from("u"), &pod());
        assert_eq!(store.applied_to(&pod()), None);
        let amount = || serde_json::from_value(serde_json::json!({"requests": {"cpu": "9"}}));
        let mut resized = pod();
        resized.spec.as_mut().unwrap().containers[0].resources = amount().unwrap();
        assert_eq!(store.applied_to(&resized).unwrap().spec, pod().spec);
        let mut grown = pod();
        grown.spec.as_mut().unwrap().resources = amount().unwrap();
        assert_eq!(store.applied_to(&grown).unwrap().spec, pod().spec, "it had none of its own");
        tasks.shutdown().await;
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }
}
