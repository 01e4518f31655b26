//! Probes: what a result means and what a worker does next.
//!
//! Owns: settled results ([`ProbeResults`]), the decisions of one worker ([`worker`]) and the form in which both
//! survive a restart of the agent ([`saved`]).
//!
//! Promises: a result changes only when its threshold is reached; counters and results of a container that still
//! runs are the same after a restart as before it.
//!
//! Deliberately absent: how a probe is carried out.

pub mod saved;
pub mod worker;

use api::ids::ContainerId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The three probes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Failing restarts the container.
    Liveness,
    /// Failing takes the pod out of service.
    Readiness,
    /// Holds back the other two until it succeeds once.
    Startup,
}

impl ProbeKind {
    /// The word used in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
}

/// The settled result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeOutcome {
    /// The threshold of successes was reached.
    Success,
    /// The threshold of failures was reached.
    Failure,
    /// Not decided yet.
    Unknown,
}

/// Settled results per container id and probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeResults {
    results: BTreeMap<(ContainerId, ProbeKind), ProbeOutcome>,
}

impl ProbeResults {
    /// The settled result, `None` if there is none yet.
    pub fn get(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeOutcome> {
        self.results.get(&(id.clone(), kind)).copied()
    }

    /// Stores a result; says whether it is new or differs.
    pub fn set(&mut self, id: &ContainerId, kind: ProbeKind, outcome: ProbeOutcome) -> bool {
        self.results.insert((id.clone(), kind), outcome) != Some(outcome)
    }

    /// All results of these containers.
    pub fn of<'a>(&self, ids: impl IntoIterator<Item = &'a ContainerId>) -> Self {
        let kinds = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
        let mut some = Self::default();
        for id in ids {
            for kind in kinds {
                if let Some(outcome) = self.get(id, kind) {
                    some.set(id, kind, outcome);
                }
            }
        }
        some
    }

    /// Forgets one result; says whether there was one.
    pub fn remove(&mut self, id: &ContainerId, kind: ProbeKind) -> bool {
        self.results.remove(&(id.clone(), kind)).is_some()
    }

    /// Forgets containers that are not in the list; says whether there were any.
    pub fn retain(&mut self, keep: impl Fn(&ContainerId) -> bool) -> bool {
        let before = self.results.len();
        self.results.retain(|(id, _), _| keep(id));
        self.results.len() != before
    }

    /// All results in order.
    pub fn iter(&self) -> impl Iterator<Item = (&ContainerId, ProbeKind, ProbeOutcome)> {
        self.results.iter().map(|((id, kind), outcome)| (id, *kind, *outcome))
    }
}
