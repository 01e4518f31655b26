//! The node's resources.
//!
//! Owns: the cgroup tree and the placement of pods on exclusive resources. Decisions and numbers
//! are in `engine`, files in `sys`.
#![forbid(unsafe_code)]

pub mod cgroups;
mod metrics;
pub mod placement;
mod unplaced;

pub use metrics::PlacementMetrics;
pub use unplaced::Unplaced;
