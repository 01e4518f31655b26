//! A node under bad luck: the kubelet killed at random moments, the runtime restarted under load.
//! Under either kubelet (`KUBELET=go|rubelet`); `SEED=n` repeats a run.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{KubeletKind, RuntimeLine, TestNode};

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

const STAYS: &str = "trap 'exit 0' TERM; sleep 3600 & wait";
const ENDS: &str = "sleep 1";

/// Small numbers in an order that a seed fixes.
struct Chance(u64);

impl Chance {
    fn from_env() -> Chance {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        Chance(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

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
    let mut chance = Chance::from_env();
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
        std::thread::sleep(Duration::from_millis(200 + chance.below(1500)));
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
