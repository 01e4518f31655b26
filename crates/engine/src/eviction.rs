//! Node-pressure eviction: when to act, what to reclaim first, which pod to evict, and its messages.
//!
//! ```text
//!  stats ─▶ observations ─▶ EvictionState::round ─▶ conditions (for the node and admission)
//!                                              └──▶ thresholds to act on ─▶ reclaim ─▶ rank ─▶ one pod
//! ```
//!
//! Owns: thresholds ([`threshold`]), since when they are met ([`EvictionState`]), the order of victims ([`rank`]), local
//! storage limits ([`local`]) and the texts.
//!
//! Promises: acts on a reading only once; a condition outlives its cause by the transition period; at most one pod per
//! round. Upstream: `eviction.managerImpl`.

mod account;
mod kernel;
pub mod local;
mod message;
pub mod rank;
mod state;
#[cfg(test)]
mod tests;
pub mod threshold;

pub use account::{Cause, Place, account};
pub use kernel::{KernelMemory, measured};
pub use message::{EvictionText, eviction_text};
pub use state::{EvictionState, Round};
pub use threshold::{Signal, Threshold, ThresholdConfig, ThresholdError};

use crate::admission::{Pressure, is_critical};
use crate::pod::life::StatusOverride;
use api::core::v1::{Pod, PodCondition};
use api::ids::PodUid;
use jiff::Timestamp;
use std::collections::BTreeMap;
use units::Quantity;

/// One reading of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// What is left.
    pub available: Quantity,
    /// The capacity.
    pub capacity: Quantity,
    /// When it was read; `None` if unknown.
    pub at: Option<Timestamp>,
}

/// Readings by signal; a missing one is not evaluated.
pub type Observations = BTreeMap<Signal, Observation>;

/// What one container uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// Memory working set in bytes.
    pub memory: Option<u64>,
    /// Writable layer.
    pub root_fs: FsUsage,
    /// Logs.
    pub logs: FsUsage,
}

/// Bytes and inodes used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsUsage {
    /// Bytes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

/// What one pod uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodUsage {
    /// Memory working set in bytes.
    pub memory: Option<u64>,
    /// Processes.
    pub processes: Option<u64>,
    /// Ephemeral storage of the pod as a whole in bytes.
    pub ephemeral: Option<u64>,
    /// Containers.
    pub containers: Vec<ContainerUsage>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, FsUsage>,
}

/// What pods use, by UID.
pub type PodUsages = BTreeMap<PodUid, PodUsage>;

/// Which filesystems images and containers are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsLayout {
    /// Everything is on the node's.
    One,
    /// Images and writable layers have their own.
    DedicatedImages,
    /// Images have their own, writable layers are on the node's.
    Split,
}

/// A step that frees node resources without touching a running pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reclaim {
    /// Remove dead containers.
    DeadContainers,
    /// Remove unused images.
    UnusedImages,
}

/// What to try before evicting a pod.
pub fn reclaim_steps(signal: Signal, layout: FsLayout) -> &'static [Reclaim] {
    use Reclaim::{DeadContainers, UnusedImages};
    const BOTH: &[Reclaim] = &[DeadContainers, UnusedImages];
    match (signal.filesystem(), layout) {
        (None, _) => &[],
        (Some(_), FsLayout::One) => BOTH,
        (Some("nodefs"), FsLayout::DedicatedImages) => &[],
        (Some(_), FsLayout::DedicatedImages) => BOTH,
        (Some("imagefs"), FsLayout::Split) => &[UnusedImages],
        (Some(_), FsLayout::Split) => &[DeadContainers],
    }
}

/// The grace period of evicted pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GracePolicy {
    /// `evictionMaxPodGracePeriod` in seconds.
    pub max_pod_seconds: i64,
}

impl GracePolicy {
    /// The grace override in seconds: one for hard thresholds, else the smaller of pod's and maximum.
    pub fn seconds(self, threshold: &Threshold, pod: &Pod) -> Option<i64> {
        if threshold.is_hard() {
            return Some(1);
        }
        let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        Some(own.map_or(self.max_pod_seconds, |own| own.min(self.max_pod_seconds)))
    }
}

/// Whether a pod may be evicted at all.
pub fn may_be_evicted(pod: &Pod) -> bool {
    !is_critical(pod)
}

/// Status of a pod evicted for node pressure.
pub fn pressure_status(pod: &Pod, message: &str) -> StatusOverride {
    StatusOverride {
        condition: Some(PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.to_owned()),
            observed_generation: pod.metadata.generation.filter(|g| *g != 0),
            ..PodCondition::default()
        }),
        ..limit_status(message)
    }
}

/// Status of a pod evicted for exceeding its own storage limits.
pub fn limit_status(message: &str) -> StatusOverride {
    StatusOverride {
        reason: "Evicted".to_owned(),
        message: message.to_owned(),
        condition: None,
        keep_succeeded: false,
    }
}

/// Conditions that thresholds stand for, without repetition.
fn pressures<'a>(thresholds: impl Iterator<Item = &'a Threshold>) -> Vec<Pressure> {
    let mut found: Vec<Pressure> = thresholds.map(|t| t.signal.pressure()).collect();
    found.sort_unstable();
    found.dedup();
    found
}
