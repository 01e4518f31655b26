//! Manifests, good and bad, as the Go kubelet's own validation judged them: we accept the same ones, give them the
//! same UIDs and name the same faults in the same words.
//!
//! `fixtures/golden/static-pods/` has some manifests (`bases.json`) and on each line of `cases.jsonl` changes to one of
//! them with the faults, or the UID, that were recorded for the outcome.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test binary")]

use engine::static_pod::{Rules, StaticOrigin, StaticPodError, StaticSettings, prepare};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Deserialize)]
struct Case {
    base: String,
    /// JSON pointers with what is put there; `null` takes the entry away.
    changes: Vec<(String, Value)>,
    faults: Vec<String>,
    /// Who the Go kubelet says the pod is, where there are no faults.
    #[serde(default)]
    uid: String,
}

/// What became of a manifest.
#[derive(Debug, Default, PartialEq)]
struct Judgement {
    faults: BTreeSet<String>,
    uid: String,
}

impl Judgement {
    fn fault(text: String) -> Self {
        Self { faults: [text].into(), uid: String::new() }
    }
}

fn change(manifest: &mut Value, pointer: &str, value: &Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    match manifest.pointer_mut(parent).unwrap() {
        Value::Object(fields) if value.is_null() => drop(fields.remove(&key).unwrap()),
        Value::Object(fields) => drop(fields.insert(key, value.clone())),
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value.clone(),
        other => panic!("{pointer} is in {other}"),
    }
}

fn judge(manifest: &Value) -> Judgement {
    let pod = match serde_json::from_value(manifest.clone()) {
        Ok(pod) => pod,
        Err(_) => return Judgement::fault("unreadable".to_owned()),
    };
    let settings = StaticSettings {
        node_name: "node1".to_owned(),
        refuse_api_references: false,
        rules: Rules::default(),
    };
    match prepare(pod, &StaticOrigin::File("/manifests/a.yaml"), &settings) {
        Ok(pod) => Judgement { faults: BTreeSet::new(), uid: pod.metadata.uid.unwrap_or_default() },
        Err(StaticPodError::NoName) => Judgement::fault("name is needed for the pod".to_owned()),
        Err(StaticPodError::Invalid(faults)) => {
            let faults = faults.iter().map(|fault| without_structures(&fault.to_string()));
            Judgement { faults: faults.collect(), uid: String::new() }
        }
        Err(other) => Judgement::fault(other.to_string()),
    }
}

/// Go prints whole structures with the names of its own fields, we as JSON: only the rest is compared.
fn without_structures(fault: &str) -> String {
    let begin = ["Invalid value: {", "Invalid value: ["].iter().find_map(|b| fault.find(b));
    match (begin, fault.rfind("}: ").or_else(|| fault.rfind("]: "))) {
        (Some(begin), Some(end)) if begin < end => format!("{}…{}", &fault[..begin], &fault[end..]),
        _ => fault.to_owned(),
    }
}

#[test]
fn manifests_are_judged_as_the_go_kubelet_judges_them() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden/static-pods");
    let folder = std::env::var("STATIC_POD_CASES").map_or(folder, Into::into);
    let bases = std::fs::read_to_string(folder.join("bases.json")).unwrap();
    let bases: BTreeMap<String, Value> = serde_json::from_str(&bases).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in std::fs::read_to_string(folder.join("cases.jsonl")).unwrap().lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let mut manifest = bases[&case.base].clone();
        case.changes.iter().for_each(|(pointer, value)| change(&mut manifest, pointer, value));
        let found = judge(&manifest);
        count += 1;
        // What Go could not even read has no list of faults: quantities we read later than Go does.
        let unread = case.faults.iter().any(|fault| fault.starts_with("DECODE "));
        let faults = case.faults.iter().map(|fault| without_structures(fault)).collect();
        let recorded = Judgement { faults, uid: case.uid.clone() };
        if (unread && found.faults.is_empty()) || (!unread && found != recorded) {
            wrong.push(format!("{line}\n  ours: {found:?}"));
        }
    }
    assert!(count > 1000, "only {count} cases");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
