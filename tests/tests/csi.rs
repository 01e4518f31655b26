//! CSI volumes from claim to container, with a driver that really mounts, under a real API server and
//! controller manager. `KUBELET=go` runs the same under the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, TestNode, eventually, eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const DRIVER: &str = "hostpath.test";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

fn claim(control: &ControlPlane, name: &str, mode: &str) {
    control
        .create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")},
            "spec": {
                "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "manual", "volumeMode": mode,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"name": name, "namespace": "default"},
                "csi": {"driver": DRIVER, "volumeHandle": format!("h-{name}")}
            }
        }))
        .unwrap();
    control
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
}

fn pod(name: &str, volume: Value, use_of_it: Value, command: &str) -> Value {
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

#[test]
fn claims_and_inline_volumes_reach_containers_and_leave_nothing() {
    let options =
        ControlPlaneOptions { controller_manager: true, ..ControlPlaneOptions::default() };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    control
        .create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": true,
                "volumeLifecycleModes": ["Persistent", "Ephemeral"]}
        }))
        .unwrap();
    let mut node = TestNode::builder()
        .image(IMAGE.trim_start_matches("registry.k8s.io/"))
        .kubelet(kind)
        .join(&control)
        .start()
        .unwrap();
    let data = std::env::temp_dir().join(format!("rubelet-e2e-csi-{}", std::process::id()));
    let mut config = CsiDriverConfig::new(DRIVER, &data);
    config.registry = Some(node.root_dir().join("plugins_registry"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let driver = runtime.block_on(async { CsiDriver::start(config) }).unwrap();
    let registered = || {
        let node = control.get(["csinode", "node1"]).ok()?;
        (node["spec"]["drivers"][0]["name"] == DRIVER).then_some(())
    };
    eventually_some(PATIENCE, "the driver is in CSINode", registered).unwrap();

    claim(&control, "files", "Filesystem");
    claim(&control, "disk", "Block");
    let claimed = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let mounted = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
    let pods = [
        pod("files", claimed("files"), mounted.clone(), "echo hello > /v/out"),
        pod("inline", json!({"csi": {"driver": DRIVER}}), mounted, "echo inline > /v/out"),
        pod(
            "disk",
            claimed("disk"),
            device,
            "test -b /dev/x && echo raw | dd of=/dev/x conv=notrunc",
        ),
    ];
    for pod in &pods {
        control.create(pod).unwrap();
    }
    for name in ["files", "inline", "disk"] {
        let running = || {
            let pod = control.get(["pod", name]).ok()?;
            (pod["status"]["containerStatuses"][0]["ready"] == true).then_some(())
        };
        eventually_some(PATIENCE, "the pod runs", running).unwrap();
    }
    let read = |path: PathBuf| std::fs::read(path).unwrap_or_default();
    eventually(PATIENCE, "the claim's file", || {
        read(data.join("volumes/h-files/out")) == b"hello\n"
    })
    .unwrap();
    eventually(PATIENCE, "the device's bytes", || {
        read(data.join("volumes/h-disk.img")).starts_with(b"raw\n")
    })
    .unwrap();
    for name in ["files", "inline", "disk"] {
        control.kubectl(["delete", "pod", name, "--wait=false"]).unwrap();
    }
    eventually(PATIENCE, "no mount and no pod folder is left", || {
        let dirs = std::fs::read_dir(node.root_dir().join("pods")).map(Iterator::count);
        mounts_below(&node.root_dir()).is_empty() && dirs.unwrap_or_default() == 0
    })
    .unwrap();
    // The statistics are asked for every so often, on no account of these pods' steps.
    let steps = || driver.calls().into_iter().filter(|c| !c.starts_with("NodeGetVolumeStats"));
    let of = |handle: &str| -> Vec<String> {
        let calls = steps().filter(|c| c.ends_with(handle));
        calls.map(|c| c.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let all = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(of(" h-files"), all);
    assert_eq!(of(" h-disk"), all);
    let inline: Vec<String> = steps().filter(|c| c.contains(" csi-")).collect();
    assert_eq!(inline.len(), 2, "{inline:?}");
    node.stop_kubelet();
    drop(driver);
    std::fs::remove_dir_all(&data).unwrap();
}
