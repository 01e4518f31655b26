//! Config maps, secrets and labels that change, vanish and come back while a pod uses them: what stands in its volumes
//! and what its events tell, under both kubelets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const PATIENCE: Duration = Duration::from_secs(120);
/// More than three looks of a kubelet at a pod that runs.
const LOOKS: Duration = Duration::from_secs(20);

struct RecordingNode {
    control: Arc<ControlPlane>,
    node: TestNode,
    uid: String,
}

fn config(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": name, "namespace": "default"}})
}

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "stringData": data,
        "metadata": {"name": name, "namespace": "default"}})
}

fn pod() -> Value {
    let projected = json!({"sources": [
        {"configMap": {"name": "a"}},
        {"secret": {"name": "s", "items": [{"key": "user", "path": "deep/user", "mode": 256}]}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"configMap": {"name": "later", "optional": true}},
    ]});
    let volumes = json!([
        {"name": "a", "configMap": {"name": "a"}}, {"name": "s", "secret": {"secretName": "s"}},
        {"name": "projected", "projected": projected},
        {"name": "later", "configMap": {"name": "later", "optional": true}},
        {"name": "fixed", "configMap": {"name": "fixed"}},
        {"name": "listed", "configMap": {"name": "listed", "items": [{"key": "k", "path": "x/y"}]}},
        {"name": "maybe", "configMap": {"name": "listed", "optional": true,
            "items": [{"key": "k", "path": "k"}, {"key": "other", "path": "other"}]}},
    ]);
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({"name": name, "mountPath": format!("/mnt/{name}")})
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": {"l": "one"}},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "volumes": volumes,
            "containers": [{"name": "c", "image": IMAGE, "volumeMounts": mounts,
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]}]
        }
    })
}

impl RecordingNode {
    fn start(kind: KubeletKind) -> RecordingNode {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let mut fixed = config("fixed", &json!({"f": "first"}));
        fixed["immutable"] = json!(true);
        let objects = [
            config("a", &json!({"k1": "v1", "k2": "v2"})),
            secret("s", &json!({"user": "bob", "pw": "x"})),
            fixed,
            config("listed", &json!({"k": "v", "other": "o"})),
        ];
        for object in objects {
            control.create(&object).unwrap();
        }
        let config = json!({"syncFrequency": "5s"});
        let node = TestNode::builder()
            .kubelet(kind)
            .image(IMAGE.trim_start_matches("registry.k8s.io/"))
            .options(KubeletOptions { config, ..KubeletOptions::default() })
            .join(&control)
            .start()
            .unwrap();
        control.create(&pod()).unwrap();
        node.wait_running("c", PATIENCE).unwrap();
        let pod = control.get(["pod", "p"]).unwrap();
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        RecordingNode { control, node, uid }
    }

    /// What stands in the volumes, by path.
    fn files(&self) -> BTreeMap<String, String> {
        fn walk(dir: &Path, top: &Path, found: &mut BTreeMap<String, String>) {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                let name = path.strip_prefix(top).unwrap().to_string_lossy().into_owned();
                if name.contains("/..") {
                    continue;
                }
                match std::fs::read_to_string(&path) {
                    Ok(text) => drop(found.insert(name, text)),
                    Err(_) => walk(&path, top, found),
                }
            }
        }
        let top: PathBuf = self.node.root_dir().join("pods").join(&self.uid).join("volumes");
        let mut found = BTreeMap::new();
        walk(&top, &top, &mut found);
        found
    }

    /// Warnings about the pod, each once.
    fn warnings(&self) -> BTreeSet<String> {
        let list = self.control.get(["events"]).unwrap_or_default();
        let items = list["items"].as_array().into_iter().flatten();
        items
            .filter(|event| event["type"] == "Warning" && event["involvedObject"]["name"] == "p")
            .filter(|event| event["reason"] != "MissingClusterDNS")
            .map(|event| {
                let text = |key: &str| event[key].as_str().unwrap_or_default();
                format!("{}: {}", text("reason"), text("message"))
            })
            .collect()
    }

    fn replace(&self, object: &Value) {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str());
        let path = self.node.slot().write("objects/changed.json", object.to_string()).unwrap();
        assert!(name.is_some(), "a {kind} without a name");
        self.control.kubectl(["replace", "-f", path.to_str().unwrap()]).unwrap();
    }

    fn delete(&self, kind: &str, name: &str) {
        self.control.kubectl(["delete", kind, name]).unwrap();
    }

    /// Waits until the volumes are as they should become; a moment later nothing else has changed.
    fn has(&self, what: &str, is: impl Fn(&BTreeMap<String, String>) -> bool) -> Value {
        let there = eventually(PATIENCE, what, || is(&self.files()));
        json!({"in time": there.is_ok(), "files": self.files(), "warnings": self.warnings()})
    }

    /// Waits until a warning is told that has this text.
    fn warns(&self, text: &str) -> Value {
        let told = || self.warnings().iter().any(|warning| warning.contains(text));
        let there = eventually(PATIENCE, text, told);
        json!({"in time": there.is_ok(), "files": self.files(), "warnings": self.warnings()})
    }
}

fn lived(kind: KubeletKind) -> Vec<(&'static str, Value)> {
    let mut recording_node = RecordingNode::start(kind);
    let mut seen = vec![("first", json!(recording_node.files()))];

    recording_node.replace(&config("a", &json!({"k1": "changed", "k3": "new"})));
    recording_node
        .control
        .kubectl(["label", "pod", "p", "l=two", "m=three", "--overwrite"])
        .unwrap();
    recording_node.control.create(&config("later", &json!({"now": "there"}))).unwrap();
    let is = |files: &BTreeMap<String, String>| {
        let text = |name: &str| files.get(name).cloned().unwrap_or_default();
        text("kubernetes.io~configmap/a/k3") == "new"
            && text("kubernetes.io~configmap/later/now") == "there"
            && text("kubernetes.io~projected/projected/now") == "there"
            && text("kubernetes.io~projected/projected/k3") == "new"
            && text("kubernetes.io~projected/projected/labels").contains("three")
    };
    seen.push(("changed", recording_node.has("everything changed is there", is)));

    recording_node.replace(&config("listed", &json!({"other": "more"})));
    let mut step = recording_node.warns("configmap references non-existent config key: k");
    let maybe = recording_node.has("the other key", |files| {
        files.get("kubernetes.io~configmap/maybe/other").is_some_and(|text| text == "more")
    });
    step["then"] = maybe;
    seen.push(("a listed key is gone", step));

    recording_node.delete("secret", "s");
    seen.push(("a secret is gone", recording_node.warns("secret \"s\" not found")));
    recording_node.control.create(&secret("s", &json!({"user": "eve", "more": "m"}))).unwrap();
    let is = |files: &BTreeMap<String, String>| {
        let text = |name: &str| files.get(name).cloned().unwrap_or_default();
        text("kubernetes.io~secret/s/more") == "m"
            && text("kubernetes.io~projected/projected/deep/user") == "eve"
    };
    seen.push(("the secret is back", recording_node.has("the new secret is there", is)));

    recording_node.delete("configmap", "later");
    let is = |files: &BTreeMap<String, String>| !files.keys().any(|name| name.ends_with("/now"));
    seen.push(("what is optional is gone", recording_node.has("its files are gone", is)));

    recording_node.delete("configmap", "fixed");
    recording_node.control.create(&config("fixed", &json!({"f": "second"}))).unwrap();
    std::thread::sleep(LOOKS);
    seen.push((
        "what was fixed is another one",
        json!([recording_node.files(), recording_node.warnings()]),
    ));

    recording_node.node.kill_kubelet();
    recording_node.node.start_kubelet(kind).unwrap();
    let is = |files: &BTreeMap<String, String>| {
        files.get("kubernetes.io~configmap/fixed/f").is_some_and(|text| text == "second")
    };
    seen.push(("after a kill of the kubelet", recording_node.has("the other one is there", is)));
    recording_node.node.stop_kubelet();
    seen
}

#[test]
fn volumes_follow_their_objects_as_under_the_go_kubelet() {
    let (go, ours) = (lived(KubeletKind::Go), lived(KubeletKind::Rubelet));
    let mut wrong = String::new();
    for ((step, go), (_, ours)) in go.iter().zip(&ours) {
        if go != ours {
            let lines = |value: &Value| serde_json::to_string_pretty(value).unwrap();
            wrong += &format!("{step}\n ours {}\n Go's {}\n", lines(ours), lines(go));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
