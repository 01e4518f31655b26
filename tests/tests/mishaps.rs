//! Faults of the agent itself on a real node: each kind of task panics once (debug builds have a variable for that).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::time::Duration;

use testkit::real::{KubeletKind, TestNode, eventually};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// Tasks that begin anew. Those that are over sooner than the variable lets them panic (looks, audits) have their
/// test on a node in memory.
const ANEW: [&str; 11] = [
    "actuated-state",
    "allocated-state",
    "health",
    "image collection",
    "iptables",
    "memory",
    "pod-worker",
    "probe",
    "probe-store",
    "qos-cgroups",
    "runtime-events",
];

/// Tasks whose panic ends the process.
const FATAL: [&str; 11] = [
    "certificate-files",
    "container-gc",
    "eviction",
    "https",
    "log rotation",
    "node-view",
    "plugin-watch",
    "pods",
    "pods-from-files",
    "runtime-view",
    "volumes",
];

fn manifest(name: &str) -> String {
    let probe = serde_json::json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": name, "image": IMAGE, "command": ["sleep", "3600"],
                "readinessProbe": probe
            }]
        }
    })
    .to_string()
}

fn kubelet_log(node: &mut TestNode) -> String {
    let log = node.kubelet().map(|service| service.log().to_owned()).unwrap();
    std::fs::read_to_string(log).unwrap_or_default()
}

#[test]
fn whatever_task_panics_the_node_goes_on_or_its_process_ends_with_the_name() {
    let mut node = TestNode::builder().kubelet(KubeletKind::Rubelet).start().unwrap();
    node.add_manifest("old.json", &manifest("old")).unwrap();
    node.wait_running("old", PATIENCE).unwrap();
    node.stop_kubelet();
    node.add_variable("RUBELET_PANIC", &ANEW.join(","));
    node.start_kubelet(KubeletKind::Rubelet).unwrap();
    node.add_manifest("new.json", &manifest("new")).unwrap();
    node.wait_running("new", PATIENCE).unwrap();
    let counted = |name: &str| format!("rubelet_task_panics_total{{task=\"{name}\"}} 1");
    let mut page = String::new();
    let all = eventually(PATIENCE, "every task has panicked once", || {
        page = node.kubelet_get("/metrics").map(|(_, page)| page).unwrap_or_default();
        ANEW.iter().all(|name| page.contains(&counted(name)))
    });
    let missing: Vec<_> = ANEW.iter().filter(|name| !page.contains(&counted(name))).collect();
    assert!(all.is_ok(), "{missing:?} did not panic");
    node.remove_manifest("old.json").unwrap();
    let gone = || node.containers().is_ok_and(|all| all.len() == 1);
    eventually(PATIENCE, "the old pod is gone", gone).unwrap();
    node.stop_kubelet();

    for name in FATAL {
        node.add_variable("RUBELET_PANIC", name);
        node.launch_kubelet(KubeletKind::Rubelet).unwrap();
        let ended = eventually(PATIENCE, &format!("the process ends with {name}"), || {
            !node.kubelet().is_some_and(testkit::real::Service::is_running)
        });
        let log = kubelet_log(&mut node);
        let tail: Vec<&str> = log.lines().rev().take(5).collect();
        assert!(
            ended.is_ok() && log.contains(&format!("task {name} panicked")),
            "{name}: {tail:?}"
        );
        node.kill_kubelet();
    }
    node.add_variable("RUBELET_PANIC", "");
    node.start_kubelet(KubeletKind::Rubelet).unwrap();
    node.wait_running("new", PATIENCE).unwrap();
}
