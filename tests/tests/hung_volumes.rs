//! Volumes that never answer, on the real runtime: a FUSE filesystem whose server is silent and a CSI
//! driver that does not come back. Twenty other pods start as fast as before, and what hangs is named
//! in an event, a metric and by `rubelet explain`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use serde_json::{Value, json};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, TestNode, eventually};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const DRIVER: &str = "silent.test";
const PATIENCE: Duration = Duration::from_secs(120);
const OTHERS: usize = 20;

/// A FUSE mount whose server never reads a request.
struct Silent {
    path: PathBuf,
    server: Option<std::fs::File>,
}

impl Silent {
    fn mount(path: &Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        sys::mount::mount_fs("silent", path, "fuse", false, &data).unwrap();
        Self { path: path.to_owned(), server: Some(server) }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Closing the server ends every waiting call.
        drop(self.server.take());
        let _ = sys::mount::unmount(&self.path, sys::mount::Unmount::Detach);
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn pod(name: &str, volumes: &Value) -> Value {
    let mounts: Vec<Value> = (volumes.as_array().unwrap().iter())
        .map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"].as_str().unwrap())}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"group": "others"}},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "volumes": volumes,
            "containers": [{"name": "c", "image": IMAGE, "volumeMounts": mounts,
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]}]
        }
    })
}

/// How long twenty pods take from their creation until all of them are ready; they are removed again.
fn start_twenty(control: &ControlPlane, prefix: &str) -> Duration {
    let volumes = json!([
        {"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "d", "emptyDir": {}}
    ]);
    let items: Vec<Value> = (0..OTHERS).map(|n| pod(&format!("{prefix}{n}"), &volumes)).collect();
    let started = Instant::now();
    control.create(&json!({"apiVersion": "v1", "kind": "List", "items": items})).unwrap();
    let others = || {
        let list = control.get(["pods", "-l", "group=others"]).unwrap_or_default();
        let named =
            |p: &Value| p["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(prefix));
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.into_iter().filter(named).collect::<Vec<_>>()
    };
    eventually(PATIENCE, "the others run", || {
        let all = others();
        let ready = |p: &Value| p["status"]["containerStatuses"][0]["ready"] == true;
        all.len() == OTHERS && all.iter().all(ready)
    })
    .unwrap();
    let took = started.elapsed();
    let names: Vec<String> = (0..OTHERS).map(|n| format!("{prefix}{n}")).collect();
    let delete = ["delete", "pod", "--wait=false"].into_iter();
    control.kubectl(delete.chain(names.iter().map(String::as_str))).unwrap();
    eventually(PATIENCE, "the others are gone", || others().is_empty()).unwrap();
    took
}

/// What `rubelet explain` prints.
fn explain(root: &Path, args: &[&str]) -> String {
    let program = testkit::real::rubelet_bin().unwrap();
    let root = format!("--root-dir={}", root.display());
    let output = std::process::Command::new(program).arg("explain").args(args).arg(root).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hung_volumes_are_named_and_twenty_other_pods_start_as_before() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]}
    });
    control.create(&driver).unwrap();
    let node = TestNode::builder()
        .image(IMAGE.trim_start_matches("registry.k8s.io/"))
        .kubelet(KubeletKind::Rubelet)
        .join(&control)
        .start()
        .unwrap();
    let scratch = std::env::temp_dir().join(format!("rubelet-hung-{}", std::process::id()));
    let mut config = CsiDriverConfig::new(DRIVER, &scratch.join("driver"));
    config.registry = Some(node.root_dir().join("plugins_registry"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let driver = runtime.block_on(async { CsiDriver::start(config).unwrap() });
    eventually(PATIENCE, "the driver is registered", || {
        driver.last_message().as_deref() == Some("ok")
    })
    .unwrap();
    let normal = start_twenty(&control, "before");

    let silent = Silent::mount(&scratch.join("silent"));
    driver.fault("NodePublishVolume", Some("hang"));
    let inside = silent.path.join("inside");
    let stuck = [
        ("stuck-fuse", json!([{"name": "h", "hostPath": {"path": inside, "type": "Directory"}}])),
        ("stuck-csi", json!([{"name": "v", "csi": {"driver": DRIVER}}])),
    ];
    for (name, volumes) in &stuck {
        let mut pod = pod(name, volumes);
        pod["metadata"]["labels"] = json!({"group": "stuck"});
        control.create(&pod).unwrap();
    }
    let named = || {
        let (_, page) = node.kubelet_get("/metrics").unwrap_or_default();
        page.lines().any(|line| line == "rubelet_volume_quarantined_calls 2")
    };
    eventually(PATIENCE, "the metric counts both", named).unwrap();
    // Whoever asks on the node is told which pods wait for which step.
    let told = explain(&node.root_dir(), &[]);
    println!("{told}");
    assert!(told.starts_with("quarantined, because they do not come back:\n"), "{told}");
    for (pod, wait) in [
        ("default/stuck-fuse (syncing, ", "waits: volume \"h\": checking host path"),
        (
            "default/stuck-csi (syncing, ",
            "waits: volume \"v\": NodePublishVolume of driver silent.test",
        ),
    ] {
        let (_, story) = told.split_once(pod).unwrap_or_else(|| panic!("{told}"));
        let line =
            story.lines().find(|line| line.contains(wait)).unwrap_or_else(|| panic!("{told}"));
        assert!(line.ends_with("s (does not come back; quarantined)"), "{line}");
    }
    let whole = explain(&node.root_dir(), &["pod", "stuck-csi"]);
    assert!(whole.contains(" seen: api\n") && !whole.contains("stuck-fuse"), "{whole}");

    let beside = start_twenty(&control, "after");
    println!("20 pods: {normal:?} before, {beside:?} beside two hung volumes");
    assert!(beside <= normal * 2, "{beside:?} beside hung volumes, {normal:?} without");

    // The event comes when the call into the kernel is given up.
    let told = || {
        let list = control.get(["events"]).unwrap_or_default();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        events.iter().any(|e| {
            let text = e["message"].as_str().unwrap_or_default();
            e["involvedObject"]["name"] == "stuck-fuse"
                && e["reason"] == "FailedMount"
                && text.starts_with("MountVolume.SetUp failed for volume \"h\" : ")
                && text.contains("is quarantined")
        })
    };
    eventually(PATIENCE, "an event names the hung call", told).unwrap();

    // Once the server is gone the kernel lets go, and nothing hangs any more.
    drop(silent);
    driver.fault("NodePublishVolume", None);
    control.kubectl(["delete", "pod", "stuck-fuse", "stuck-csi", "--wait=false"]).unwrap();
    eventually(PATIENCE * 2, "the stuck pods go", || {
        let list = control.get(["pods", "-l", "group=stuck"]).unwrap_or_default();
        list["items"].as_array().is_some_and(Vec::is_empty)
    })
    .unwrap();
    drop(driver);
    drop(node);
    let _ = std::fs::remove_dir_all(&scratch);
}
