//! A node in trouble: the kubelet killed at random moments (`crash.rs` does it at length), the runtime
//! killed under load, hanging, or not there at all. Under either kubelet (`KUBELET=go|rubelet`).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, RuntimeLine, TestNode, run};
use tests::cluster::{Space, condition};
use tests::rng::Rng;

/// A pod whose only container, of the same name, runs `script`.
fn pod(name: &str, policy: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": name,
                "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "command": ["sh", "-c", script],
            }],
        },
    })
    .to_string()
}

const ENDS: &str = "sleep 1";
const STAYS: &str = "trap 'exit 0' TERM; sleep 3600 & wait";

/// Running containers by name.
fn running(node: &TestNode) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for container in node.containers().unwrap() {
        if container["state"] == "CONTAINER_RUNNING" {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = text(&container["metadata"]["name"]);
            found.entry(name).or_default().push(text(&container["id"]));
        }
    }
    found
}

fn exited(node: &TestNode, name: &str) -> bool {
    let all = node.containers().unwrap();
    all.iter().any(|c| c["metadata"]["name"] == name && c["state"] == "CONTAINER_EXITED")
}

#[test]
fn killing_the_kubelet_at_random_duplicates_and_loses_nothing() {
    let kind = KubeletKind::from_env().unwrap();
    let mut rng = Rng::from_env(7);
    let mut node = TestNode::builder().kubelet(kind).start().unwrap();
    for index in 0..10 {
        for (prefix, policy, script) in
            [("stay", "Always", STAYS), ("end", "Never", ENDS), ("leave", "Always", STAYS)]
        {
            let name = format!("{prefix}{index}");
            node.add_manifest(&format!("{name}.json"), &pod(&name, policy, script)).unwrap();
        }
    }
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(200 + rng.below(1500)));
        node.kill_kubelet();
        for (name, ids) in running(&node) {
            assert_eq!(ids.len(), 1, "round {round}: {name} runs twice: {ids:?}");
        }
        if round < 5 {
            for index in [round * 2, round * 2 + 1] {
                node.remove_manifest(&format!("leave{index}.json")).unwrap();
            }
        }
        node.launch_kubelet(kind).unwrap();
    }
    eventually!(120, {
        let now = running(&node);
        (0..10).all(|index| now.contains_key(&format!("stay{index}")))
            && !now.keys().any(|name| name.starts_with("leave") || name.starts_with("end"))
            && (0..10).all(|index| exited(&node, &format!("end{index}")))
    });
    for (name, ids) in running(&node) {
        assert_eq!(ids.len(), 1, "{name} runs twice: {ids:?}");
    }
}

fn runtime_restart_spares_healthy_containers(line: RuntimeLine) {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().runtime(line).kubelet(kind).start().unwrap();
    for index in 0..12 {
        let name = format!("old{index}");
        node.add_manifest(&format!("{name}.json"), &pod(&name, "Always", STAYS)).unwrap();
    }
    eventually!(90, running(&node).len() == 12);
    let before = running(&node);
    for index in 0..8 {
        let name = format!("new{index}");
        node.add_manifest(&format!("{name}.json"), &pod(&name, "Always", STAYS)).unwrap();
    }
    eventually!(30, running(&node).len() > 12);
    node.restart_runtime().unwrap();
    eventually!(120, running(&node).len() == 20);
    let after = running(&node);
    for (name, id) in &before {
        assert_eq!(after.get(name), Some(id), "{name} was restarted");
    }
}

#[test]
fn restart_of_containerd_2_under_load_spares_healthy_containers() {
    runtime_restart_spares_healthy_containers(RuntimeLine::V2);
}

#[test]
fn restart_of_containerd_1_6_under_load_spares_healthy_containers() {
    runtime_restart_spares_healthy_containers(RuntimeLine::V1);
}

/// A process that does not get the CPU until this is dropped.
struct Stopped(String);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let pid = pid.to_string();
        run("kill", ["-STOP", pid.as_str()]).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(run("kill", ["-CONT", self.0.as_str()]));
    }
}

#[test]
fn a_hanging_runtime_makes_the_node_not_ready_until_it_goes_on() {
    let kind = KubeletKind::from_env().unwrap();
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let node = TestNode::builder().kubelet(kind).join(&control).start().unwrap();
    let space = Space::default_of(&control);
    let create = |name: &str| {
        let mut pod: Value = serde_json::from_str(&pod(name, "Always", STAYS)).unwrap();
        pod["spec"]["nodeName"] = "node1".into();
        pod["spec"]["automountServiceAccountToken"] = false.into();
        pod["spec"]["containers"][0]["readinessProbe"] =
            json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "failureThreshold": 300 });
        space.create(pod).unwrap();
    };
    create("before");
    let before = space.wait_ready("before").unwrap();
    let hanging = Stopped::new(node.runtime().pid().unwrap());
    create("during");
    // The kubelet gives its runtime half a minute.
    eventually!(150, {
        let object = control.get(["node", "node1"]).unwrap();
        let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = all.iter().find(|c| c["type"] == "Ready").cloned().unwrap_or_default();
        let message = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "False"
            && ready["reason"] == "KubeletNotReady"
            && message.contains("container runtime is down")
    });
    drop(hanging);
    eventually!(90, condition(&control.get(["node", "node1"]).unwrap(), "Ready") == "True");
    space.wait_ready("during").unwrap();
    let after = space.get(&["pod", "before"]).unwrap();
    let shown = |pod: &Value| {
        let status = pod["status"]["containerStatuses"][0].clone();
        (status["containerID"].clone(), status["restartCount"].clone(), status["ready"].clone())
    };
    assert_eq!(shown(&after), shown(&before), "a healthy container was disturbed");
}

#[test]
fn without_a_runtime_the_kubelet_ends_and_says_which_it_lacks() {
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().start().unwrap();
    node.stop_runtime();
    node.launch_kubelet(kind).unwrap();
    eventually!(60, !node.kubelet().unwrap().is_running());
    let log = node.kubelet().unwrap().log_tail(200);
    let socket = format!("unix://{}", node.runtime().socket().display());
    let text = format!("validate CRI v1 runtime API for endpoint {socket:?}");
    let escaped = text.replace('"', "\\\"");
    assert!(log.contains(&text) || log.contains(&escaped), "{log}");
}
