//! The text of `memory_manager_state`.
//!
//! Promises: the bytes that the Go kubelet writes for the same state, checksum included; reads what it wrote. Upstream:
//! `MemoryManagerCheckpointV1` and `V2`.

use super::{Block, MachineMemory, MemoryState, MemoryTable, NodeMemory};
use crate::topology::Entries;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::gojson::{self, Shape};
use units::hash::fnv1a_32;
use units::spew::{Dump, Field};
use units::strconv;

/// Why a checkpoint is not usable, in upstream's words.
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
    #[serde(rename = "podEntries", default)]
    pods: Option<BTreeMap<String, PodEntry>>,
    #[serde(default)]
    checksum: u64,
}

const FIELDS: Shape<'_> = (
    "state.MemoryManagerCheckpointV1",
    &[
        ("policyName", "string"),
        ("machineState", "state.NUMANodeMap"),
        ("entries", "state.ContainerMemoryAssignments"),
        ("podEntries", "state.PodMemoryAssignments"),
        ("checksum", "checksum.Checksum"),
    ],
);

#[derive(Debug, Serialize, Deserialize)]
struct PodEntry {
    #[serde(rename = "memoryBlocks", default, skip_serializing_if = "Option::is_none")]
    blocks: Option<Vec<Block>>,
}

/// The file for a state.
pub fn encode(policy: &str, state: &MemoryState, form: Entries) -> String {
    // Go orders keys as text, also those that are numbers.
    let machine: BTreeMap<String, &NodeMemory> =
        state.machine.iter().map(|(id, node)| (id.to_string(), node)).collect();
    let machine = gojson::to_string(&machine).unwrap_or_else(|_| "{}".to_owned());
    let mut entries = match gojson::to_string(&state.own) {
        Ok(text) if !state.own.is_empty() => format!(r#","entries":{text}"#),
        _ => String::new(),
    };
    if form == Entries::Pods && !state.pods.is_empty() {
        let entry = |blocks: &Vec<Block>| PodEntry {
            blocks: Some(blocks.clone()).filter(|blocks| !blocks.is_empty()),
        };
        let pods: BTreeMap<&str, PodEntry> =
            state.pods.iter().map(|(uid, blocks)| (uid.as_str(), entry(blocks))).collect();
        if let Ok(text) = gojson::to_string(&pods) {
            entries.push_str(&format!(r#","podEntries":{text}"#));
        }
    }
    format!(
        r#"{{"policyName":{},"machineState":{machine}{entries},"checksum":{}}}"#,
        gojson::quoted(policy),
        checksum(policy, state, form, NEW_NAME)
    )
}

/// The state in a file written under `policy`.
pub fn decode(text: &str, policy: &str, form: Entries) -> Result<MemoryState, CheckpointFault> {
    let document: Document =
        gojson::decode(text, FIELDS).map_err(|e| CheckpointFault(gojson::fault(text, &e)))?;
    let blocks = |own: Blocks| {
        own.into_iter().map(|(name, blocks)| (name, blocks.unwrap_or_default())).collect()
    };
    let own = document.entries.unwrap_or_default();
    let pods = document.pods.unwrap_or_default().into_iter();
    let mut state = MemoryState {
        machine: document.machine.unwrap_or_default(),
        own: own.into_iter().map(|(uid, own)| (uid, blocks(own))).collect(),
        pods: pods.map(|(uid, entry)| (uid, entry.blocks.unwrap_or_default())).collect(),
    };
    let sum = |form, name| u64::from(checksum(&document.policy, &state, form, name));
    let has_pods = form == Entries::Pods && sum(Entries::Pods, NEW_NAME) == document.checksum;
    let holds = has_pods
        || document.checksum == 0
        || [NEW_NAME, OTHER_NAME]
            .into_iter()
            .any(|name| sum(Entries::Containers, name) == document.checksum);
    if !holds {
        return Err(CheckpointFault("checkpoint is corrupted".to_owned()));
    }
    // Pod entries are used if `form` includes them, even if the checksum covers only the rest.
    if form == Entries::Containers {
        state.pods.clear();
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

fn checksum(policy: &str, state: &MemoryState, form: Entries, name: &str) -> u32 {
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
    let pods = state.pods.iter().map(|(uid, blocks)| {
        let list = Dump::List(blocks.iter().map(dump_block).collect());
        (uid.clone(), Dump::fields([("MemoryBlocks", "[]state.Block", list)]))
    });
    let field = |name, go_type, value| Field { name, go_type, value };
    let mut fields = vec![
        field("PolicyName", "string", Dump::raw(policy)),
        field("MachineState", "state.NUMANodeMap", Dump::Map(machine.collect())),
        field("Entries", "state.ContainerMemoryAssignments", Dump::Map(own.collect())),
    ];
    if form == Entries::Pods {
        let pods = Dump::Map(pods.collect());
        fields.push(field("PodEntries", "state.PodMemoryAssignments", pods));
    }
    fields.push(field("Checksum", "checksum.Checksum", Dump::raw(0)));
    fnv1a_32(Dump::Struct(fields).typed(name).as_bytes())
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
