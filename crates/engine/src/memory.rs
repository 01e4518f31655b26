//! NUMA memory: from which nodes a container's memory and huge pages come.
//!
//! Owns: the `Static` policy ([`StaticMemory`]), what is reserved for the system per node ([`system_reserved`]) and
//! the text of `memory_manager_state` ([`checkpoint`]). Upstream: `memorymanager`.
//!
//! Promises: same nodes and numbers as upstream for the same machine, state and request. Deliberately absent: reading
//! the machine, files, cgroups.

pub mod checkpoint;
mod expected;
mod hints;
mod pod_level;
mod reserved;
mod state;
mod statics;

pub use pod_level::PodMemory;
pub use reserved::{NodeReservations, system_reserved};
pub use state::{Block, MachineMemory, MemoryState, MemoryTable, NodeMemory};
pub use statics::{MemoryAllocation, MemoryRefusal, MemorySetup, StaticMemory};

/// One NUMA node's memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// Its number.
    pub id: u32,
    /// Bytes.
    pub memory: u64,
    /// Size in KiB and number of the huge pages it has.
    pub huge_pages: Vec<(u64, u64)>,
}

/// Why the policy cannot start; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MemoryFault(pub String);

/// Whether the memory policy manages a resource.
fn is_memory(name: &str) -> bool {
    name == "memory" || name.starts_with("hugepages-")
}
