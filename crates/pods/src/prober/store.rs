//! Probe results and counters, in memory and on disk (`rubelet/probes.json`), so that our restart is
//! not seen by anybody.
//!
//! Promises: a result costs the same however many containers there are; losing the file only means that
//! results are found out anew; a damaged one is ignored; it is written only when something in it changed,
//! at most every [`PAUSE`] and once more at our end.

use super::ProbeKey;
use api::core::v1::PodStatus;
use api::ids::ContainerId;
use engine::probe::saved::SavedProbes;
use engine::probe::worker::ProbeWorker;
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use ports::Tasks;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two writes of the file.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Inner {
    results: ProbeResults,
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
        let inner = Inner { results, workers: BTreeMap::new() };
        let store = Self { inner: Arc::new(Mutex::new(inner)), saved, dirty: Arc::default() };
        let (writer, cancel) = (store.clone(), tasks.token());
        tasks.spawn_anew("probe-store", move || {
            writer.clone().keep_written(path.clone(), cancel.clone())
        });
        store
    }

    async fn keep_written(self, path: PathBuf, cancel: CancellationToken) {
        // Nothing is known of the file but what it said at the start.
        let mut written = self.saved.as_deref().cloned();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = cancel.cancelled() => {} // cancel-safe: a token
                () = self.dirty.notified() => {} // cancel-safe: an untaken permit stays
            }
            tokio::select! {
                () = cancel.cancelled() => {} // cancel-safe: a token
                () = tokio::time::sleep_until(next) => {} // cancel-safe: a timer
            }
            let content = self.content();
            if written.as_ref() != Some(&content) && self.write(path.clone(), &content).await {
                written = Some(content);
            }
            if cancel.is_cancelled() {
                return;
            }
            next = Instant::now() + PAUSE;
        }
    }

    /// Settled results of these containers.
    pub(crate) fn results<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a ContainerId>,
    ) -> ProbeResults {
        self.lock().results.of(ids)
    }

    /// Settles a result; says whether it is new or differs.
    pub(crate) fn set(&self, id: &ContainerId, kind: ProbeKind, outcome: ProbeOutcome) -> bool {
        let changed = self.lock().results.set(id, kind, outcome);
        if changed {
            self.dirty.notify_one();
        }
        changed
    }

    /// Forgets a result.
    pub(crate) fn remove(&self, id: &ContainerId, kind: ProbeKind) {
        if self.lock().results.remove(id, kind) {
            self.dirty.notify_one();
        }
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
                    inner.results.remove(&id, kind);
                }
            }
        }
    }

    /// Keeps results of these containers.
    pub(crate) fn retain(&self, keep: impl Fn(&ContainerId) -> bool) {
        if self.lock().results.retain(keep) {
            self.dirty.notify_one();
        }
    }

    /// What a worker of this probe counted in this run of the agent.
    pub(crate) fn saved_worker(&self, key: &ProbeKey) -> Option<ProbeWorker> {
        self.lock().workers.get(key).cloned()
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

    fn content(&self) -> SavedProbes {
        let inner = self.lock();
        SavedProbes::of(&inner.results, inner.workers.values())
    }

    /// Whether it could be written.
    async fn write(&self, path: PathBuf, content: &SavedProbes) -> bool {
        let Ok(bytes) = serde_json::to_vec(content) else { return false };
        let written = sys::blocking::run(move || {
            if let Some(folder) = path.parent() {
                sys::fs::create_dir_all(folder, 0o700)?;
            }
            sys::fs::write_atomic(path, bytes, 0o600)
        });
        match written.await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(err = %error.source, "cannot keep probe results");
                false
            }
            Err(_) => false,
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
        let found = |id: &str| store.results([&id.into()]).get(&id.into(), ProbeKind::Readiness);
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
        assert_eq!(
            again.results([&id]).get(&id, ProbeKind::Readiness),
            Some(ProbeOutcome::Success)
        );
        sys::fs::write(&path, "{").unwrap();
        let damaged = ProbeStore::open(path, &Tasks::new());
        assert_eq!(damaged.results([&id]).get(&id, ProbeKind::Readiness), None);
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &dir, all).unwrap();
    }

    /// The probe `n` of a crowd.
    fn nth(n: usize) -> (ProbeKey, ProbeWorker) {
        let probe = api::core::v1::Probe::default();
        let numbers = engine::probe::worker::ProbeNumbers::of(&probe);
        let (pod, container) = (format!("uid{n}").as_str().into(), "c".to_owned());
        let key = ProbeKey { pod, container, kind: ProbeKind::Readiness };
        (key, ProbeWorker::new("c", ProbeKind::Readiness, numbers))
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_written_only_when_something_changed_and_not_too_often() {
        let dir = std::env::temp_dir().join(format!("rubelet-rarely-{}", std::process::id()));
        let (path, tasks) = (dir.join("probes.json"), Tasks::new());
        let store = ProbeStore::open(path.clone(), &tasks);
        let id = ContainerId::from("c1");
        // Removed when seen, so that the next write shows.
        let written = || sys::fs::read(&path).is_ok() && sys::fs::remove_file(&path).is_ok();
        let mut writes = Vec::new();
        store.set(&id, ProbeKind::Readiness, ProbeOutcome::Success);
        for second in 0..600_u32 {
            let (key, worker) = nth(1);
            match second {
                // A probe that flaps, then one that goes on as it did.
                0..60 => {
                    let flips = [ProbeOutcome::Success, ProbeOutcome::Failure];
                    let outcome = flips[usize::from(second % 2 == 0)];
                    store.set(&id, ProbeKind::Readiness, outcome);
                }
                _ => {
                    store.keep(&key, &worker);
                    store.set(&id, ProbeKind::Readiness, ProbeOutcome::Success);
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            // The writer works on a thread.
            for _ in 0..50 {
                tokio::task::yield_now().await;
                if written() {
                    writes.push(second);
                }
            }
        }
        assert!((2..=9).contains(&writes.len()), "{writes:?}");
        assert!(writes.iter().all(|second| *second < 90), "{writes:?}");
        tasks.shutdown().await;
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &dir, all).unwrap();
    }

    #[tokio::test]
    async fn a_result_costs_the_same_among_many_as_among_few() {
        let path = std::env::temp_dir().join(format!("rubelet-many-{}.json", std::process::id()));
        let store = ProbeStore::open(path, &Tasks::new());
        let ids: Vec<ContainerId> = (0..1000).map(|n| format!("c{n}").as_str().into()).collect();
        for id in &ids {
            store.set(id, ProbeKind::Readiness, ProbeOutcome::Success);
        }
        let one = ids.first().unwrap();
        // A reader has what it asked for and nothing else, so that no table is copied for it.
        let seen = store.results([one]);
        assert_eq!(seen.iter().count(), 1);
        assert!(store.set(one, ProbeKind::Readiness, ProbeOutcome::Failure));
        assert_eq!(seen.get(one, ProbeKind::Readiness), Some(ProbeOutcome::Success));
    }
}
