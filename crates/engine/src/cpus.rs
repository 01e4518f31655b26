//! Exclusive CPUs: which CPUs a container gets for itself and which are shared.
//!
//! Owns: the machine's CPUs ([`CpuTopology`]), the choice among free ones ([`take`]), the `static` policy
//! ([`StaticCpus`]) and the text of `cpu_manager_state` ([`checkpoint`]). Upstream: `cpumanager`.
//!
//! Promises: same CPUs as upstream for the same topology, state, request and options. Deliberately absent: reading the
//! machine, files, cgroups.

pub mod checkpoint;
mod combinations;
mod distribute;
mod options;
mod pod_level;
mod state;
mod statics;
mod take;
mod topology;

pub use options::{CpuOptions, OptionStages};
pub use pod_level::PodAllocation;
pub use state::CpuState;
pub use statics::{Allocation, CpuRefusal, CpuSetup, StaticCpus};
pub use take::{TakeError, take};
pub use topology::{CpuInfo, CpuTopology, Level};

/// Why the policy cannot start; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CpuFault(pub String);
