//! Converts the machine's topology to the types of `engine`.

use engine::cpus::{CpuInfo, CpuTopology};
use engine::memory::NodeFacts;
use engine::topology::Numa;
use sys::topology::{Core, MachineTopology, NumaNode};

/// Sockets, cores and NUMA nodes of the CPUs (upstream: `topology.Discover`).
pub fn cpu_topology(machine: &MachineTopology) -> CpuTopology {
    let mut topology = CpuTopology { sockets: machine.sockets, ..CpuTopology::default() };
    for node in &machine.nodes {
        topology.cores += node.cores.len();
        for core in &node.cores {
            let info = info(node, core);
            topology.cpus.extend(core.threads.iter().map(|cpu| (*cpu, info)));
        }
    }
    topology
}

fn info(node: &NumaNode, core: &Core) -> CpuInfo {
    CpuInfo {
        numa: i64::from(node.id),
        socket: core.socket,
        core: core.threads.iter().min().copied().map_or(0, i64::from),
        uncore: core.uncore_caches.first().copied().unwrap_or(core.socket),
    }
}

/// The NUMA nodes and their distances.
pub fn numa(machine: &MachineTopology) -> Numa {
    Numa { distances: machine.nodes.iter().map(|n| (n.id, n.distances.clone())).collect() }
}

/// The NUMA nodes' memory.
pub fn node_memory(machine: &MachineTopology) -> Vec<NodeFacts> {
    let facts = |node: &NumaNode| NodeFacts {
        id: node.id,
        memory: node.memory,
        huge_pages: node.huge_pages.clone(),
    };
    machine.nodes.iter().map(facts).collect()
}
