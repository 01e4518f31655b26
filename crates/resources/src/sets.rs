//! Exclusive CPUs and memory for the pod resources socket.

use crate::cpus::Cpus;
use crate::memory::Memory;
use crate::pod_resources::{ExclusiveSets, MemoryBlock};
use engine::memory::Block;
use units::CpuSet;

/// The CPU and the memory manager.
#[derive(Debug, Clone)]
pub struct CpusAndMemory {
    /// CPUs.
    pub cpus: Cpus,
    /// Memory.
    pub memory: Memory,
}

impl ExclusiveSets for CpusAndMemory {
    fn cpus(&self, uid: &str, container: &str) -> Vec<i64> {
        numbers(&self.cpus.own(uid, container))
    }

    fn memory(&self, uid: &str, container: &str) -> Vec<MemoryBlock> {
        self.memory.own(uid, container).iter().map(shown).collect()
    }

    fn allocatable_cpus(&self) -> Vec<i64> {
        numbers(&self.cpus.allocatable())
    }

    fn allocatable_memory(&self) -> Vec<MemoryBlock> {
        self.memory.allocatable().iter().map(shown).collect()
    }
}

fn numbers(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

fn shown(block: &Block) -> MemoryBlock {
    MemoryBlock { kind: block.kind.clone(), size: block.size, nodes: block.nodes.clone() }
}
