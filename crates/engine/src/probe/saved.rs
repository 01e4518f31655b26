//! Results and counters in the form that survives a restart of the agent.
//!
//! The file may be missing or from another version: then containers that run keep what was last published.

use super::worker::{ProbeWorker, holds};
use super::{ProbeKind, ProbeOutcome, ProbeResults};
use api::ids::ContainerId;
use serde::{Deserialize, Serialize};

/// Version of the format.
const VERSION: u32 = 1;

/// Everything that is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedProbes {
    version: u32,
    results: Vec<SavedResult>,
    counters: Vec<SavedCounter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedResult {
    container: ContainerId,
    kind: ProbeKind,
    outcome: ProbeOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedCounter {
    container: ContainerId,
    kind: ProbeKind,
    success: bool,
    in_a_row: u32,
}

impl SavedProbes {
    /// From the present results and workers.
    pub fn of<'a>(results: &ProbeResults, workers: impl Iterator<Item = &'a ProbeWorker>) -> Self {
        Self {
            version: VERSION,
            results: results
                .iter()
                .map(|(id, kind, outcome)| SavedResult { container: id.clone(), kind, outcome })
                .collect(),
            counters: workers
                .filter_map(|worker| {
                    let (container, success, in_a_row) = worker.counted()?;
                    Some(SavedCounter { container, kind: worker.kind, success, in_a_row })
                })
                .collect(),
        }
    }

    /// Results of containers that still run.
    pub fn results(&self, runs: impl Fn(&ContainerId) -> bool) -> ProbeResults {
        let mut results = ProbeResults::default();
        if self.version == VERSION {
            for saved in self.results.iter().filter(|r| runs(&r.container)) {
                results.set(&saved.container, saved.kind, saved.outcome);
            }
        }
        results
    }

    /// Restores a new worker's counters for this container.
    pub fn resume(&self, worker: &mut ProbeWorker, id: &ContainerId) {
        if self.version != VERSION {
            return;
        }
        let settled = self.results.iter().find(|r| &r.container == id && r.kind == worker.kind);
        let held = settled.is_some_and(|r| holds(r.kind, r.outcome));
        let counted = self.counters.iter().find(|c| &c.container == id && c.kind == worker.kind);
        if let Some(counted) = counted {
            worker.resume(id.clone(), counted.success, counted.in_a_row, held);
        }
    }
}
