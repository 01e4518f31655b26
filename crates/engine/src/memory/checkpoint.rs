//! The text of `memory_manager_state`.
//!
//! Promises: the bytes that the Go kubelet writes for the same state, checksum included; reads what it wrote. Upstream:
//! `MemoryManagerCheckpointV1`.

use super::{Block, MachineMemory, MemoryState, MemoryTable, NodeMemory};
use serde::Deserialize;
use std::collections::BTreeMap;
use units::hash::fnv1a_32;
use units::spew::Dump;
use units::{gojson, strconv};

/// Why a text cannot be used; the words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointFault(pub String);

/// Blocks by container name.
type Blocks = BTreeMap<String, Option<Vec<Block>>>;

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "machineState", default)]
    machine: Option<MachineMemory>,
    #[serde(default)]
    entries: Option<BTreeMap<String, Blocks>>,
    #[serde(default)]
    checksum: u64,
}

/// The file for a state.
pub fn encode(policy: &str, state: &MemoryState) -> String {
    // Go orders keys as text, also those that are numbers.
    let machine: BTreeMap<String, &NodeMemory> =
        state.machine.iter().map(|(id, node)| (id.to_string(), node)).collect();
    let machine = gojson::to_string(&machine).unwrap_or_else(|_| "{}".to_owned());
    let entries = match gojson::to_string(&state.own) {
        Ok(text) if !state.own.is_empty() => format!(r#","entries":{text}"#),
        _ => String::new(),
    };
    format!(
        r#"{{"policyName":{},"machineState":{machine}{entries},"checksum":{}}}"#,
        gojson::quoted(policy),
        checksum(policy, state, NEW_NAME)
    )
}

/// The state in a file written under `policy`.
pub fn decode(text: &str, policy: &str) -> Result<MemoryState, CheckpointFault> {
    let document: Document = serde_json::from_str(text).map_err(|e| {
        CheckpointFault(gojson::syntax_fault(text).unwrap_or_else(|| format!("json: {e}")))
    })?;
    let blocks = |own: Blocks| {
        own.into_iter().map(|(name, blocks)| (name, blocks.unwrap_or_default())).collect()
    };
    let own = document.entries.unwrap_or_default();
    let state = MemoryState {
        machine: document.machine.unwrap_or_default(),
        own: own.into_iter().map(|(uid, own)| (uid, blocks(own))).collect(),
    };
    let sum = |name| u64::from(checksum(&document.policy, &state, name));
    let holds = document.checksum == 0
        || [NEW_NAME, OTHER_NAME].into_iter().any(|name| sum(name) == document.checksum);
    if !holds {
        return Err(CheckpointFault("checkpoint is corrupted".to_owned()));
    }
    if document.policy != policy {
        return Err(CheckpointFault(format!(
            "[memorymanager] configured policy {} differs from state checkpoint policy {}",
            strconv::quote(policy),
            strconv::quote(&document.policy)
        )));
    }
    Ok(state)
}

const NEW_NAME: &str = "*state.MemoryManagerCheckpoint";
/// Some releases hashed the type under this name.
const OTHER_NAME: &str = "*state.MemoryManagerCheckpointV1";

fn checksum(policy: &str, state: &MemoryState, name: &str) -> u32 {
    let machine = state
        .machine
        .iter()
        .map(|(id, node)| (id.to_string(), Dump::Pointer(Box::new(dump_node(node)))));
    let own = state.own.iter().map(|(uid, containers)| {
        let containers = containers.iter().map(|(container, blocks)| {
            (container.clone(), Dump::List(blocks.iter().map(dump_block).collect()))
        });
        (uid.clone(), Dump::Map(containers.collect()))
    });
    let dump = Dump::fields([
        ("PolicyName", "string", Dump::raw(policy)),
        ("MachineState", "state.NUMANodeMap", Dump::Map(machine.collect())),
        ("Entries", "state.ContainerMemoryAssignments", Dump::Map(own.collect())),
        ("Checksum", "checksum.Checksum", Dump::raw(0)),
    ]);
    fnv1a_32(dump.typed(name).as_bytes())
}

fn dump_node(node: &NodeMemory) -> Dump {
    let tables = node
        .tables
        .iter()
        .map(|(kind, table)| (kind.clone(), Dump::Pointer(Box::new(dump_table(table)))));
    Dump::fields([
        ("NumberOfAssignments", "int", Dump::raw(node.assignments)),
        ("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", Dump::Map(tables.collect())),
        ("Cells", "[]int", Dump::List(node.cells.iter().map(Dump::raw).collect())),
    ])
}

fn dump_table(table: &MemoryTable) -> Dump {
    Dump::fields([
        ("TotalMemSize", "uint64", Dump::raw(table.total)),
        ("SystemReserved", "uint64", Dump::raw(table.system_reserved)),
        ("Allocatable", "uint64", Dump::raw(table.allocatable)),
        ("Reserved", "uint64", Dump::raw(table.reserved)),
        ("Free", "uint64", Dump::raw(table.free)),
    ])
}

fn dump_block(block: &Block) -> Dump {
    Dump::fields([
        ("NUMAAffinity", "[]int", Dump::List(block.nodes.iter().map(Dump::raw).collect())),
        ("Type", "v1.ResourceName", Dump::raw(&block.kind)),
        ("Size", "uint64", Dump::raw(block.size)),
    ])
}

#[cfg(test)]
mod tests;
