//! The text of `cpu_manager_state`.
//!
//! Promises: the bytes that the Go kubelet writes for the same state, checksum included; reads what it wrote, also in
//! the old form by container id. Upstream: `CPUManagerCheckpointV1`, `V2` and `V3`.

use super::CpuState;
use crate::topology::Entries;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use units::gojson::{self, Shape};
use units::hash::fnv1a_32;
use units::spew::{Dump, Field};
use units::{CpuSet, strconv};

/// Pod UID and container name of running containers, by container id.
pub type KnownContainers = BTreeMap<String, (String, String)>;

type ByPod = BTreeMap<String, BTreeMap<String, String>>;

/// Why a checkpoint is not usable, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointFault(pub String);

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "E: Deserialize<'de> + Default"))]
struct Document<E> {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "defaultCpuSet", default)]
    shared: String,
    #[serde(default)]
    entries: Option<E>,
    #[serde(default)]
    checksum: u64,
}

const FIELDS: Shape<'_> = (
    "state.CPUManagerCheckpointV1",
    &[
        ("policyName", "string"),
        ("defaultCpuSet", "string"),
        ("entries", "map[string]string"),
        ("checksum", "checksum.Checksum"),
    ],
);

/// By pod UID.
type PodEntries = BTreeMap<String, PodEntry>;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct PodEntry {
    #[serde(rename = "cpuSet", default, skip_serializing_if = "String::is_empty")]
    cpus: String,
}

/// The file for a state.
pub fn encode(policy: &str, state: &CpuState, form: Entries) -> String {
    let entries: ByPod = state
        .own
        .iter()
        .map(|(uid, own)| {
            (uid.clone(), own.iter().map(|(c, cpus)| (c.clone(), cpus.to_string())).collect())
        })
        .collect();
    let shared = state.shared.to_string();
    let pods = (form == Entries::Pods).then_some(&state.pods);
    let checksum = checksum((policy, &shared), &entries, pods, NEW_NAME);
    let mut middle = match gojson::to_string(&entries) {
        Ok(text) if !entries.is_empty() => format!(r#","entries":{text}"#),
        _ => String::new(),
    };
    if let Some(pods) = pods.filter(|pods| !pods.is_empty()) {
        let entry = |cpus: &CpuSet| PodEntry { cpus: cpus.to_string() };
        let pods: PodEntries = pods.iter().map(|(uid, cpus)| (uid.clone(), entry(cpus))).collect();
        if let Ok(text) = gojson::to_string(&pods) {
            middle.push_str(&format!(r#","podEntries":{text}"#));
        }
    }
    format!(
        r#"{{"policyName":{},"defaultCpuSet":{}{middle},"checksum":{checksum}}}"#,
        gojson::quoted(policy),
        gojson::quoted(&shared),
    )
}

/// The state in a file written under `policy`.
pub fn decode(
    text: &str,
    policy: &str,
    known: &KnownContainers,
    form: Entries,
) -> Result<CpuState, CheckpointFault> {
    let (head, pods) = match read_new(text, form) {
        Some((head, pods)) => (head, pods),
        None => (read_old(text, known)?, BTreeMap::new()),
    };
    let (found, shared, entries) = head;
    if found != policy {
        return Err(CheckpointFault(format!(
            "configured policy {} differs from state checkpoint policy {}",
            strconv::quote(policy),
            strconv::quote(&found)
        )));
    }
    let mut state = CpuState {
        shared: shared.parse().map_err(|e| {
            CheckpointFault(format!(
                "could not parse default cpu set {}: {e}",
                strconv::quote(&shared)
            ))
        })?,
        own: BTreeMap::new(),
        pods,
    };
    for (uid, containers) in entries {
        for (container, cpus) in containers {
            let parsed: CpuSet = cpus.parse().map_err(|e| {
                CheckpointFault(format!(
                    "could not parse cpuset {} for container {} in pod {}: {e}",
                    strconv::quote(&cpus),
                    strconv::quote(&container),
                    strconv::quote(&uid)
                ))
            })?;
            state.set(&uid, &container, parsed);
        }
    }
    Ok(state)
}

const NEW_NAME: &str = "*state.CPUManagerCheckpoint";
/// Some releases hashed the type under this name.
const OTHER_NAME: &str = "*state.CPUManagerCheckpointV2";

/// Policy, shared CPUs, and those of containers.
type Head = (String, String, ByPod);

/// Entries may be null, which Go reads as empty.
type Sparse = BTreeMap<String, Option<BTreeMap<String, Option<String>>>>;

/// The format by pod, and the pods' CPUs if `form` includes them: these are used even if the checksum covers only the
/// rest (upstream migrates into what it has read of them).
fn read_new(text: &str, form: Entries) -> Option<(Head, BTreeMap<String, CpuSet>)> {
    let document: Document<Sparse> = gojson::decode(text, FIELDS).ok()?;
    let filled = |own: BTreeMap<String, Option<String>>| {
        own.into_iter().map(|(name, cpus)| (name, cpus.unwrap_or_default())).collect()
    };
    let entries: ByPod = document
        .entries
        .unwrap_or_default()
        .into_iter()
        .map(|(uid, own)| (uid, filled(own.unwrap_or_default())))
        .collect();
    let pods = match form {
        Entries::Pods => pods_of(text),
        Entries::Containers => BTreeMap::new(),
    };
    let head = (document.policy.as_str(), document.shared.as_str());
    let holds = |pods, name| u64::from(checksum(head, &entries, pods, name)) == document.checksum;
    let whole = form == Entries::Pods && holds(Some(&pods), NEW_NAME);
    let rest = document.checksum == 0 || holds(None, NEW_NAME) || holds(None, OTHER_NAME);
    (whole || rest).then(|| ((document.policy.clone(), document.shared.clone(), entries), pods))
}

fn pods_of(text: &str) -> BTreeMap<String, CpuSet> {
    let mut document: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = document.get_mut("podEntries").map(Value::take).unwrap_or_default();
    let entries: PodEntries = serde_json::from_value(entries).unwrap_or_default();
    let read = entries.into_iter().map(|(uid, entry)| Some((uid, entry.cpus.parse().ok()?)));
    read.collect::<Option<_>>().unwrap_or_default()
}

/// The old form: CPUs by container id.
fn read_old(text: &str, known: &KnownContainers) -> Result<Head, CheckpointFault> {
    let document: Document<BTreeMap<String, String>> =
        gojson::decode(text, FIELDS).map_err(|e| CheckpointFault(unfit(text, &e)))?;
    let by_id = document.entries.unwrap_or_default();
    if document.checksum != 0 {
        let flat = by_id.iter().map(|(id, cpus)| (id.clone(), Dump::raw(cpus))).collect();
        let head = (document.policy.as_str(), document.shared.as_str());
        let dump = dumped(head, ("map[string]string", Dump::Map(flat)), None, NEW_NAME);
        if u64::from(dump) != document.checksum {
            return Err(CheckpointFault("checkpoint is corrupted".to_owned()));
        }
    }
    let mut entries = ByPod::new();
    for (id, cpus) in by_id {
        let Some((uid, container)) = known.get(&id) else {
            return Err(CheckpointFault(format!(
                "failed to migrate checkpoint from v1 to v2: containerID '{id}' not found in initial \
                 containers list"
            )));
        };
        entries.entry(uid.clone()).or_default().insert(container.clone(), cpus);
    }
    Ok((document.policy, document.shared, entries))
}

/// Go's error text for JSON of another shape.
fn unfit(text: &str, error: &serde_json::Error) -> String {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let mut own = document["entries"].as_object().into_iter().flat_map(serde_json::Map::values);
    let kind = own.find_map(|value| match value {
        Value::Object(_) => Some("object"),
        Value::Array(_) => Some("array"),
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) | Value::Null => None,
    });
    match kind {
        Some(kind) => format!(
            "json: cannot unmarshal {kind} into Go struct field CPUManagerCheckpointV1.entries of type string"
        ),
        None => gojson::fault(text, error),
    }
}

fn checksum(
    head: (&str, &str),
    entries: &ByPod,
    pods: Option<&BTreeMap<String, CpuSet>>,
    name: &str,
) -> u32 {
    let inner = |own: &BTreeMap<String, String>| {
        Dump::Map(
            own.iter().map(|(container, cpus)| (container.clone(), Dump::raw(cpus))).collect(),
        )
    };
    let dump = Dump::Map(entries.iter().map(|(uid, own)| (uid.clone(), inner(own))).collect());
    let pods = pods.map(|pods| {
        Dump::Map(pods.iter().map(|(uid, cpus)| (uid.clone(), dump_pod(cpus))).collect())
    });
    dumped(head, ("map[string]map[string]string", dump), pods, name)
}

fn dump_pod(cpus: &CpuSet) -> Dump {
    let elements = cpus.iter().map(|cpu| (cpu.to_string(), Dump::Struct(Vec::new()))).collect();
    let set = Dump::fields([("elems", "map[int]struct {}", Dump::Map(elements))]);
    Dump::fields([("CPUSet", "cpuset.CPUSet", set)])
}

fn dumped(
    (policy, shared): (&str, &str),
    entries: (&'static str, Dump),
    pods: Option<Dump>,
    name: &str,
) -> u32 {
    let field = |name, go_type, value| Field { name, go_type, value };
    let mut fields = vec![
        field("PolicyName", "string", Dump::raw(policy)),
        field("DefaultCPUSet", "string", Dump::raw(shared)),
        field("Entries", entries.0, entries.1),
    ];
    fields.extend(pods.map(|pods| field("PodEntries", "state.PodCPUAssignments", pods)));
    fields.push(field("Checksum", "checksum.Checksum", Dump::raw(0)));
    fnv1a_32(Dump::Struct(fields).typed(name).as_bytes())
}

#[cfg(test)]
mod tests;
