//! Probe results and counters, in memory and on disk (`rubelet/probes.json`), so that our restart is
//! not seen by anybody.
//!
//! Promises: losing the file only means that results are found out anew; a damaged one is ignored; it
//! is written at most once a second and once more at our end.

use super::ProbeKey;
use api::core::v1::PodStatus;
use api::ids::ContainerId;
use engine::probe::saved::SavedProbes;
use engine::probe::worker::ProbeWorker;
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use ports::{OnExit, Tasks};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Inner {
    results: Arc<ProbeResults>,
    workers: BTreeMap<ProbeKey, ProbeWorker>,
}

/// Everything known from probes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ProbeStore {
    inner: Arc<Mutex<Inner>>,
    /// What the last run of the agent left.
    saved: Option<Arc<SavedProbes>>,
    dirty: Arc<Notify>,
}

impl ProbeStore {
    /// Reads the file, if it can be read, and starts its writer.
    pub(crate) fn open(path: PathBuf, tasks: &Tasks) -> Self {
        let saved = sys::fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<SavedProbes>(&bytes).ok())
            .map(Arc::new);
        let results = saved.as_ref().map(|saved| saved.results(|_| true)).unwrap_or_default();
        let inner = Inner { results: Arc::new(results), workers: BTreeMap::new() };
        let store = Self { inner: Arc::new(Mutex::new(inner)), saved, dirty: Arc::default() };
        let (writer, cancel) = (store.clone(), tasks.token());
        tasks.spawn("probe-store", OnExit::Fine, async move {
            loop {
                tokio::select! {
                    () = cancel.cancelled() => {} // cancel-safe: a token
                    () = writer.dirty.notified() => {} // cancel-safe: an untaken permit stays
                }
                if !cancel.is_cancelled() {
                    tokio::select! {
                        () = cancel.cancelled() => {} // cancel-safe: a token
                        () = tokio::time::sleep(PAUSE) => {} // cancel-safe: a timer
                    }
                }
                writer.write(path.clone()).await;
                if cancel.is_cancelled() {
                    return;
                }
            }
        });
        store
    }

    /// Settled results of all containers.
    pub(crate) fn results(&self) -> Arc<ProbeResults> {
        Arc::clone(&self.lock().results)
    }

    /// Settles a result; says whether it is new or differs.
    pub(crate) fn set(&self, id: &ContainerId, kind: ProbeKind, outcome: ProbeOutcome) -> bool {
        let changed = Arc::make_mut(&mut self.lock().results).set(id, kind, outcome);
        if changed {
            self.dirty.notify_one();
        }
        changed
    }

    /// Forgets a result.
    pub(crate) fn remove(&self, id: &ContainerId, kind: ProbeKind) {
        Arc::make_mut(&mut self.lock().results).remove(id, kind);
        self.dirty.notify_one();
    }

    /// Drops kept results that differ from what is published: somebody looked after the containers
    /// since, and what the world was told stands until we have asked the container ourselves.
    pub(crate) fn adopt(&self, published: &PodStatus) {
        let mut inner = self.lock();
        let lists = [&published.container_statuses, &published.init_container_statuses];
        for entry in lists.into_iter().flatten().flatten() {
            let Some(id) = engine::status::bare_id(entry) else { continue };
            let shown = [
                (ProbeKind::Readiness, entry.ready),
                (ProbeKind::Startup, entry.started == Some(true)),
            ];
            for (kind, shown) in shown {
                let kept = inner.results.get(&id, kind);
                if kept.is_some_and(|kept| (kept == ProbeOutcome::Success) != shown) {
                    Arc::make_mut(&mut inner.results).remove(&id, kind);
                }
            }
        }
    }

    /// Keeps results of these containers.
    pub(crate) fn retain(&self, keep: impl Fn(&ContainerId) -> bool) {
        let mut inner = self.lock();
        if inner.results.iter().any(|(id, ..)| !keep(id)) {
            Arc::make_mut(&mut inner.results).retain(keep);
            self.dirty.notify_one();
        }
    }

    /// Gives a new worker back what its predecessor had counted for this container.
    pub(crate) fn resume(&self, worker: &mut ProbeWorker, id: &ContainerId) {
        if let Some(saved) = &self.saved {
            saved.resume(worker, id);
        }
    }

    /// Remembers what a worker counted.
    pub(crate) fn keep(&self, key: &ProbeKey, worker: &ProbeWorker) {
        let known = self.lock().workers.insert(key.clone(), worker.clone());
        if known.as_ref() != Some(worker) {
            self.dirty.notify_one();
        }
    }

    /// Forgets a worker.
    pub(crate) fn forget(&self, key: &ProbeKey) {
        self.lock().workers.remove(key);
    }

    async fn write(&self, path: PathBuf) {
        let content = {
            let inner = self.lock();
            SavedProbes::of(&inner.results, inner.workers.values())
        };
        let Ok(bytes) = serde_json::to_vec(&content) else { return };
        let written = sys::blocking::run(move || {
            if let Some(folder) = path.parent() {
                sys::fs::create_dir_all(folder, 0o700)?;
            }
            sys::fs::write_atomic(path, bytes, 0o600)
        });
        if let Ok(Err(error)) = written.await {
            tracing::warn!(err = %error.source, "cannot keep probe results");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_published_meanwhile_counts_more_than_what_was_kept() {
        let path = std::env::temp_dir().join(format!("rubelet-adopt-{}.json", std::process::id()));
        let store = ProbeStore::open(path, &Tasks::new());
        for id in ["agrees", "differs"] {
            store.set(&id.into(), ProbeKind::Readiness, ProbeOutcome::Failure);
        }
        let entry = |id: &str, ready| api::core::v1::ContainerStatus {
            container_id: Some(format!("containerd://{id}")),
            ready,
            ..api::core::v1::ContainerStatus::default()
        };
        let list = vec![entry("agrees", false), entry("differs", true)];
        store.adopt(&PodStatus { container_statuses: Some(list), ..PodStatus::default() });
        let found = |id: &str| store.results().get(&id.into(), ProbeKind::Readiness);
        assert_eq!((found("agrees"), found("differs")), (Some(ProbeOutcome::Failure), None));
    }

    #[tokio::test(start_paused = true)]
    async fn results_outlive_the_agent_and_damage_is_ignored() {
        let dir = std::env::temp_dir().join(format!("rubelet-probes-{}", std::process::id()));
        let path = dir.join("probes.json");
        let tasks = Tasks::new();
        let store = ProbeStore::open(path.clone(), &tasks);
        let id = ContainerId::from("c1");
        assert!(store.set(&id, ProbeKind::Readiness, ProbeOutcome::Success));
        tasks.shutdown().await;
        let again = ProbeStore::open(path.clone(), &Tasks::new());
        assert_eq!(again.results().get(&id, ProbeKind::Readiness), Some(ProbeOutcome::Success));
        sys::fs::write(&path, "{").unwrap();
        let damaged = ProbeStore::open(path, &Tasks::new());
        assert_eq!(damaged.results().get(&id, ProbeKind::Readiness), None);
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &dir, all).unwrap();
    }
}
