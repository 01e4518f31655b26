//! The node's resources.
//!
//! Owns: the cgroup tree, where the agent and the system's processes are in it, and the placement of pods on exclusive resources. Decisions and numbers
//! are in `engine`, files in `sys`.
#![forbid(unsafe_code)]

pub mod cgroups;
mod metrics;
pub mod placement;
mod system;
mod unplaced;

pub use metrics::PlacementMetrics;
pub use system::{SystemCgroups, SystemCgroupsError};
pub use unplaced::Unplaced;
