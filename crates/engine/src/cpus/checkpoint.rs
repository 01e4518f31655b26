//! The text of `cpu_manager_state`.
//!
//! Promises: the bytes that the Go kubelet writes for the same state, checksum included; reads what it wrote, also in
//! the old form by container id. Upstream: `CPUManagerCheckpointV1`, `V2` and `V3`.

use super::CpuState;
use crate::topology::Entries;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::hash::fnv1a_32;
use units::spew::{Dump, Field};
use units::{CpuSet, gojson, strconv};

/// Pod UID and container name by container id, of what runs already.
pub type KnownContainers = BTreeMap<String, (String, String)>;

type ByPod = BTreeMap<String, BTreeMap<String, String>>;

/// Why a text cannot be used; the words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointFault(pub String);

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "E: Deserialize<'de> + Default"))]
struct Document<E> {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "defaultCpuSet", default)]
    shared: String,
    #[serde(default)]
    entries: Option<E>,
    #[serde(rename = "podEntries", default, skip_serializing_if = "Option::is_none")]
    pods: Option<PodEntries>,
    #[serde(default)]
    checksum: u64,
}

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
    let newest = if form == Entries::Pods { read_pods(text) } else { None };
    let (document, pods) = match newest {
        Some((document, pods)) => (Some(document), pods),
        None => (read_new(text), BTreeMap::new()),
    };
    let (found, shared, entries) = match document {
        Some(document) => (document.policy, document.shared, document.entries.unwrap_or_default()),
        None => read_old(text, known)?,
    };
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

fn read_new(text: &str) -> Option<Document<ByPod>> {
    let document: Document<ByPod> = serde_json::from_str(text).ok()?;
    let entries = document.entries.clone().unwrap_or_default();
    let head = (document.policy.as_str(), document.shared.as_str());
    let sum = |name| checksum(head, &entries, None, name);
    let holds = document.checksum == 0
        || [NEW_NAME, OTHER_NAME].into_iter().any(|name| u64::from(sum(name)) == document.checksum);
    holds.then_some(document)
}

/// The form with CPUs of pods, and those.
fn read_pods(text: &str) -> Option<(Document<ByPod>, BTreeMap<String, CpuSet>)> {
    let document: Document<ByPod> = serde_json::from_str(text).ok()?;
    let pods = document.pods.iter().flatten();
    let pods: BTreeMap<String, CpuSet> = pods
        .map(|(uid, entry)| Some((uid.clone(), entry.cpus.parse().ok()?)))
        .collect::<Option<_>>()?;
    let entries = document.entries.clone().unwrap_or_default();
    let head = (document.policy.as_str(), document.shared.as_str());
    let holds = u64::from(checksum(head, &entries, Some(&pods), NEW_NAME)) == document.checksum;
    holds.then_some((document, pods))
}

/// The old form: CPUs by container id.
fn read_old(
    text: &str,
    known: &KnownContainers,
) -> Result<(String, String, ByPod), CheckpointFault> {
    let document: Document<BTreeMap<String, String>> = serde_json::from_str(text).map_err(|e| {
        CheckpointFault(gojson::syntax_fault(text).unwrap_or_else(|| unfit(text, &e)))
    })?;
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

/// Go's words for JSON of another shape.
fn unfit(text: &str, error: &serde_json::Error) -> String {
    let value: serde_json::Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => return error.to_string(),
    };
    let kind = |value: &serde_json::Value| match value {
        serde_json::Value::Object(_) => "object",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::String(_) => "string",
        serde_json::Value::Bool(_) => "bool",
        serde_json::Value::Number(_) | serde_json::Value::Null => "number",
    };
    let Some(document) = value.as_object() else {
        let what = kind(&value);
        return format!(
            "json: cannot unmarshal {what} into Go value of type state.CPUManagerCheckpointV1"
        );
    };
    let field = |name: &str, found: &serde_json::Value, wanted: &str| {
        format!(
            "json: cannot unmarshal {} into Go struct field CPUManagerCheckpointV1.{name} of type {wanted}",
            kind(found)
        )
    };
    for (name, found) in document {
        let fault = match name.as_str() {
            "policyName" | "defaultCpuSet" if !found.is_string() && !found.is_null() => {
                Some(field(name, found, "string"))
            }
            "entries" => match found {
                serde_json::Value::Object(entries) => entries
                    .values()
                    .find(|value| !value.is_string() && !value.is_null())
                    .map(|value| field(name, value, "string")),
                serde_json::Value::Null => None,
                other => Some(field(name, other, "map[string]string")),
            },
            "checksum" if !found.is_u64() && !found.is_null() => {
                Some(field(name, found, "checksum.Checksum"))
            }
            _ => None,
        };
        if let Some(fault) = fault {
            return fault;
        }
    }
    error.to_string()
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
