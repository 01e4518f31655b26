//! One pod's record.

use super::{Call, Completion, StatusOverride, UpdateKind, Work};
use api::core::v1::Pod;
use jiff::Timestamp;
use std::sync::Arc;

/// Where a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LifeState {
    /// Synced with its spec.
    Syncing,
    /// Its containers are to stop.
    Terminating,
    /// No container runs.
    Terminated,
}

impl LifeState {
    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "sync",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
        }
    }
}

/// An update that waits for the worker.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) kind: UpdateKind,
    pub(super) pod: Arc<Pod>,
    pub(super) runtime_only: bool,
    pub(super) mirror: Option<Arc<Pod>>,
    pub(super) grace_seconds: Option<i64>,
    pub(super) seen_at: Option<Timestamp>,
}

/// What is known about one pod's life.
/// Many fields: one for each thing that happens to a pod and is asked for later.
#[derive(Debug)]
pub struct Record {
    pub(super) full_name: String,
    pub(super) pending: Option<Pending>,
    pub(super) active: Option<Pending>,
    pub(super) working: bool,
    pub(super) synced_at: Timestamp,
    pub(super) started_at: Option<Timestamp>,
    pub(super) terminating_at: Option<Timestamp>,
    pub(super) terminated_at: Option<Timestamp>,
    pub(super) grace_seconds: i64,
    pub(super) completions: Vec<Completion>,
    pub(super) status_override: Option<StatusOverride>,
    pub(super) started_terminating: bool,
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    pub(super) finished: bool,
    pub(super) restart_requested: bool,
    pub(super) observed_runtime: bool,
}

impl Record {
    /// A new record; `ended` for a pod that was already terminal when first seen.
    pub(super) fn new(full_name: String, ended: Option<Timestamp>, now: Timestamp) -> Self {
        Self {
            full_name,
            pending: None,
            active: None,
            working: false,
            synced_at: now,
            started_at: None,
            terminating_at: ended,
            terminated_at: ended,
            grace_seconds: 0,
            completions: Vec::new(),
            status_override: None,
            started_terminating: ended.is_some(),
            deleted: false,
            evicted: false,
            finished: false,
            restart_requested: false,
            observed_runtime: false,
        }
    }

    /// Where the pod is.
    pub fn state(&self) -> LifeState {
        if self.terminated_at.is_some() {
            LifeState::Terminated
        } else if self.terminating_at.is_some() {
            LifeState::Terminating
        } else {
            LifeState::Syncing
        }
    }

    /// `name_namespace`.
    pub fn full_name(&self) -> &str {
        &self.full_name
    }

    /// The pod as last given to the worker, or as it will be.
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        self.pending.as_ref().or(self.active.as_ref()).map(|p| &p.pod)
    }

    /// The worker is in a call.
    pub fn is_working(&self) -> bool {
        self.working
    }

    /// The worker has begun its first call.
    pub fn has_started(&self) -> bool {
        self.started_at.is_some()
    }

    /// The pod was asked to end, or ended.
    pub fn termination_requested(&self) -> bool {
        self.terminating_at.is_some()
    }

    /// The pod was evicted.
    pub fn is_evicted(&self) -> bool {
        self.evicted
    }

    /// All its work is done.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// It should be created again once finished.
    pub fn restart_requested(&self) -> bool {
        self.restart_requested
    }

    /// The grace period in force once it is terminating; 0 before.
    pub fn grace_seconds(&self) -> i64 {
        self.grace_seconds
    }

    /// When it was first seen.
    pub fn known_since(&self) -> Timestamp {
        self.synced_at
    }

    /// The full pod of a pending or active update.
    pub(super) fn known_pod(&self) -> Option<Arc<Pod>> {
        [&self.pending, &self.active]
            .into_iter()
            .flatten()
            .find(|p| !p.runtime_only)
            .map(|p| Arc::clone(&p.pod))
    }

    /// The grace period that results from all requests so far: it only shrinks and is at least one second.
    pub(super) fn effective_grace(&self, pod: &Pod, wish: Option<i64>) -> i64 {
        let mut grace = self.grace_seconds;
        let mut overridden = false;
        for wish in [pod.metadata.deletion_grace_period_seconds, wish].into_iter().flatten() {
            if grace == 0 || wish < grace {
                grace = wish;
                overridden = true;
            }
        }
        if !overridden && grace == 0 {
            grace = pod
                .spec
                .as_ref()
                .and_then(|s| s.termination_grace_period_seconds)
                .unwrap_or_default();
        }
        grace.max(1)
    }

    /// Turns a pending update into work.
    pub(super) fn begin(&mut self, pending: Pending, first: bool, now: Timestamp) -> Work {
        self.started_at.get_or_insert(now);
        self.working = true;
        let call = match (self.state(), pending.runtime_only) {
            (LifeState::Terminated, _) => Call::Terminated,
            (LifeState::Terminating, true) => Call::TerminatingRuntime,
            (LifeState::Terminating, false) => Call::Terminating,
            (LifeState::Syncing, _) => Call::Sync,
        };
        if matches!(call, Call::Terminating | Call::TerminatingRuntime) {
            self.started_terminating = true;
        }
        let work = Work {
            call,
            kind: pending.kind,
            pod: Arc::clone(&pending.pod),
            mirror: pending.mirror.clone(),
            grace_seconds: pending.grace_seconds,
            status: self.status_override.clone().filter(|_| call != Call::Sync),
            first,
            seen_at: pending.seen_at,
        };
        self.merge_active(pending);
        work
    }

    /// Makes the last update pending again unless something newer is; returns whether something is pending.
    pub(super) fn requeue(&mut self) -> bool {
        if self.pending.is_none() {
            self.pending.clone_from(&self.active);
            if let Some(pending) = &mut self.pending {
                pending.kind = UpdateKind::Sync;
            }
        }
        self.pending.is_some()
    }

    /// Ends the record.
    pub(super) fn finish(&mut self, now: Timestamp) {
        self.finished = true;
        self.terminating_at.get_or_insert(now);
        self.terminated_at.get_or_insert(now);
        self.pending = None;
    }

    fn merge_active(&mut self, new: Pending) {
        // A kill request does not look up the mirror. With other requests, a mirror that is gone must not be kept here:
        // it would never be created again.
        let knows_mirror = !new.runtime_only && new.kind != UpdateKind::Kill;
        let merged = match self.active.take() {
            Some(old) => Pending {
                kind: new.kind,
                pod: if new.runtime_only { old.pod } else { new.pod },
                runtime_only: new.runtime_only && old.runtime_only,
                mirror: if knows_mirror { new.mirror } else { new.mirror.or(old.mirror) },
                grace_seconds: new.grace_seconds.or(old.grace_seconds),
                seen_at: None,
            },
            None => Pending { seen_at: None, ..new },
        };
        self.active = Some(merged);
    }
}
