//! Static pods on a standalone node, under either kubelet (`KUBELET=go|rubelet`) and either line of
//! the runtime: what a manifest folder promises.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::time::Duration;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{KubeletKind, RuntimeLine, TestNode};

const START: Duration = Duration::from_secs(60);

fn node(line: RuntimeLine) -> TestNode {
    let kind = KubeletKind::from_env().unwrap();
    TestNode::builder().runtime(line).kubelet(kind).start().unwrap()
}

/// A pod of one container that prints `word` and waits; it ends at once on SIGTERM.
fn pod(name: &str, word: &str) -> String {
    let script = format!("echo {word}; trap 'echo bye; exit 0' TERM; sleep 3600 & wait");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 10,
            "containers": [{
                "name": name,
                "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "command": ["sh", "-c", script],
            }],
        },
    })
    .to_string()
}

/// What the container wrote, from the kubelet's log folder.
fn log_of(node: &TestNode, container: &str) -> String {
    let mut text = String::new();
    for pod in std::fs::read_dir(node.pod_logs_dir()).into_iter().flatten().flatten() {
        for log in std::fs::read_dir(pod.path().join(container)).into_iter().flatten().flatten() {
            text.push_str(&std::fs::read_to_string(log.path()).unwrap_or_default());
        }
    }
    text
}

fn running(node: &TestNode) -> Vec<Value> {
    let all = node.containers().unwrap();
    all.into_iter().filter(|container| container["state"] == "CONTAINER_RUNNING").collect()
}

fn starts_changes_and_ends(line: RuntimeLine) {
    let node = node(line);
    node.add_manifest("web.json", &pod("web", "first")).unwrap();
    let first = node.wait_running("web", START).unwrap();
    eventually!(10, log_of(&node, "web").contains("first"));

    node.add_manifest("web.json", &pod("web", "second")).unwrap();
    eventually!(60, running(&node).first().is_some_and(|c| c["id"] != first.as_str()));
    eventually!(10, log_of(&node, "web").contains("second"));
    assert_eq!(running(&node).len(), 1, "the old pod must be gone before the new one runs");

    node.remove_manifest("web.json").unwrap();
    eventually!(60, running(&node).is_empty());
    eventually!(90, node.sandboxes().unwrap().iter().all(|s| s["state"] != "SANDBOX_READY"));
}

#[test]
fn manifest_starts_changes_and_ends_a_pod_on_containerd_2() {
    starts_changes_and_ends(RuntimeLine::V2);
}

#[test]
fn manifest_starts_changes_and_ends_a_pod_on_containerd_1_6() {
    starts_changes_and_ends(RuntimeLine::V1);
}

#[test]
fn broken_manifest_is_reported_and_the_others_run() {
    let mut node = node(RuntimeLine::V2);
    node.add_manifest("broken.yaml", "apiVersion: v1\nkind: Pod\nmetadata: [\n").unwrap();
    node.add_manifest("good.json", &pod("good", "fine")).unwrap();
    node.wait_running("good", START).unwrap();
    let log = node.kubelet().unwrap().log().to_path_buf();
    eventually!(30, std::fs::read_to_string(&log).unwrap().contains("broken.yaml"));
}

#[test]
fn restart_of_the_kubelet_leaves_containers_untouched() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = node(RuntimeLine::V2);
    node.add_manifest("stay.json", &pod("stay", "here")).unwrap();
    let before = node.wait_running("stay", START).unwrap();
    node.stop_kubelet();
    assert_eq!(node.wait_running("stay", START).unwrap(), before, "stopping must not touch it");
    node.start_kubelet(kind).unwrap();
    node.kill_kubelet();
    node.start_kubelet(kind).unwrap();
    // A second pod that comes up proves that the kubelet works again; the first must be the same.
    node.add_manifest("new.json", &pod("new", "word")).unwrap();
    node.wait_running("new", START).unwrap();
    let names: Vec<Value> = node.containers().unwrap().iter().map(|c| c["id"].clone()).collect();
    assert_eq!(names.len(), 2, "no container may be started twice");
    assert!(names.contains(&json!(before)));
}
