//! Cgroup, filesystem and network statistics, read once per window and shared.
//!
//! Owns: readings of the node's cgroups, of the runtime's lists, of log and volume folders; the
//! summary and the two metrics pages made from them.
//!
//! Promises: nobody asking costs nothing: there is no housekeeping. Callers within a short window
//! share one reading, and what was read and held open is let go soon after the last of them. A cgroup
//! or folder that vanishes meanwhile is left out. Nothing below a container's cgroup is looked at, so
//! that no container can grow the pages.
//!
//! Deliberately absent: any decision about what the numbers mean (eviction).
#![forbid(unsafe_code)]

mod cadvisor;
mod collect;
mod convert;
mod reading;
mod resource;
mod storage;
mod summary;
mod task;
mod watched;

pub use task::{StatsConfig, StatsDeps, StatsHandle, start};
