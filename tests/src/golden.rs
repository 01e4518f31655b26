//! Golden records: what the Go kubelet did with one pod, and how to give the same pod to another.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::{Map, Value, json};
use testkit::real::KubeletKind;

use crate::compare::Observed;
use crate::script::{self, Step};

/// The namespace of all golden pods.
pub const NAMESPACE: &str = "golden";

/// Folders of records below `fixtures/golden`.
const FOLDERS: [(&str, Set); 3] =
    [("pods", Set::Core), ("pods-more", Set::More), ("pods-rare", Set::Rare)];

/// How many of the records are run, from few to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Recorded before this project began.
    Core,
    /// Recorded by its own recording (`RECORD=1`).
    More,
    /// Unusual ones.
    Rare,
}

/// One record of `fixtures/golden`.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Its file.
    pub path: PathBuf,
    /// What the client did to the pod while it lived.
    pub script: Vec<Step>,
    /// The parts of the record that say so, as they are in the file.
    given: Map<String, Value>,
    /// Its folder.
    pub set: Set,
    /// Goes round in a cycle: the record stops it at some point of it.
    pub cycles: bool,
    /// Name of the pod and of the file.
    pub name: String,
    /// The pod as the API server had stored it.
    pub pod: Value,
    /// The mutating CRI calls in order.
    pub cri: Vec<Value>,
    /// Each status a watcher saw, in short form.
    pub steps: Vec<Value>,
    /// The whole status before the pod was deleted.
    pub status: Value,
    /// Its events.
    pub events: Vec<Value>,
}

/// All records, by name, with those that are still to be made.
pub fn load_all() -> anyhow::Result<Vec<Golden>> {
    let mut all = Vec::new();
    for (folder, set) in FOLDERS {
        let dir = testkit::real::repository_root().join("fixtures/golden").join(folder);
        for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            all.push(Golden { set, ..load(entry?.path())? });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = all.windows(2).find(|pair| pair[0].name == pair[1].name) {
        anyhow::bail!("two records have the name {}", pair[0].name);
    }
    Ok(all)
}

fn load(path: PathBuf) -> anyhow::Result<Golden> {
    let text = std::fs::read_to_string(&path)?;
    let record: Value = serde_json::from_str(&text)?;
    let mut golden = Golden::of(path, &record)?;
    golden.script.extend(known_change(&golden.name));
    golden.cycles |= CYCLES.contains(&golden.name.as_str());
    Ok(golden)
}

/// Pods of the first folder that go round in a cycle.
const CYCLES: &[&str] = &["crashloop", "init-fails-always", "poststart-fails", "liveness-fails"];

/// What the client did to the running pods of the first folder.
fn known_change(name: &str) -> Option<Step> {
    match name {
        "resize-cpu" => {
            let amount = json!({ "cpu": "200m" });
            let resources = json!({ "limits": amount, "requests": amount });
            let patch = json!({ "spec": { "containers": [
                { "name": "main", "resources": resources }
            ]}});
            Some(Step::change("resize", patch))
        }
        "ephemeral-container" => {
            let container = json!({
                "name": "dbg",
                "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "command": ["sh", "-c", "sleep 2"],
            });
            let patch = json!({ "spec": { "ephemeralContainers": [container] } });
            Some(Step::change("ephemeralcontainers", patch))
        }
        _ => None,
    }
}

impl Golden {
    /// What a record says that is in this file or would be.
    pub fn of(path: PathBuf, record: &Value) -> anyhow::Result<Golden> {
        let name = path.file_stem().and_then(|stem| stem.to_str()).context("file name")?.to_owned();
        let list = |key: &str| record[key].as_array().cloned().unwrap_or_default();
        let given = ["change", "script", "cycles"];
        let given =
            given.iter().filter_map(|key| Some(((*key).to_owned(), record.get(key)?.clone())));
        Ok(Golden {
            script: script::steps(record).context(name.clone())?,
            given: given.collect(),
            cycles: record["cycles"] == true,
            set: Set::Core,
            pod: record["pod"].clone(),
            cri: list("cri"),
            steps: list("status_steps"),
            status: record["status_before_delete"].clone(),
            events: list("events"),
            name,
            path,
        })
    }

    /// The pod as a client would create it.
    #[must_use]
    pub fn manifest(&self) -> Value {
        let mut pod = self.pod.clone();
        if let Some(pod) = pod.as_object_mut() {
            pod.remove("status");
        }
        if let Some(meta) = pod["metadata"].as_object_mut() {
            meta.retain(|key, _| {
                !["creationTimestamp", "generation", "uid"].contains(&key.as_str())
            });
        }
        pod
    }

    /// How often the state that was recorded before the deletion had been reached by then.
    #[must_use]
    pub fn rounds_before_delete(&self) -> usize {
        let target = short_status(&self.status);
        self.steps.iter().filter(|step| **step == target).count().max(1)
    }

    /// Whether the Go kubelet's part is there.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        !self.steps.is_empty()
    }

    /// The record with what was observed of the Go kubelet.
    #[must_use]
    pub fn observed(&self, pod: Value, observed: Observed) -> Golden {
        let Observed { cri, steps, status, events, brief: _ } = observed;
        Golden { pod, cri, steps, status, events, ..self.clone() }
    }

    /// The record as something observed, to compare it with another.
    #[must_use]
    pub fn as_observed(&self) -> Observed {
        let Golden { cri, steps, status, events, .. } = self.clone();
        Observed { cri, steps, status, events, brief: false }
    }

    /// Writes the file anew.
    pub fn write(&self) -> anyhow::Result<()> {
        let mut record = json!({
            "cri": self.cri,
            "events": self.events,
            "pod": self.pod,
            "status_before_delete": self.status,
            "status_steps": self.steps,
        });
        if let Some(record) = record.as_object_mut() {
            record.extend(self.given.clone());
        }
        let text = serde_json::to_string_pretty(&record)? + "\n";
        std::fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }
}

/// The Go kubelet's record in a file below `fixtures/golden`; `KUBELET=go RECORD=1` writes what was
/// seen there instead.
pub fn recorded(file: &str, seen: &Value) -> anyhow::Result<Option<Value>> {
    let path = testkit::real::repository_root().join("fixtures/golden").join(file);
    if KubeletKind::from_env()? == KubeletKind::Go && std::env::var_os("RECORD").is_some() {
        let folder = path.parent().context("a record without a folder")?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, serde_json::to_string_pretty(seen)? + "\n")?;
        return Ok(None);
    }
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// The objects that golden pods refer to.
#[must_use]
pub fn objects() -> Vec<Value> {
    let config = |name: &str, data: Value| {
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
    };
    let secret = |name: &str, data: Value| {
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data })
    };
    let claim = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": { "requests": { "storage": "1Mi" } } },
        })
    };
    let runtime_class = |name: &str, handler: &str| {
        let metadata = json!({ "name": name });
        json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": handler })
    };
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        config("cm1", json!({ "1bad.key": "z", "k1": "v1", "k2": "v2" })),
        config("cm2", json!({ "a": "from cm2", "b": "unused" })),
        config("cm3", json!({ "c": "from cm3" })),
        secret("s1", json!({ "user": "bob", "pw": "hunter2" })),
        secret("s2", json!({ "password": "hunter2" })),
        secret("s3", json!({ "token": "t" })),
        config(
            "odd-keys",
            json!({ "-x": "1", ".dot": "2", "1": "3", "UP_low": "4", "_": "5", "a.b": "6" }),
        ),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "mixed", "namespace": NAMESPACE },
            "data": { "plain": "text" }, "binaryData": { "raw": "//54" },
        }),
        // Two bytes that are no text, and a letter.
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "binary", "namespace": NAMESPACE },
            "data": { "bytes": "//54", "text": "dGV4dA==" },
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": { "name": "pull-empty", "namespace": NAMESPACE },
            "stringData": { ".dockerconfigjson": "{\"auths\":{}}" },
        }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": { "name": "pull-odd", "namespace": NAMESPACE },
            "stringData": { ".dockerconfigjson": "{\"auths\":{\"registry.k8s.io\":{\"auth\":\"!!\"}}}" },
        }),
        claim("unbound"),
        // Has the name of the claim behind a volume `data` of that pod, but is not the pod's.
        claim("volume-ephemeral-foreign-data"),
        runtime_class("plain", "runc"),
        runtime_class("odd", "no-such-handler"),
    ]
}

/// A status in the short form of `status_steps`.
#[must_use]
pub fn short_status(status: &Value) -> Value {
    let conditions: Map<String, Value> = items(&status["conditions"])
        .filter_map(|c| {
            let reason = c["reason"].as_str().unwrap_or_default();
            Some((c["type"].as_str()?.to_owned(), json!([c["status"], reason])))
        })
        .collect();
    let containers = |key: &str| -> Map<String, Value> {
        items(&status[key])
            .filter_map(|c| Some((c["name"].as_str()?.to_owned(), short_container(c))))
            .collect()
    };
    json!({
        "conditions": conditions,
        "ephemeral": containers("ephemeralContainerStatuses"),
        "init": containers("initContainerStatuses"),
        "main": containers("containerStatuses"),
        "phase": status["phase"],
        "reason": status["reason"],
    })
}

fn short_container(container: &Value) -> Value {
    let state = container["state"].as_object().and_then(|state| state.iter().next());
    let (kind, detail) = state.map_or(("", &Value::Null), |(kind, detail)| (kind.as_str(), detail));
    let reason = detail["reason"].as_str().unwrap_or_default();
    json!([kind, reason, container["ready"], container["started"], container["restartCount"]])
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
