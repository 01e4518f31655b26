//! Some 1,200 command lines and files, each with the Go kubelet's own answer.
//!
//! The answers were recorded with every case's arguments followed by [`COMMON`], on a cgroup v1
//! host without a runtime socket: a case without an error got as far as connecting to the runtime.

use super::*;
use crate::testing::MemoryFiles;
use serde::Deserialize;

const CASES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/config/cases.jsonl"));

const COMMON: [&str; 5] = [
    "-v=5",
    "--root-dir=/root-dir",
    "--cert-dir=/pki",
    "--fail-cgroupv1=false",
    "--container-runtime-endpoint=unix:///none.sock",
];

#[derive(Deserialize)]
struct Case {
    args: Vec<String>,
    files: BTreeMap<String, String>,
    /// What it failed with.
    #[serde(default)]
    error: Option<String>,
    /// Values that differ from a run without arguments.
    #[serde(default)]
    config: BTreeMap<String, Value>,
    /// What a strict reader objected to.
    #[serde(default)]
    lenient: Option<String>,
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s" || text == "0",
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(true) => false,
    }
}

fn check(case: &Case) -> Result<(), String> {
    let args = case.args.iter().map(String::as_str).chain(COMMON);
    let answer = load(args, &MemoryFiles::new(&case.files), CgroupVersion::V1);
    let lenient = answer.lines.iter().find(|line| line.message.starts_with("Using lenient"));
    let lenient = lenient.map(|line| match &line.values[..] {
        [("err", crate::LogValue::Text(text))] => text.clone(),
        other => panic!("{other:?}"),
    });
    if lenient != case.lenient {
        return Err(format!("strict reader: {lenient:?}"));
    }
    let result = match answer.result {
        Ok(Request::Run(config)) if config.faults.callers.is_some() => {
            let fault = config.faults.callers.unwrap();
            Err(LoadError(format!("failed to run Kubelet: {fault}")))
        }
        other => other,
    };
    match (&case.error, result) {
        // Files that settings name are opened by whoever uses them.
        (Some(error), _) if error.starts_with("failed to run Kubelet: open ") => Ok(()),
        (Some(error), Err(ours)) => {
            let ours = ours.to_string();
            let panicked = error.strip_prefix("PANIC ").is_some_and(|text| ours.contains(text));
            if panicked || ours == *error { Ok(()) } else { Err(ours) }
        }
        (Some(_), Ok(_)) => Err("was taken".to_owned()),
        (None, Err(ours)) => Err(ours.to_string()),
        (None, Ok(Request::Print(_) | Request::Leave(_))) => Err("printed something".to_owned()),
        (None, Ok(Request::Run(config))) => {
            let json = serde_json::to_value(config.kubelet.masked()).unwrap_or_default();
            for (path, theirs) in &case.config {
                let pointer = format!("/{}", path.replace('.', "/"));
                let ours = json.pointer(&pointer).unwrap_or(&Value::Null);
                if ours != theirs && !(empty(ours) && empty(theirs)) {
                    return Err(format!("{path}: {ours}, upstream {theirs}"));
                }
            }
            Ok(())
        }
    }
}

#[test]
fn every_case_gets_the_go_kubelets_answer() {
    let mut wrong = Vec::new();
    let mut cases = 0;
    for line in CASES.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        cases += 1;
        if let Err(ours) = check(&case) {
            let (args, files) = (&case.args, &case.files);
            wrong.push(format!("{args:?} {files:?}\n  go   {:?}\n  ours {ours}", case.error));
        }
    }
    assert!(cases > 1000, "only {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}
