//! Resize conditions of a pod, kept separately from its status (spec: `PodResizePending`, `PodResizeInProgress`).

use api::core::v1::{PodCondition, PodStatus};
use api::machinery::apis::meta::v1::Time;
use jiff::Timestamp;

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// Why a resize is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PendingReason {
    /// Not now: tried again.
    Deferred,
    /// Never on this node.
    Infeasible,
}

impl PendingReason {
    /// The condition's reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// The two conditions of one pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResizeConditions {
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
}

impl ResizeConditions {
    /// From the API's conditions, after a start of the agent.
    pub fn from_status(status: &PodStatus, now: Timestamp) -> Self {
        let take = |type_: &str| {
            let found = status.conditions.iter().flatten().find(|c| c.type_ == type_)?;
            Some(PodCondition {
                last_probe_time: Some(Time(now)),
                last_transition_time: Some(Time(now)),
                ..found.clone()
            })
        };
        Self { pending: take(PENDING), in_progress: take(IN_PROGRESS) }
    }

    /// The conditions in the order of the status.
    pub fn list(&self) -> Vec<PodCondition> {
        [&self.pending, &self.in_progress].into_iter().flatten().cloned().collect()
    }

    /// The reason of a pending resize.
    pub fn pending_reason(&self) -> Option<&str> {
        self.pending.as_ref()?.reason.as_deref()
    }

    /// When the pending resize got its present reason.
    pub fn pending_since(&self) -> Option<Timestamp> {
        Some(self.pending.as_ref()?.last_transition_time.as_ref()?.0)
    }

    /// Whether a resize is being carried out.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// The generation whose resize is being carried out.
    pub fn in_progress_generation(&self) -> Option<i64> {
        self.in_progress.as_ref()?.observed_generation
    }

    /// A resize is not accepted. Says whether an event is due: reason or generation changed.
    pub fn set_pending(
        &mut self,
        reason: PendingReason,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> bool {
        let old = self.pending.take();
        let same_reason = old.as_ref().filter(|o| o.reason.as_deref() == Some(reason.as_str()));
        let event = same_reason.is_none_or(|o| o.observed_generation != generation);
        let since = same_reason.and_then(|o| o.last_transition_time.clone());
        self.pending = Some(PodCondition {
            type_: PENDING.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.to_owned()).filter(|m| !m.is_empty()),
            observed_generation: generation,
            last_probe_time: Some(Time(now)),
            last_transition_time: since.or(Some(Time(now))),
        });
        event
    }

    /// The resize was accepted or taken back; says whether there was one.
    pub fn clear_pending(&mut self) -> bool {
        self.pending.take().is_some()
    }

    /// A resize is being carried out; an error carries its message. Says whether something visible changed.
    pub fn set_in_progress(
        &mut self,
        error: Option<&str>,
        generation: Option<i64>,
        now: Timestamp,
    ) -> bool {
        let old = self.in_progress.take();
        let reason = error.map(|_| "Error".to_owned());
        let kept = old.as_ref();
        let new_reason = reason.or_else(|| kept.and_then(|o| o.reason.clone()));
        let new_message = error.map(str::to_owned).or_else(|| kept.and_then(|o| o.message.clone()));
        let changed = kept.is_none_or(|o| o.reason != new_reason || o.message != new_message);
        let same = kept.filter(|o| o.reason == new_reason);
        let since = same.and_then(|o| o.last_transition_time.clone());
        let observed = match kept {
            Some(o) => o.observed_generation,
            None => generation,
        };
        self.in_progress = Some(PodCondition {
            type_: IN_PROGRESS.to_owned(),
            status: "True".to_owned(),
            reason: new_reason,
            message: new_message,
            observed_generation: observed,
            last_probe_time: Some(Time(now)),
            last_transition_time: since.or(Some(Time(now))),
        });
        changed
    }

    /// The resize is done; says whether there was one (event `ResizeCompleted`).
    pub fn clear_in_progress(&mut self) -> bool {
        self.in_progress.take().is_some()
    }
}
