//! Probe results on disk (`rubelet/probes.json`), so that our restart is not seen by anybody.
//!
//! Promises: losing the file only means that results are found out anew; a damaged one is ignored;
//! it is written at most once a second.

use api::ids::ContainerId;
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use ports::{OnExit, Tasks};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const PAUSE: Duration = Duration::from_secs(1);
const VERSION: u32 = 1;

/// What is remembered of one probe of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remembered {
    /// The settled result, if there is one.
    pub(crate) outcome: Option<ProbeOutcome>,
    /// Nothing more to probe until the container changes.
    pub(crate) on_hold: bool,
    /// The last single result.
    pub(crate) last: Option<bool>,
    /// How often in a row.
    pub(crate) run: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Row {
    container: ContainerId,
    kind: ProbeKind,
    #[serde(flatten)]
    probe: Remembered,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    probes: Vec<Row>,
}

type Probes = BTreeMap<(ContainerId, ProbeKind), Remembered>;

/// The remembered probes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ProbeStore {
    probes: Arc<Mutex<Probes>>,
    dirty: Arc<Notify>,
}

impl ProbeStore {
    /// Reads the file, if it can be read, and starts its writer.
    pub(crate) fn open(path: PathBuf, tasks: &Tasks) -> Self {
        let probes = sys::fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Content>(&bytes).ok())
            .filter(|content| content.version == VERSION)
            .map(|content| {
                content
                    .probes
                    .into_iter()
                    .map(|row| ((row.container, row.kind), row.probe))
                    .collect()
            })
            .unwrap_or_default();
        let store = Self { probes: Arc::new(Mutex::new(probes)), dirty: Arc::default() };
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

    /// Settled results of all remembered containers.
    pub(crate) fn results(&self) -> ProbeResults {
        let mut results = ProbeResults::default();
        if let Ok(probes) = self.probes.lock() {
            for ((id, kind), probe) in probes.iter() {
                if let Some(outcome) = probe.outcome {
                    results.set(id, *kind, outcome);
                }
            }
        }
        results
    }

    /// What is remembered of a probe.
    pub(crate) fn get(&self, id: &ContainerId, kind: ProbeKind) -> Option<Remembered> {
        self.probes.lock().ok()?.get(&(id.clone(), kind)).copied()
    }

    /// Remembers a probe.
    pub(crate) fn set(&self, id: &ContainerId, kind: ProbeKind, probe: Remembered) {
        let changed = self
            .probes
            .lock()
            .is_ok_and(|mut probes| probes.insert((id.clone(), kind), probe) != Some(probe));
        if changed {
            self.dirty.notify_one();
        }
    }

    /// Forgets a probe.
    pub(crate) fn remove(&self, id: &ContainerId, kind: ProbeKind) {
        let removed =
            self.probes.lock().is_ok_and(|mut probes| probes.remove(&(id.clone(), kind)).is_some());
        if removed {
            self.dirty.notify_one();
        }
    }

    async fn write(&self, path: PathBuf) {
        let rows = match self.probes.lock() {
            Ok(probes) => probes
                .iter()
                .map(|((id, kind), probe)| Row {
                    container: id.clone(),
                    kind: *kind,
                    probe: *probe,
                })
                .collect(),
            Err(_) => return,
        };
        let content = Content { version: VERSION, probes: rows };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn results_outlive_the_agent_and_damage_is_ignored() {
        let dir = std::env::temp_dir().join(format!("rubelet-probes-{}", std::process::id()));
        let path = dir.join("probes.json");
        let tasks = Tasks::new();
        let store = ProbeStore::open(path.clone(), &tasks);
        let id = ContainerId::from("c1");
        let probe = Remembered {
            outcome: Some(ProbeOutcome::Success),
            on_hold: false,
            last: Some(true),
            run: 3,
        };
        store.set(&id, ProbeKind::Readiness, probe);
        tasks.shutdown().await;
        let again = ProbeStore::open(path.clone(), &Tasks::new());
        assert_eq!(again.get(&id, ProbeKind::Readiness), Some(probe));
        assert_eq!(again.results().get(&id, ProbeKind::Readiness), Some(ProbeOutcome::Success));
        sys::fs::write(&path, "{").unwrap();
        let damaged = ProbeStore::open(path, &Tasks::new());
        assert_eq!(damaged.get(&id, ProbeKind::Readiness), None);
        sys::removal::remove_tree(
            std::path::Path::new("/proc"),
            &dir,
            sys::removal::Contents::Everything,
        )
        .unwrap();
    }
}
