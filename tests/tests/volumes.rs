//! Volumes of every kind on the real runtime: what a container sees in them, what it sees of changes, what a restart
//! of the agent leaves alone, and that nothing is left behind. What is seen is compared with a record of the Go
//! kubelet: `KUBELET=go RECORD=1` makes it, `KUBELET=go` alone compares the Go kubelet with it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};
use tests::golden::recorded;

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const FLEX: &str = r#"#!/bin/sh
echo "$1" >> "$(dirname "$0")/calls"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount) mount -t tmpfs -o size=64k,mode=755 flex "$2" && echo '{"status": "Success"}' ;;
unmount) umount "$2" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}' ;;
esac
"#;

struct RecordingNode {
    control: Arc<ControlPlane>,
    kind: KubeletKind,
    node: TestNode,
    scratch: PathBuf,
}

impl RecordingNode {
    fn new() -> Self {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let kind = KubeletKind::from_env().unwrap();
        let config = json!({"syncFrequency": "5s"});
        let node = TestNode::builder()
            .image(IMAGE.trim_start_matches("registry.k8s.io/"))
            .kubelet(kind)
            .options(KubeletOptions { config, ..KubeletOptions::default() })
            .join(&control)
            .start()
            .unwrap();
        let scratch = std::env::temp_dir().join(format!("rubelet-e2e-vol-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("local")).unwrap();
        let flex = node.slot().path("volume-plugins/example.test~dir");
        std::fs::create_dir_all(&flex).unwrap();
        let staged = flex.join(".dir");
        std::fs::write(&staged, FLEX).unwrap();
        std::fs::set_permissions(&staged, std::fs::Permissions::from_mode(0o755)).unwrap();
        // In one step, so that nobody finds half a program.
        std::fs::rename(&staged, flex.join("dir")).unwrap();
        Self { control, kind, node, scratch }
    }

    fn object(&self, kind: &str, name: &str, rest: &Value) {
        let mut object = json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}});
        for (key, value) in rest.as_object().unwrap() {
            object[key] = value.clone();
        }
        self.control.create(&object).unwrap();
    }

    fn patch(&self, arguments: &[&str], patch: &Value) {
        let patch = patch.to_string();
        let all = ["patch"].iter().chain(arguments).chain(&["--type=merge", "-p"]).copied();
        self.control.kubectl(all.chain([patch.as_str()])).unwrap();
    }

    /// A claim for a folder of this machine, bound as the controller would.
    fn local_claim(&self) {
        let amount = json!({"storage": "1Mi"});
        let here = json!({"key": "kubernetes.io/hostname", "operator": "Exists"});
        self.object("PersistentVolumeClaim", "local", &json!({"spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "volumeName": "pv-local",
            "resources": {"requests": amount}}}));
        let claim = self.control.get(["pvc", "local"]).unwrap();
        self.control.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-local"},
            "spec": {"capacity": amount, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
                "persistentVolumeReclaimPolicy": "Retain", "local": {"path": self.scratch.join("local")},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "local",
                    "namespace": "default", "uid": claim["metadata"]["uid"]}}
        })).unwrap();
        let bound = json!({"status": {"phase": "Bound", "capacity": amount,
            "accessModes": ["ReadWriteOnce"]}});
        self.patch(&["pvc", "local", "--subresource=status"], &bound);
    }

    fn pod(&self) -> Value {
        let folder = |name: &str| self.scratch.join(name);
        let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
        let notes =
            json!({"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations['note']"}});
        let cpu = json!({"path": "deep/cpu", "mode": 256, "resourceFieldRef":
            {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}});
        let volumes = json!([
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "host", "hostPath": {"path": folder("host"), "type": "DirectoryOrCreate"}},
            {"name": "file", "hostPath": {"path": folder("host-file"), "type": "FileOrCreate"}},
            {"name": "map", "configMap": {"name": "map"}},
            {"name": "some", "configMap": {"name": "map", "defaultMode": 288,
                "items": [{"key": "a", "path": "x/y/a"}, {"key": "b", "path": "b", "mode": 511}]}},
            {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 256}},
            {"name": "down", "downwardAPI": {"items": [labels, notes, cpu]}},
            {"name": "all", "projected": {"defaultMode": 420, "sources": [
                {"configMap": {"name": "map", "items": [{"key": "a", "path": "m/a"}]}},
                {"secret": {"name": "secret"}},
                {"downwardAPI": {"items": [labels]}},
                {"configMap": {"name": "not-there", "optional": true}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}]}},
            {"name": "local", "persistentVolumeClaim": {"claimName": "local"}},
            {"name": "flex", "flexVolume": {"driver": "example.test/dir"}},
        ]);
        let at = |v: &Value| json!({"name": v["name"], "mountPath": format!("/v/{}", v["name"].as_str().unwrap())});
        let mut mounts: Vec<Value> = volumes.as_array().unwrap().iter().map(at).collect();
        mounts.push(json!({"name": "disk", "mountPath": "/v/sub", "subPath": "sub/path"}));
        mounts.push(json!({"name": "map", "mountPath": "/v/one", "subPath": "a"}));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "labels": {"l": "1", "k": "x-y"},
                "annotations": {"note": "first"}},
            "spec": {
                "nodeName": "node1", "automountServiceAccountToken": false,
                "serviceAccountName": "sa", "terminationGracePeriodSeconds": 1, "volumes": volumes,
                "securityContext": {"runAsUser": 1234, "fsGroup": 3456},
                "containers": [{"name": "c", "image": IMAGE, "volumeMounts": mounts,
                    "resources": {"limits": {"cpu": "100m"}},
                    "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]}]
            }
        })
    }

    fn inside(&self, container: &str, command: &str) -> String {
        self.node.crictl(["exec", container, "sh", "-c", command]).unwrap_or_default()
    }

    /// Every entry with its kind, mode and owners; the text of small files; and how it is mounted.
    fn look(&self, container: &str) -> Value {
        let list = "cd /v; find . -exec stat -c '%n|%F|%a %u %g' {} +";
        let mut entries: Vec<String> =
            self.inside(container, list).lines().map(nameless).filter(|l| !l.is_empty()).collect();
        entries.sort();
        entries.dedup();
        let texts = "cd /v; for f in $(find . -type f | grep -v token) one; do echo \"$f: $(cat $f)\"; done";
        let mut texts: Vec<String> = self.inside(container, texts).lines().map(nameless).collect();
        texts.sort();
        texts.dedup();
        let mounts =
            "while read a b c d e; do case $b in /v/*) echo $b $c $d;; esac; done < /proc/mounts";
        let mut mounts: Vec<String> = self.inside(container, mounts).lines().map(plain).collect();
        mounts.sort();
        json!({"entries": entries, "texts": texts, "mounts": mounts})
    }

    fn leftovers(&self) -> Vec<String> {
        let root = self.node.root_dir();
        let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
        let mounts = sys::mountinfo::at_or_below(&table, &root);
        let mounts = mounts.iter().filter(|m| m.mount_point != root);
        let mut left: Vec<String> = mounts.map(|m| m.mount_point.display().to_string()).collect();
        for entry in std::fs::read_dir(root.join("pods")).into_iter().flatten().flatten() {
            left.push(entry.path().display().to_string());
        }
        left
    }
}

/// Without the time in the name of the atomic writer's folder.
fn nameless(line: &str) -> String {
    let words = line.split('/').map(|word| {
        let rest = word.find(['|', ':']).map_or("", |at| word.split_at(at).1);
        if word.starts_with("..2") { format!("..time{rest}") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join("/")
}

/// Without what depends on the machine: sizes of other disks, kinds of disks.
fn plain(line: &str) -> String {
    let mut words = line.split_whitespace();
    let (at, kind, options) = (words.next(), words.next(), words.next());
    let (at, kind) = (at.unwrap_or_default(), kind.unwrap_or_default());
    let options = options.unwrap_or_default().split(',');
    let kept = ["ro", "rw", "noswap", "size=1024k", "relatime", "noatime"];
    let kept: Vec<&str> = options.filter(|o| kept.contains(o)).collect();
    let kind = if kind == "tmpfs" { "tmpfs" } else { "disk" };
    format!("{at} {kind} {}", kept.join(","))
}

fn encoded(text: &str) -> String {
    // Base64 of short test words, by hand: what matters is what comes out.
    match text {
        "word" => "d29yZA==",
        "other" => "b3RoZXI=",
        _ => "bmV3",
    }
    .to_owned()
}

#[test]
fn a_pod_sees_its_volumes_as_under_the_go_kubelet_and_leaves_nothing() {
    let mut recording_node = RecordingNode::new();
    let mut seen = Map::new();
    recording_node.object("ServiceAccount", "sa", &json!({}));
    recording_node.object(
        "ConfigMap",
        "map",
        &json!({"data": {"a": "1", "b": "2"},
        "binaryData": {"bin": encoded("word")}}),
    );
    recording_node.object(
        "Secret",
        "secret",
        &json!({"data": {"s": encoded("word"), "t": encoded("other")}}),
    );
    recording_node.local_claim();
    recording_node.control.create(&recording_node.pod()).unwrap();
    let container = recording_node.node.wait_running("c", PATIENCE).unwrap();
    seen.insert("start".into(), recording_node.look(&container));

    // Changes arrive under the running container; a subPath stays as it was.
    recording_node
        .patch(&["configmap", "map"], &json!({"data": {"a": "one", "b": null, "c": "3"}}));
    recording_node.patch(
        &["secret", "secret"],
        &json!({"data": {"s": encoded("other"), "u": encoded("new")}}),
    );
    recording_node.patch(
        &["pod", "p"],
        &json!({"metadata": {"labels": {"l": "2"}, "annotations": {"note": "second"}}}),
    );
    // A key that an item names is gone: that volume keeps what it has.
    let arrived = |recording_node: &RecordingNode| {
        recording_node.inside(
            &container,
            "cat /v/map/c /v/secret/u /v/down/notes; cat /v/all/labels; ls /v/map/b 2>/dev/null; true",
        )
    };
    eventually(PATIENCE, "changes arrive", || {
        arrived(&recording_node) == "3newsecondk=\"x-y\"\nl=\"2\""
    })
    .unwrap_or_else(|error| panic!("{error:#}: {:?}", arrived(&recording_node)));
    eventually(PATIENCE, "the projected volume follows", || {
        recording_node.inside(&container, "cat /v/all/m/a /v/all/s") == "oneother"
    })
    .unwrap();
    seen.insert("updated".into(), recording_node.look(&container));

    // A restart: nothing moves, and what changed meanwhile arrives.
    let write = "for d in disk memory host local flex sub; do echo kept > /v/$d/kept; done; echo kept > /v/file";
    recording_node.inside(&container, write);
    let kind = recording_node.kind;
    recording_node.node.stop_kubelet();
    recording_node
        .patch(&["configmap", "map"], &json!({"data": {"a": "uno", "b": "due", "c": null}}));
    recording_node.node.start_kubelet(kind).unwrap();
    eventually(PATIENCE, "changes arrive after a restart", || {
        recording_node
            .inside(&container, "cat /v/map/a /v/some/b /v/all/m/a; ls /v/map/c 2>/dev/null; true")
            == "unodueuno"
    })
    .unwrap();
    assert_eq!(
        recording_node.node.wait_running("c", PATIENCE).unwrap(),
        container,
        "it never stopped"
    );
    seen.insert("restarted".into(), recording_node.look(&container));

    // The end: what the pod owned is gone, what others own is not.
    recording_node.control.kubectl(["delete", "pod", "p", "--wait=false"]).unwrap();
    eventually(PATIENCE, "no mount and no folder is left", || {
        recording_node.leftovers().is_empty()
    })
    .unwrap_or_else(|error| panic!("{error:#}: {:#?}", recording_node.leftovers()));
    eventually(PATIENCE, "the pod is gone", || recording_node.control.get(["pod", "p"]).is_err())
        .unwrap();
    let calls = recording_node.node.slot().path("volume-plugins/example.test~dir/calls");
    let calls = std::fs::read_to_string(calls).unwrap();
    assert!(calls.lines().any(|call| call == "unmount"), "{calls}");
    let kept: Vec<String> = (["host/kept", "host-file", "local/kept"].iter())
        .map(|name| std::fs::read_to_string(recording_node.scratch.join(name)).unwrap_or_default())
        .collect();
    seen.insert("kept".into(), json!(kept));
    std::fs::remove_dir_all(&recording_node.scratch).unwrap();

    let seen = Value::Object(seen);
    let Some(record) = recorded("volumes/inside.json", &seen).unwrap() else { return };
    for (when, wanted) in record.as_object().unwrap() {
        let show = |value: &Value| serde_json::to_string_pretty(value).unwrap();
        assert_eq!(show(&seen[when]), show(wanted), "{when}: left is what we did");
    }
}
