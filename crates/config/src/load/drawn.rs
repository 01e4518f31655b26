//! Cases drawn by chance, each with the Go kubelet's own answer (`make config-compare` draws more).
//!
//! `RECORD=file CASES=n SEED=n make config-compare` wrote them, on a cgroup v1 host: a case that is
//! good got as far as the runtime's socket, which is not there. `DRAWN=file` replays another file.

use super::*;
use serde_json::json;
use std::collections::BTreeSet;

const CASES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/config/drawn.jsonl"));

/// What every case's arguments begin with.
const COMMON: [&str; 5] = [
    "-v=5",
    "--root-dir=/mnt/root",
    "--cert-dir=/mnt/pki",
    "--fail-cgroupv1=false",
    "--container-runtime-endpoint=unix:///mnt/none.sock",
];

/// The end of a good configuration.
const NO_RUNTIME: &str = "failed to run Kubelet: validate service connection: ";

/// Files and folders below `/mnt`.
struct Files {
    content: BTreeMap<String, Vec<u8>>,
    folders: BTreeSet<String>,
}

impl Files {
    fn of(files: &Value) -> Self {
        let mut found = Self { content: BTreeMap::new(), folders: BTreeSet::new() };
        found.folders.insert("/mnt".to_owned());
        for (path, content) in files.as_object().into_iter().flatten() {
            let full = format!("/mnt/{}", path.trim_start_matches('!'));
            let folder = full.strip_suffix('/');
            let mut parent = folder.unwrap_or(full.rsplit_once('/').unwrap().0);
            while parent != "/mnt" {
                found.folders.insert(parent.to_owned());
                parent = parent.rsplit_once('/').unwrap().0;
            }
            if folder.is_none() {
                let bytes = match content {
                    Value::String(text) => text.clone().into_bytes(),
                    other => serde_json::from_value(other.clone()).unwrap(),
                };
                found.content.insert(full, bytes);
            }
        }
        found
    }

    fn absolute(path: &str) -> String {
        text::absolute_path("/mnt", path)
    }

    fn descend(&self, path: &str, found: &mut Vec<String>) {
        let full = Self::absolute(path);
        if self.content.contains_key(&full) {
            found.push(path.to_owned());
            return;
        }
        let below = format!("{full}/");
        let names = self.content.keys().chain(&self.folders);
        let names = names.filter_map(|p| p.strip_prefix(&below)?.split('/').next());
        for name in names.collect::<BTreeSet<_>>() {
            self.descend(&text::clean_path(&format!("{path}/{name}")), found);
        }
    }
}

impl ConfigFiles for Files {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let full = Self::absolute(path);
        match self.content.get(&full) {
            _ if self.folders.contains(&full) || full == "/" => {
                Err(format!("read {path}: is a directory"))
            }
            Some(_) if path.ends_with('/') => Err(format!("open {path}: not a directory")),
            Some(content) => Ok(content.clone()),
            None if full == "/dev/null" => Ok(Vec::new()),
            None => Err(format!("open {path}: no such file or directory")),
        }
    }

    fn walk(&self, path: &str) -> Result<Vec<String>, String> {
        let full = Self::absolute(path);
        if !self.folders.contains(&full) && !self.content.contains_key(&full) {
            return Err(format!("lstat {path}: no such file or directory"));
        }
        let mut found = Vec::new();
        self.descend(path, &mut found);
        Ok(found)
    }

    fn working_dir(&self) -> String {
        "/mnt".to_owned()
    }
}

/// As the log writes an error.
fn logged(error: &str) -> String {
    let line = LogLine::info("").with("err", error).to_string();
    line.strip_prefix("\"\" err=").unwrap().to_owned()
}

/// Upstream walks maps in no particular order.
fn sorted(text: &str) -> Vec<&str> {
    let marks = [',', ';', '[', ']', '"', '\n'];
    let mut parts: Vec<&str> =
        text.split(marks).flat_map(|part| part.split(": ")).map(str::trim).collect();
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable();
    parts
}

fn difference(case: &Value) -> Option<String> {
    let args = case["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let files = Files::of(&case["files"]);
    let answer = load(COMMON.into_iter().chain(args), &files, CgroupVersion::V1);
    let fatal = case["answer"]["fatal"].as_str().unwrap_or_default();
    let ours = match &answer.result {
        Err(error) => logged(&error.to_string()),
        Ok(Request::Print(_) | Request::Leave(_)) => String::new(),
        Ok(Request::Run(config)) => match &config.faults.callers {
            Some(fault) => logged(&format!("failed to run Kubelet: {fault}")),
            None => format!("\"{NO_RUNTIME}"),
        },
    };
    if let Some(panic) = fatal.strip_prefix("panic: ") {
        return (!ours.replace("\\\"", "\"").contains(panic)).then_some(ours);
    }
    let runs = ours.starts_with(&format!("\"{NO_RUNTIME}"));
    let theirs = if runs && fatal.starts_with(&ours) { &ours } else { fatal };
    if sorted(theirs) != sorted(&ours) {
        return Some(ours);
    }
    let verbosity = answer.logging.as_ref().map_or(0, |logging| logging.verbosity);
    let lines: Vec<String> = answer
        .lines
        .iter()
        .filter(|line| !line.plain && line.message != "KubeletConfiguration")
        .filter(|line| match line.severity {
            Severity::Info(at) => u32::from(at) <= verbosity,
            Severity::Error => true,
        })
        .map(|line| match line.severity {
            Severity::Error => format!("E {line}"),
            Severity::Info(_) => format!("I {line}"),
        })
        .collect();
    let none = json!([]);
    let wanted = case["answer"].get("lines").unwrap_or(&none);
    let of = |lines: &Value| -> BTreeSet<String> {
        lines.as_array().unwrap().iter().map(|l| l.as_str().unwrap().to_owned()).collect()
    };
    (of(wanted) != of(&json!(lines))).then(|| format!("lines {lines:?}, upstream {wanted}"))
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a person names the file to replay")]
fn every_drawn_case_gets_the_go_kubelets_answer() {
    let other = std::env::var_os("DRAWN").map(|file| std::fs::read_to_string(file).unwrap());
    let cases = other.as_deref().unwrap_or(CASES);
    let (mut count, mut wrong) = (0, Vec::new());
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        count += 1;
        if let Some(ours) = difference(&case) {
            let (args, files) = (&case["args"], &case["files"]);
            let theirs = &case["answer"]["fatal"];
            wrong.push(format!("{args} {files}\n  go   {theirs}\n  ours {ours}"));
        }
    }
    assert!(count > 100, "only {count} cases");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
