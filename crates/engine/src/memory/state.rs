//! The memory assignments.

use super::NodeFacts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::Quantity;

/// One kind of memory of one node, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryTable {
    /// Total.
    #[serde(rename = "total", default)]
    pub total: u64,
    /// Reserved for the system.
    #[serde(rename = "systemReserved", default)]
    pub system_reserved: u64,
    /// Allocatable to containers.
    #[serde(default)]
    pub allocatable: u64,
    /// Allocated to containers.
    #[serde(default)]
    pub reserved: u64,
    /// Free.
    #[serde(default)]
    pub free: u64,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Blocks that use it.
    #[serde(rename = "numberOfAssignments", default)]
    pub assignments: i64,
    /// By resource name.
    #[serde(rename = "memoryMap", default)]
    pub tables: BTreeMap<String, MemoryTable>,
    /// Nodes that are used together with it, itself included.
    #[serde(default)]
    pub cells: Vec<u32>,
}

/// Every node.
pub type MachineMemory = BTreeMap<u32, NodeMemory>;

/// Memory that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Block {
    /// From these nodes.
    #[serde(rename = "numaAffinity", default)]
    pub nodes: Vec<u32>,
    /// Resource name.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Bytes.
    #[serde(default)]
    pub size: u64,
}

/// The nodes and all assigned blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryState {
    /// By node.
    pub machine: MachineMemory,
    /// By pod UID and container name.
    pub own: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    /// Blocks of pods as a whole, by UID; they include those of their containers.
    pub pods: BTreeMap<String, Vec<Block>>,
}

impl MemoryState {
    /// A container's blocks.
    pub fn of(&self, uid: &str, container: &str) -> Option<&Vec<Block>> {
        self.own.get(uid)?.get(container)
    }

    pub(super) fn set(&mut self, uid: &str, container: &str, blocks: Vec<Block>) {
        self.own.entry(uid.to_owned()).or_default().insert(container.to_owned(), blocks);
    }

    pub(super) fn remove(&mut self, uid: &str, container: &str) -> Option<Vec<Block>> {
        let containers = self.own.get_mut(uid)?;
        let blocks = containers.remove(container);
        if containers.is_empty() {
            self.own.remove(uid);
        }
        blocks
    }
}

/// Marks the nodes of a block as used together and takes its bytes, node by node.
pub(super) fn assign(machine: &mut MachineMemory, nodes: &[u32], kind: &str, size: u64) {
    let mut missing = size;
    for id in nodes {
        let Some(node) = machine.get_mut(id) else { continue };
        node.assignments += 1;
        node.cells = nodes.to_vec();
        let Some(table) = node.tables.get_mut(kind) else { continue };
        let taken = missing.min(table.free);
        table.reserved += taken;
        table.free -= taken;
        missing -= taken;
    }
}

/// Gives the bytes of blocks back.
pub(super) fn release(machine: &mut MachineMemory, blocks: &[Block]) {
    for block in blocks {
        let mut left = block.size;
        for id in &block.nodes {
            let Some(node) = machine.get_mut(id) else { continue };
            node.assignments -= 1;
            if node.assignments == 0 {
                node.cells = vec![*id];
            }
            let Some(table) = node.tables.get_mut(&block.kind) else { continue };
            let given = left.min(table.reserved);
            table.free += given;
            table.reserved -= given;
            left -= given;
        }
    }
}

/// The nodes with nothing assigned.
pub(super) fn untouched(
    nodes: &[NodeFacts],
    reserved: &BTreeMap<u32, BTreeMap<String, u64>>,
) -> MachineMemory {
    nodes.iter().map(|node| (node.id, of_node(node, reserved.get(&node.id)))).collect()
}

fn of_node(node: &NodeFacts, reserved: Option<&BTreeMap<String, u64>>) -> NodeMemory {
    let reserved = |kind: &str| reserved.and_then(|r| r.get(kind)).copied().unwrap_or_default();
    let table = |total: u64, used: u64, system_reserved: u64| {
        let allocatable = total.saturating_sub(system_reserved).saturating_sub(used);
        MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    };
    let mut tables = BTreeMap::new();
    let mut in_pages = 0_u64;
    for (kib, pages) in &node.huge_pages {
        let bytes = i64::try_from(kib.saturating_mul(1024)).unwrap_or(i64::MAX);
        let kind = format!("hugepages-{}", Quantity::from_bytes(bytes));
        let total = pages.saturating_mul(*kib).saturating_mul(1024);
        in_pages = in_pages.saturating_add(total);
        let own = table(total, 0, reserved(&kind));
        tables.insert(kind, own);
    }
    tables.insert("memory".to_owned(), table(node.memory, in_pages, reserved("memory")));
    NodeMemory { assignments: 0, tables, cells: vec![node.id] }
}
