//! Cgroup, filesystem and network statistics, read once per window and shared.
//!
//! Owns: readings of the node's cgroups, of the runtime's lists, of log and volume directories; the
//! summary and the two metrics endpoints made from them.
//!
//! Promises: without requests there is no cost: there is no housekeeping. Callers within a short
//! window share one reading, and cached readings and open files are released soon after the last
//! request. A cgroup or directory that vanishes meanwhile is left out. Nothing below a container's
//! cgroup is reported, so that no container can grow the responses.
//!
//! Deliberately absent: any decision about what the numbers mean (eviction).
#![forbid(unsafe_code)]

mod cadvisor;
mod cgroup_cache;
mod collect;
mod convert;
mod processes;
mod reading;
mod resource;
mod storage;
mod summary;
mod task;

pub use task::{StatsConfig, StatsDeps, StatsHandle, start};
