//! The node's resources.
//!
//! Owns: the cgroup tree, where the agent and the system's processes are in it, and the placement of pods on exclusive resources. Decisions and numbers
//! are in `engine`, files in `sys`.
#![forbid(unsafe_code)]

pub mod cgroups;
pub mod cpus;
pub mod devices;
pub mod dra;
pub mod machine;
pub mod memory;
mod metrics;
pub mod placement;
pub mod pod_resources;
mod sets;
mod state_file;
mod system;
mod tunables;

pub use metrics::PlacementMetrics;
pub use sets::CpusAndMemory;
pub use state_file::{Outdated, StateError, start_anew};
pub use system::{SystemCgroups, SystemCgroupsError};
pub use tunables::{TunableRule, set_kernel_tunables};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, ignoring poisoning: values are consistent between statements, so a panic elsewhere does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
