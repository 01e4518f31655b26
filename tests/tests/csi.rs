//! CSI volumes from claim to container, with a driver that really mounts, under a real API server and
//! controller manager. What the driver is asked is compared with a record of the Go kubelet, request by
//! request: `KUBELET=go RECORD=1` makes the record, `KUBELET=go` alone compares the Go kubelet with it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
    eventually_some,
};
use tests::golden::recorded;

const PATIENCE: Duration = Duration::from_secs(90);
const DRIVER: &str = "hostpath.test";
const ATTACHED: &str = "attached.test";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// Events about volumes; those about containers are compared elsewhere.
const EVENTS: [&str; 5] = [
    "FailedMount",
    "FailedMapVolume",
    "SuccessfulMountVolume",
    "FileSystemResizeSuccessful",
    "VolumeResizeFailed",
];

struct RecordingNode {
    control: Arc<ControlPlane>,
    kind: KubeletKind,
    node: TestNode,
    runtime: tokio::runtime::Runtime,
    data: PathBuf,
    driver: Option<CsiDriver>,
    attached: CsiDriver,
    /// What was seen, by scenario.
    seen: Map<String, Value>,
}

fn config(node: &TestNode, name: &str, data: &Path) -> CsiDriverConfig {
    let mut config = CsiDriverConfig::new(name, data);
    config.registry = Some(node.root_dir().join("plugins_registry"));
    config
}

impl RecordingNode {
    fn new() -> Self {
        let options =
            ControlPlaneOptions { controller_manager: true, ..ControlPlaneOptions::default() };
        let control = Arc::new(ControlPlane::start(&options).unwrap());
        let kind = KubeletKind::from_env().unwrap();
        for (name, attach) in [(DRIVER, false), (ATTACHED, true)] {
            control
                .create(&json!({
                    "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                    "metadata": {"name": name},
                    "spec": {"attachRequired": attach, "podInfoOnMount": true,
                        "volumeLifecycleModes": ["Persistent", "Ephemeral"]}
                }))
                .unwrap();
        }
        control
            .create(&json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": {"name": "manual"},
                "provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": true
            }))
            .unwrap();
        // Statistics would be asked for at times of their own.
        let config_of_kubelet = json!({
            "volumeStatsAggPeriod": "-1m", "syncFrequency": "5s", "nodeStatusUpdateFrequency": "3s"
        });
        let node = TestNode::builder()
            .image(IMAGE.trim_start_matches("registry.k8s.io/"))
            .kubelet(kind)
            .options(KubeletOptions { config: config_of_kubelet, ..KubeletOptions::default() })
            .join(&control)
            .start()
            .unwrap();
        let data = std::env::temp_dir().join(format!("rubelet-e2e-csi-{}", std::process::id()));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (driver, attached) = runtime.block_on(async {
            let driver = CsiDriver::start(config(&node, DRIVER, &data)).unwrap();
            let data = data.join("attached");
            (driver, CsiDriver::start(config(&node, ATTACHED, &data)).unwrap())
        });
        let recording_node = Self {
            control,
            kind,
            node,
            runtime,
            data,
            driver: Some(driver),
            attached,
            seen: Map::new(),
        };
        recording_node.wait_registered();
        recording_node
    }

    fn driver(&self) -> &CsiDriver {
        self.driver.as_ref().unwrap()
    }

    fn wait_registered(&self) {
        let registered = || {
            let node = self.control.get(["csinode", "node1"]).unwrap_or_default();
            node["spec"]["drivers"].as_array().map_or(0, Vec::len) == 2
        };
        eventually(PATIENCE, "both drivers are in CSINode", registered).unwrap();
    }

    fn claim(&self, name: &str, mode: &str, driver: &str, attributes: Value) {
        self.control
            .create(&json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": format!("pv-{name}")},
                "spec": {
                    "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "manual", "volumeMode": mode,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"name": name, "namespace": "default"},
                    "csi": {"driver": driver, "volumeHandle": format!("h-{name}"),
                        "volumeAttributes": attributes}
                }
            }))
            .unwrap();
        self.control
            .create(&json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
                    "volumeMode": mode, "volumeName": format!("pv-{name}"),
                    "resources": {"requests": {"storage": "16Mi"}}
                }
            }))
            .unwrap();
        eventually(PATIENCE, "the claim is bound", || {
            let claim = self.control.get(["pvc", name]).unwrap_or_default();
            claim["status"]["phase"] == "Bound"
        })
        .unwrap();
    }

    fn wait_running(&self, name: &str) {
        let running = || {
            let pod = self.control.get(["pod", name]).ok()?;
            (pod["status"]["containerStatuses"][0]["ready"] == true).then_some(())
        };
        eventually_some(PATIENCE, "the pod runs", running).unwrap();
    }

    fn patch(&self, arguments: &[&str], patch: &Value) {
        let patch = patch.to_string();
        let all = ["patch"].iter().chain(arguments).chain(&["--type=merge", "-p"]).copied();
        self.control.kubectl(all.chain([patch.as_str()])).unwrap();
    }

    /// The pod goes, then everything of its volume.
    fn delete(&self, name: &str) {
        self.control.kubectl(["delete", "pod", name, "--wait=false"]).unwrap();
        eventually(PATIENCE, "no mount and no pod folder is left", || {
            let dirs = std::fs::read_dir(self.node.root_dir().join("pods")).map(Iterator::count);
            mounts_below(&self.node.root_dir()).is_empty() && dirs.unwrap_or_default() == 0
        })
        .unwrap();
        eventually(PATIENCE, "the pod is gone", || self.control.get(["pod", name]).is_err())
            .unwrap();
        eventually(PATIENCE, "no folder of the driver is left", || {
            let top = self.node.root_dir().join("plugins/kubernetes.io/csi");
            let count = |dir: &str| std::fs::read_dir(top.join(dir)).map_or(0, Iterator::count);
            let devices = ["volumeDevices/staging", "volumeDevices/publish"];
            count(DRIVER) + count(ATTACHED) + devices.iter().map(|d| count(d)).sum::<usize>() == 0
        })
        .unwrap();
    }

    /// Runs one pod from its creation to its end, and keeps what the driver was asked meanwhile.
    fn scenario(&mut self, name: &str, pod: &Value, meanwhile: impl FnOnce(&mut Self)) {
        let asked = |recording_node: &Self| {
            let driver =
                if name == "attached" { &recording_node.attached } else { recording_node.driver() };
            driver.requests()
        };
        let before = asked(self).len();
        self.control.create(pod).unwrap();
        meanwhile(self);
        let object = self.control.get(["pod", name]).unwrap();
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        let events = self.events(name);
        self.delete(name);
        let calls = asked(self).split_off(before);
        let seen = json!({"calls": calls, "events": events}).to_string();
        let seen = seen
            .replace(&uid, "$UID")
            .replace(&*self.node.root_dir().to_string_lossy(), "/var/lib/kubelet");
        let seen = hide(&hide(&seen, "csi-", 64, "$INLINE"), "/dev/loop", 0, "/dev/loop$N");
        self.seen.insert(name.to_owned(), serde_json::from_str(&seen).unwrap());
    }

    fn events(&self, pod: &str) -> Vec<String> {
        let list = self.control.get(["events"]).unwrap_or_default();
        let mut events: Vec<String> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|e| e["involvedObject"]["name"] == pod)
            .filter(|e| EVENTS.iter().any(|reason| e["reason"] == *reason))
            .map(|e| {
                let text = |key: &str| e[key].as_str().unwrap_or_default().to_owned();
                format!("{} {}: {}", text("type"), text("reason"), text("message"))
            })
            .collect();
        events.sort();
        events.dedup();
        events
    }
}

/// Replaces what follows `prefix`: `length` characters, or with 0 all digits.
fn hide(text: &str, prefix: &str, length: usize, shown: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(prefix) {
        let (before, from) = rest.split_at(at);
        let tail = &from[prefix.len()..];
        let is_part =
            |c: char| if length == 0 { c.is_ascii_digit() } else { c.is_ascii_hexdigit() };
        let run = tail.chars().take_while(|c| is_part(*c)).count();
        let matches = if length == 0 { run > 0 } else { run == length };
        out.push_str(before);
        out.push_str(if matches { shown } else { prefix });
        rest = if matches { &tail[run..] } else { tail };
    }
    out.push_str(rest);
    out
}

fn pod(name: &str, volume: Value, use_of_it: &Value, command: &str) -> Value {
    let mut container = json!({"name": "c", "image": IMAGE,
        "command": ["sh", "-c", format!("{command}; trap 'exit 0' TERM; sleep 3600 & wait")]});
    for (key, value) in use_of_it.as_object().unwrap() {
        container[key] = value.clone();
    }
    let mut volume = volume;
    volume["name"] = json!("v");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2, "volumes": [volume], "containers": [container]
        }
    })
}

/// Mount points below the folder; it may itself be one.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
    let points = sys::mountinfo::at_or_below(&table, dir);
    points.iter().map(|m| m.mount_point.clone()).filter(|point| point != dir).collect()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

#[test]
fn drivers_are_asked_the_same_in_the_same_order_as_by_the_go_kubelet() {
    let mut recording_node = RecordingNode::new();
    let claimed = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let mounted = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});

    recording_node.claim("files", "Filesystem", DRIVER, json!({"a": "b"}));
    let files = pod("files", claimed("files"), &mounted, "echo hello > /v/out");
    recording_node.scenario("files", &files, |recording_node| {
        recording_node.wait_running("files");
        let path = recording_node.data.join("volumes/h-files/out");
        eventually(PATIENCE, "the claim's file", || read(&path) == b"hello\n").unwrap();
    });

    recording_node.claim("disk", "Block", DRIVER, json!({}));
    let command = "test -b /dev/x && echo raw | dd of=/dev/x conv=notrunc,fsync";
    recording_node.scenario(
        "disk",
        &pod("disk", claimed("disk"), &device, command),
        |recording_node| {
            recording_node.wait_running("disk");
            let path = recording_node.data.join("volumes/h-disk.img");
            eventually(PATIENCE, "the device's bytes", || read(&path).starts_with(b"raw\n"))
                .unwrap();
        },
    );

    let inline = json!({"csi": {"driver": DRIVER, "volumeAttributes": {"c": "d"}}});
    recording_node.scenario(
        "inline",
        &pod("inline", inline, &mounted, "echo x > /v/out"),
        |recording_node| {
            recording_node.wait_running("inline");
        },
    );

    for (name, mode, usage) in [("grown", "Filesystem", &mounted), ("grown-disk", "Block", &device)]
    {
        recording_node.claim(name, mode, DRIVER, json!({}));
        recording_node.scenario(name, &pod(name, claimed(name), usage, "true"), |recording_node| {
            recording_node.wait_running(name);
            // What the user and the external resizer would do.
            let size = json!({"storage": "32Mi"});
            recording_node
                .patch(&["pvc", name], &json!({"spec": {"resources": {"requests": size}}}));
            let pending = json!({"allocatedResources": size,
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
            recording_node
                .patch(&["pvc", name, "--subresource=status"], &json!({"status": pending}));
            recording_node
                .patch(&["pv", &format!("pv-{name}")], &json!({"spec": {"capacity": size}}));
            eventually(PATIENCE, "the claim has grown", || {
                let claim = recording_node.control.get(["pvc", name]).unwrap_or_default();
                claim["status"]["capacity"]["storage"] == "32Mi"
            })
            .unwrap();
        });
    }

    recording_node.claim("replaced", "Filesystem", DRIVER, json!({}));
    recording_node.scenario(
        "replaced",
        &pod("replaced", claimed("replaced"), &mounted, "true"),
        |recording_node| {
            recording_node.wait_running("replaced");
            let infos = |driver: &CsiDriver| {
                driver.calls().iter().filter(|call| call.starts_with("NodeGetInfo")).count()
            };
            let before = infos(recording_node.driver());
            drop(recording_node.driver.take());
            eventually(PATIENCE, "the driver has left CSINode", || {
                let node = recording_node.control.get(["csinode", "node1"]).unwrap_or_default();
                node["spec"]["drivers"].as_array().map_or(0, Vec::len) == 1
            })
            .unwrap();
            let again = config(&recording_node.node, DRIVER, &recording_node.data);
            recording_node.driver =
                Some(recording_node.runtime.block_on(async { CsiDriver::start(again) }).unwrap());
            eventually(PATIENCE, "the driver is asked who it is", || {
                infos(recording_node.driver()) > before
            })
            .unwrap();
            recording_node.wait_registered();
        },
    );

    recording_node.claim("killed", "Filesystem", DRIVER, json!({}));
    recording_node.driver().fault("NodePublishVolume", Some("hang"));
    recording_node.scenario(
        "killed",
        &pod("killed", claimed("killed"), &mounted, "true"),
        |recording_node| {
            eventually(PATIENCE, "staged and not yet published", || {
                recording_node.driver().calls().contains(&"NodePublishVolume h-killed".to_owned())
            })
            .unwrap();
            recording_node.node.kill_kubelet();
            recording_node.driver().fault("NodePublishVolume", None);
            recording_node.node.start_kubelet(recording_node.kind).unwrap();
            recording_node.wait_running("killed");
        },
    );

    recording_node.claim("attached", "Filesystem", ATTACHED, json!({}));
    recording_node.scenario(
        "attached",
        &pod("attached", claimed("attached"), &mounted, "true"),
        |recording_node| {
            let name = eventually_some(PATIENCE, "the controller asks for an attachment", || {
                let list = recording_node.control.get(["volumeattachments"]).ok()?;
                list["items"][0]["metadata"]["name"].as_str().map(str::to_owned)
            })
            .unwrap();
            let status = json!({"attached": true, "attachmentMetadata": {"disk": "7"}});
            let arguments = ["volumeattachment", &name, "--subresource=status"];
            recording_node.patch(&arguments, &json!({"status": status}));
            recording_node.wait_running("attached");
        },
    );

    recording_node.node.stop_kubelet();
    let seen = Value::Object(std::mem::take(&mut recording_node.seen));
    let data = recording_node.data.clone();
    drop(recording_node);
    std::fs::remove_dir_all(&data).unwrap();
    let Some(record) = recorded("csi/calls.json", &seen).unwrap() else { return };
    for (name, wanted) in record.as_object().unwrap() {
        let lines = |value: &Value| {
            let calls = value["calls"].as_array().into_iter().flatten().map(Value::to_string);
            let events = value["events"].as_array().into_iter().flatten().map(Value::to_string);
            calls.chain(events).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(lines(&seen[name]), lines(wanted), "{name}: left is what we did");
    }
    assert_eq!(seen.as_object().unwrap().len(), record.as_object().unwrap().len());
}
