//! CSI drivers that answer with every code of gRPC at every step, once or twice or for ever: what they are asked
//! next, what users are told, and that nothing is left. Compared with a record of the Go kubelet, made by
//! `KUBELET=go RECORD=1`. A few codes stand for all; `CODES=all` takes every one, which takes minutes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};
use tests::golden::recorded;

const PATIENCE: Duration = Duration::from_secs(150);
const DRIVER: &str = "faulty.test";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// What goes wrong: its name, the method, when and how often (0: always), and whether the pod gets to run.
const KINDS: [(&str, &str, &str, u32, bool); 10] = [
    ("stage-twice", "NodeStageVolume", "before", 2, true),
    ("stage-done", "NodeStageVolume", "after", 1, true),
    ("stage-always", "NodeStageVolume", "before", 0, false),
    ("publish-twice", "NodePublishVolume", "before", 2, true),
    ("publish-done", "NodePublishVolume", "after", 1, true),
    ("publish-always", "NodePublishVolume", "before", 0, false),
    ("unpublish-twice", "NodeUnpublishVolume", "before", 2, true),
    ("unpublish-done", "NodeUnpublishVolume", "after", 1, true),
    ("unstage-twice", "NodeUnstageVolume", "before", 2, true),
    ("unstage-done", "NodeUnstageVolume", "after", 1, true),
];

const CODES: [&str; 16] = [
    "Cancelled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// One after which nobody knows what was done, and two after which nothing was.
const FEW: [&str; 3] = ["Unavailable", "Internal", "NotFound"];

struct RecordingNode {
    control: Arc<ControlPlane>,
    node: TestNode,
    driver: CsiDriver,
}

impl RecordingNode {
    fn claim(&self, name: &str) {
        self.control
            .create(&json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": format!("pv-{name}")},
                "spec": {
                    "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "manual", "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"name": name, "namespace": "default"},
                    "csi": {"driver": DRIVER, "volumeHandle": name}
                }
            }))
            .unwrap();
        self.control
            .create(&json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
                    "volumeName": format!("pv-{name}"),
                    "resources": {"requests": {"storage": "16Mi"}}
                }
            }))
            .unwrap();
    }

    fn pod(&self, name: &str) {
        self.control
            .create(&json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "nodeName": "node1", "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
                    "containers": [{"name": "c", "image": IMAGE,
                        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
                }
            }))
            .unwrap();
    }

    /// What the driver was asked about a volume; what follows itself is told once if it went on for ever.
    fn calls(&self, volume: &str, for_ever: bool) -> Vec<String> {
        let calls = self.driver.calls();
        let mut own: Vec<String> = calls
            .iter()
            .filter_map(|call| call.strip_suffix(&format!(" {volume}")))
            .map(str::to_owned)
            .collect();
        if for_ever {
            own.dedup();
        }
        own
    }

    /// Everything that goes wrong with these codes, at once.
    fn round(&self, codes: &[&str], seen: &mut BTreeMap<String, Value>) {
        let mut all = Vec::new();
        for code in codes {
            for (kind, method, when, times, runs) in KINDS {
                let name = format!("{kind}-{}", code.to_lowercase());
                let times = if times == 0 { String::new() } else { format!(" {times}") };
                self.driver
                    .fault(&format!("{method}.{name}"), Some(&format!("{when} {code}{times}")));
                all.push((name, method, runs));
            }
        }
        for (name, ..) in &all {
            self.claim(name);
        }
        eventually(PATIENCE, "the claims are bound", || {
            let list = self.control.get(["pvc"]).unwrap_or_default();
            let items = list["items"].as_array().cloned().unwrap_or_default();
            items.iter().all(|claim| claim["status"]["phase"] == "Bound")
        })
        .unwrap();
        for (name, ..) in &all {
            self.pod(name);
        }
        let events = |list: &Value, name: &str| -> Vec<String> {
            let items = list["items"].as_array().into_iter().flatten();
            let own = items.filter(|event| event["involvedObject"]["name"] == name);
            let mut told: Vec<String> = own
                .filter(|event| event["reason"].as_str().is_some_and(|r| r.contains("Mount")))
                .map(|event| {
                    let text = |key: &str| event[key].as_str().unwrap_or_default();
                    format!("{} {}: {}", text("type"), text("reason"), text("message"))
                })
                .collect();
            told.sort();
            told.dedup();
            told
        };
        let mut waiting = String::new();
        let there = eventually(PATIENCE, "all run, or are told why not", || {
            let pods = self.control.get(["pods"]).unwrap_or_default();
            let list = self.control.get(["events"]).unwrap_or_default();
            let running = |name: &str| {
                let mut items = pods["items"].as_array().into_iter().flatten();
                items.any(|pod| {
                    pod["metadata"]["name"] == name
                        && pod["status"]["containerStatuses"][0]["ready"] == true
                })
            };
            waiting = all
                .iter()
                .filter(|(name, _, runs)| match runs {
                    true => !running(name),
                    false => events(&list, name).is_empty(),
                })
                .map(|(name, ..)| name.as_str())
                .collect::<Vec<_>>()
                .join(" ");
            waiting.is_empty()
        });
        assert!(there.is_ok(), "still not there: {waiting}");
        let list = self.control.get(["events"]).unwrap();
        self.control.kubectl(["delete", "pods", "--all", "--wait=false"]).unwrap();
        let gone = eventually(PATIENCE, "nothing of them is left", || {
            let dirs = std::fs::read_dir(self.node.root_dir().join("pods")).map(Iterator::count);
            let plugin = self.node.root_dir().join("plugins/kubernetes.io/csi").join(DRIVER);
            let staged = std::fs::read_dir(plugin).map_or(0, Iterator::count);
            let pods = self.control.get(["pods"]).unwrap_or_default();
            dirs.unwrap_or_default() == 0
                && staged == 0
                && mounts_below(&self.node.root_dir()) == 0
                && pods["items"].as_array().is_some_and(Vec::is_empty)
        });
        for (name, _, runs) in &all {
            let told: Vec<String> = events(&list, name)
                .iter()
                .map(|line| line.replace(&*self.node.root_dir().to_string_lossy(), "$ROOT"))
                .collect();
            let value = json!({"calls": self.calls(name, !runs), "events": told});
            seen.insert(name.clone(), value);
        }
        if gone.is_err() {
            let plugin = self.node.root_dir().join("plugins/kubernetes.io/csi").join(DRIVER);
            let names = |dir: &Path| -> Vec<String> {
                let list = std::fs::read_dir(dir).into_iter().flatten().flatten();
                list.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
            };
            seen.insert(
                format!("left-{}", codes.join("-")),
                json!([names(&plugin).len(), names(&self.node.root_dir().join("pods")).len()]),
            );
        }
        self.control.kubectl(["delete", "pvc", "--all", "--wait=false"]).unwrap();
        self.control.kubectl(["delete", "events", "--all"]).unwrap();
    }
}

/// Mount points below the folder.
fn mounts_below(dir: &Path) -> usize {
    let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
    sys::mountinfo::at_or_below(&table, dir).iter().filter(|m| m.mount_point != dir).count()
}

#[test]
fn faults_of_drivers_lead_to_the_same_as_with_the_go_kubelet() {
    let options =
        ControlPlaneOptions { controller_manager: true, ..ControlPlaneOptions::default() };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    control
        .create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false}
        }))
        .unwrap();
    control
        .create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "manual"}, "provisioner": "kubernetes.io/no-provisioner"
        }))
        .unwrap();
    let kubelet = json!({"volumeStatsAggPeriod": "-1m", "syncFrequency": "5s", "maxPods": 200});
    let node = TestNode::builder()
        .image(IMAGE.trim_start_matches("registry.k8s.io/"))
        .kubelet(KubeletKind::from_env().unwrap())
        .options(KubeletOptions { config: kubelet, ..KubeletOptions::default() })
        .join(&control)
        .start()
        .unwrap();
    let data = std::env::temp_dir().join(format!("rubelet-e2e-faults-{}", std::process::id()));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut config = CsiDriverConfig::new(DRIVER, &data);
    config.registry = Some(node.root_dir().join("plugins_registry"));
    let driver = runtime.block_on(async { CsiDriver::start(config) }).unwrap();
    let mut recording_node = RecordingNode { control, node, driver };
    eventually(PATIENCE, "the driver is in CSINode", || {
        let node = recording_node.control.get(["csinode", "node1"]).unwrap_or_default();
        node["spec"]["drivers"].as_array().map_or(0, Vec::len) == 1
    })
    .unwrap();
    let all = std::env::var("CODES").is_ok_and(|word| word == "all");
    let all = all || std::env::var_os("RECORD").is_some();
    let codes = if all { &CODES[..] } else { &FEW[..] };
    let mut seen = BTreeMap::new();
    for some in codes.chunks(3) {
        recording_node.round(some, &mut seen);
    }
    recording_node.node.stop_kubelet();
    drop(recording_node);
    std::fs::remove_dir_all(&data).unwrap();
    let seen = serde_json::to_value(seen).unwrap();
    let Some(record) = recorded("csi/faults.json", &seen).unwrap() else { return };
    let lines = |value: &Value| serde_json::to_string_pretty(value).unwrap();
    let mut wrong = String::new();
    for (name, own) in seen.as_object().unwrap() {
        if *own != record[name] {
            wrong += &format!("{name}\n ours {}\n Go's {}\n", lines(own), lines(&record[name]));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
