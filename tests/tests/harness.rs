//! The harness itself, before anything is trusted to it: both runtimes, the API server, clean-up.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use testkit::eventually;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, RuntimeLine, TestNode};
use tests::golden::load_all;
use tests::recording_node::RecordingNode;

/// Start a sandbox straight over CRI and give its id.
fn run_sandbox(node: &TestNode) -> String {
    let config = json!({
        "metadata": { "name": "sandbox", "namespace": "default", "uid": "u1" },
        "log_directory": node.pod_logs_dir(),
        "linux": { "cgroup_parent": format!("/{}/sandboxes", node.slot().cgroup()) },
    });
    let file = node.slot().write("etc/sandbox.json", config.to_string()).unwrap();
    node.crictl(["runp", file.to_str().unwrap()]).unwrap().trim().to_owned()
}

fn runs_a_pod_sandbox_with_an_address(line: RuntimeLine) {
    let node = TestNode::builder().runtime(line).start().unwrap();
    let id = run_sandbox(&node);
    let status = node.crictl(["inspectp", &id]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["status"]["state"], "SANDBOX_READY");
    let address = status["status"]["network"]["ip"].as_str().unwrap();
    let prefix = node.slot().subnet();
    let prefix = prefix.rsplit_once('.').unwrap().0.rsplit_once('.').unwrap().0;
    assert!(address.starts_with(prefix), "{address} is not in {prefix}");
}

#[test]
fn containerd_of_the_1_6_line_runs_a_pod_sandbox() {
    runs_a_pod_sandbox_with_an_address(RuntimeLine::V1);
}

#[test]
fn containerd_of_the_2_line_runs_a_pod_sandbox() {
    runs_a_pod_sandbox_with_an_address(RuntimeLine::V2);
}

#[test]
fn api_server_stores_what_kubectl_creates() {
    let control = ControlPlane::start(&ControlPlaneOptions::default()).unwrap();
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "n1" } });
    control.create(&namespace).unwrap();
    assert_eq!(control.get(["namespace", "n1"]).unwrap()["metadata"]["name"], "n1");
    let version: serde_json::Value =
        serde_json::from_str(&control.kubectl(["get", "--raw", "/version"]).unwrap()).unwrap();
    assert_eq!(version["gitVersion"], "v1.36.4");
}

#[test]
fn go_kubelet_registers_and_becomes_ready() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let mut node = TestNode::builder().kubelet(KubeletKind::Go).join(&control).start().unwrap();
    let object = control.get(["node", "node1"]).unwrap();
    assert_eq!(object["status"]["nodeInfo"]["kubeletVersion"], "v1.36.4");
    assert_eq!(node.kubelet_get("/healthz").unwrap(), (200, "ok".to_owned()));
    node.stop_kubelet();
    assert!(node.kubelet_get("/healthz").is_err());
}

/// Before the recorder and the comparison are trusted with our kubelet, they must find the Go
/// kubelet equal to its own record.
#[test]
fn go_kubelet_reproduces_its_own_record() {
    let basic = load_all().unwrap().into_iter().find(|golden| golden.name == "basic").unwrap();
    let recording_node = RecordingNode::start(KubeletKind::Go).unwrap();
    assert_eq!(recording_node.run(&basic).unwrap(), []);
}

#[test]
fn dropping_a_node_leaves_nothing_of_it() {
    let node = TestNode::builder().start().unwrap();
    run_sandbox(&node);
    let dir = node.slot().dir().to_path_buf();
    let bridge = format!("/sys/class/net/{}", node.slot().bridge());
    let cgroup = node.slot().cgroup();
    assert!(Path::new(&bridge).is_dir());
    assert!(!mounts_below(&dir).is_empty());
    drop(node);
    assert!(!dir.is_dir(), "{} is still there", dir.display());
    assert_eq!(mounts_below(&dir), Vec::<String>::new());
    assert!(!Path::new(&bridge).is_dir(), "{bridge} is still there");
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "2", "-name", &cgroup])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn killing_the_runtime_leaves_its_containers_running() {
    let mut node = TestNode::builder().start().unwrap();
    let id = run_sandbox(&node);
    node.restart_runtime().unwrap();
    eventually!(
        20,
        node.sandboxes().is_ok_and(|all| all
            .iter()
            .any(|sandbox| sandbox["id"] == id.as_str() && sandbox["state"] == "SANDBOX_READY"))
    );
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(dir)).map(str::to_owned).collect()
}
