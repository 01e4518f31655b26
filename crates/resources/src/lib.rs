//! The node's resources.
//!
//! Owns: the cgroup tree, where the agent and the system's processes are in it, and the placement of pods on exclusive resources. Decisions and numbers
//! are in `engine`, files in `sys`.
#![forbid(unsafe_code)]

pub mod cgroups;
pub mod devices;
pub mod dra;
mod metrics;
pub mod placement;
pub mod pod_resources;
mod system;
mod unplaced;

pub use metrics::PlacementMetrics;
pub use system::{SystemCgroups, SystemCgroupsError};
pub use unplaced::Unplaced;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks for a moment; a panic elsewhere does not make the value worse than it was.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
