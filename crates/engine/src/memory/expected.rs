//! Whether a restored state fits this machine.

use super::state::assign;
use super::{Block, MachineMemory, MemoryFault, MemoryState, NodeMemory};
use std::collections::BTreeSet;

/// Adds up all blocks on the untouched machine and compares (upstream: `validateState`).
pub(super) fn check(untouched: MachineMemory, state: &MemoryState) -> Result<(), MemoryFault> {
    let mut expected = untouched;
    for (uid, containers) in &state.own {
        if let Some(blocks) = state.pods.get(uid).filter(|blocks| !blocks.is_empty()) {
            add(&mut expected, blocks, (uid, ""))?;
            continue;
        }
        for (container, blocks) in containers {
            add(&mut expected, blocks, (uid, container))?;
        }
    }
    if alike(&state.machine, &expected) {
        return Ok(());
    }
    Err(MemoryFault(
        "[memorymanager] the expected machine state is different from the real one".to_owned(),
    ))
}

fn add(
    machine: &mut MachineMemory,
    blocks: &[Block],
    (uid, container): (&str, &str),
) -> Result<(), MemoryFault> {
    let fault = |what: &str| {
        MemoryFault(format!("[memorymanager] (pod: {uid}, container: {container}) {what}"))
    };
    for block in blocks {
        for id in &block.nodes {
            let node = machine
                .get(id)
                .ok_or_else(|| fault("the memory assignment uses the NUMA that does not exist"))?;
            if !node.tables.contains_key(&block.kind) {
                let what = "the memory assignment uses memory resource that does not exist";
                return Err(fault(what));
            }
        }
        assign(machine, &block.nodes, &block.kind, block.size);
    }
    Ok(())
}

fn alike(one: &MachineMemory, other: &MachineMemory) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .all(|(id, node)| other.get(id).is_some_and(|twin| nodes_alike(one, other, node, twin)))
}

/// Sizes must be equal per node; what is free and reserved only over the group that is used together.
fn nodes_alike(
    one: &MachineMemory,
    other: &MachineMemory,
    node: &NodeMemory,
    twin: &NodeMemory,
) -> bool {
    let cells = |node: &NodeMemory| node.cells.iter().copied().collect::<BTreeSet<u32>>();
    node.assignments == twin.assignments
        && node.cells.len() == twin.cells.len()
        && cells(node) == cells(twin)
        && node.tables.len() == twin.tables.len()
        && node.tables.iter().all(|(kind, table)| {
            twin.tables.get(kind).is_some_and(|same| {
                (table.total, table.system_reserved, table.allocatable)
                    == (same.total, same.system_reserved, same.allocatable)
                    && in_group(one, node, kind) == in_group(other, node, kind)
            })
        })
}

fn in_group(machine: &MachineMemory, node: &NodeMemory, kind: &str) -> (u64, u64) {
    let tables = node.cells.iter().filter_map(|id| machine.get(id)?.tables.get(kind));
    // Saturating: the file may hold any numbers.
    tables.fold((0_u64, 0_u64), |(free, reserved), table| {
        (free.wrapping_add(table.free), reserved.wrapping_add(table.reserved))
    })
}
