//! Swapping places: the Go kubelet and Rubelet take turns on one node with running pods of many
//! kinds. No container may restart, and no pod may stop being Ready under Rubelet.
//!
//! `ROUNDS=n` sets how often each takes over (default 2; `make swap-test` does 20).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{KubeletKind, TestNode};
use tests::residents::{NAMESPACE, Residents, by_exec, is_ready, one, pod};

/// A static pod whose manifest comes while Rubelet is in charge: the Go kubelet finds it running.
fn late() -> Value {
    pod("static-late", one(&by_exec()))
}

/// Ids of all containers of the swapped pods, by pod and name.
fn containers(node: &TestNode) -> BTreeMap<String, String> {
    let all = node.containers().unwrap();
    let named = all.iter().filter_map(|container| {
        let label = |key: &str| container["labels"][key].as_str().unwrap_or_default();
        let (pod, name) = (label("io.kubernetes.pod.name"), label("io.kubernetes.container.name"));
        let id = container["id"].as_str()?.to_owned();
        (!pod.starts_with("marker")).then(|| (format!("{pod}/{name}/{id}"), id))
    });
    named.collect()
}

/// What was given out: the CPUs on which the exclusive pod's process may run, and who has which
/// CPUs and devices by the state files.
fn given(node: &TestNode) -> Value {
    let inspect = |pod: &str| -> Value {
        let found = containers(node).into_iter().find(|(name, _)| name.starts_with(pod));
        let id = found.map(|(_, id)| id).unwrap_or_default();
        serde_json::from_str(&node.crictl(["inspect", &id]).unwrap()).unwrap()
    };
    let process = inspect("exclusive/")["info"]["pid"].as_i64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let state = |path: std::path::PathBuf| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let devices = state(node.devices_dir().join("kubelet_internal_checkpoint"));
    json!({
        "process": cpus.unwrap_or_default().trim(),
        "cpus": state(node.root_dir().join("cpu_manager_state"))["entries"],
        "devices": devices["Data"]["PodDeviceEntries"],
    })
}

fn mounts(node: &TestNode) -> Vec<String> {
    let root = node.root_dir();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The mount's number changes when something is unmounted and mounted again.
    let fields = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next().unwrap_or_default().to_owned();
        let point = fields.nth(3).unwrap_or_default().to_owned();
        (id, point)
    };
    let below = table.lines().map(fields).filter(|(_, point)| {
        std::path::Path::new(point).starts_with(&root) && !point.contains("marker")
    });
    below.map(|(id, point)| format!("{id} {point}")).collect()
}

/// What must be the same before and after: everything but the version that was seen.
fn shown(pod: &Value) -> Value {
    let mut status = pod["status"].clone();
    if let Some(fields) = status.as_object_mut() {
        // What the Go kubelet shows here differs from run to run on cgroup v1.
        fields.remove("resources");
    }
    status
}

struct Node {
    all: Residents,
}

impl Node {
    /// One more static pod, which the Go kubelet has not seen yet.
    fn add_late(&mut self) {
        self.all.add_static(&late()).unwrap();
        let shown = || self.all.observer.pod("static-late-node1");
        eventually!(60, shown().is_some_and(|pod| is_ready(&pod)));
    }

    fn statuses(&self) -> BTreeMap<String, Value> {
        let status = |name: &String| self.all.observer.pod(name).map(|pod| shown(&pod));
        self.all.names().iter().filter_map(|name| Some((name.clone(), status(name)?))).collect()
    }

    /// Let `kind` take over, and prove that it works by a pod that comes and goes.
    fn hand_over(&mut self, kind: KubeletKind, round: usize) {
        self.all.node.stop_kubelet();
        let before = containers(&self.all.node);
        let mounted = mounts(&self.all.node);
        let gave = given(&self.all.node);
        let calls = self.all.driver.calls().len();
        let statuses = self.statuses();
        let seen: BTreeMap<String, usize> = self
            .all
            .names()
            .iter()
            .map(|name| (name.clone(), self.all.observer.steps(name).len()))
            .collect();
        self.all.node.start_kubelet(kind).unwrap();
        let marker = format!("marker-{round}-{kind:?}").to_lowercase();
        self.all.control.create(&pod(&marker, one(&by_exec()))).unwrap();
        eventually!(60, self.all.observer.pod(&marker).is_some_and(|pod| is_ready(&pod)));
        self.all
            .control
            .kubectl(["delete", "pod", &marker, "-n", NAMESPACE, "--wait=false"])
            .unwrap();
        eventually!(60, self.all.observer.is_gone(&marker));

        assert_eq!(
            containers(&self.all.node),
            before,
            "round {round}: {kind:?} touched containers"
        );
        assert_eq!(mounts(&self.all.node), mounted, "round {round}: {kind:?} touched mounts");
        assert_eq!(given(&self.all.node), gave, "round {round}: {kind:?} gave out otherwise");
        // Both ask the driver once more for what is there already, and it does nothing; nobody may
        // ask it to take anything away.
        let undone: Vec<String> = self.all.driver.calls().split_off(calls);
        let undone: Vec<&String> =
            undone.iter().filter(|call| call.starts_with("NodeUn")).collect();
        assert_eq!(undone, [] as [&String; 0], "round {round}: {kind:?} took a volume away");
        if kind == KubeletKind::Go {
            // It lets Ready fall for static, sidecar and probed pods when it starts.
            self.all.settle().unwrap();
            return;
        }
        for (name, already) in seen {
            let steps = self.all.observer.steps(&name);
            assert_eq!(
                steps.get(already..).unwrap_or_default(),
                [] as [Value; 0],
                "round {round}: the status of {name} moved under {kind:?}"
            );
        }
        assert_eq!(self.statuses(), statuses, "round {round}: {kind:?} changed a status");
    }
}

#[test]
fn kubelets_take_turns_without_touching_a_container() {
    let rounds = std::env::var("ROUNDS").map_or(2, |rounds| rounds.parse().unwrap());
    let other = KubeletKind::from_env().unwrap();
    let mut node = Node { all: Residents::start(KubeletKind::Go, &[]).unwrap() };
    for round in 0..rounds {
        node.hand_over(other, round);
        if round == 0 {
            node.add_late();
        }
        node.hand_over(KubeletKind::Go, round);
    }
}
