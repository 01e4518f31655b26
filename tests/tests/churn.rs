//! Pods that come and go, round after round, each under a name of its own: memory, descriptors, threads and metric
//! series stay as they were after the first rounds, and nothing of the pods is left on the node.
//! `make soak` goes on for many rounds.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some, run,
};
use tests::cluster::{BUSYBOX, PAUSE, Space, condition};
use tests::leftovers;

/// The longest that a round's pods may take to come or to go.
const PATIENCE: Duration = Duration::from_secs(180);
/// Rounds after which everything that is made once has been made.
const WARM: usize = 2;

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    resident_kib: u64,
    descriptors: usize,
    threads: usize,
    series: usize,
}

impl Held {
    fn of(pid: u32, node: &TestNode) -> Held {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let count = |folder| std::fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
        Held {
            resident_kib: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
            descriptors: count("fd"),
            threads: count("task"),
            series: page(node, "/metrics").lines().filter(|line| !line.starts_with('#')).count(),
        }
    }
}

fn page(node: &TestNode, path: &str) -> String {
    let address = format!("https://127.0.0.1:{}{path}", node.api_port());
    run("curl", ["-fsSk", "-m", "60", &address]).unwrap()
}

/// One of five kinds of pods, with what makes it count as having come.
fn pod(name: &str, kind: usize) -> Value {
    let sleep = json!(["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]);
    let mut spec = match kind {
        0 => json!({
            "containers": [{ "name": "main", "image": PAUSE,
                "volumeMounts": [{ "name": "files", "mountPath": "/files" }] }],
            "volumes": [{ "name": "files", "projected": { "sources": [
                { "configMap": { "name": "words" } }, { "secret": { "name": "secrets" } },
                { "downwardAPI": { "items": [
                    { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
            ] } }],
        }),
        1 => json!({ "containers": [{ "name": "main", "image": BUSYBOX, "command": sleep,
            "startupProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1 },
            "livenessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1 },
            "readinessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 1 },
        }] }),
        2 => json!({ "containers": [{ "name": "main", "image": BUSYBOX,
            "command": ["sh", "-c", "echo it fails; exit 3"] }] }),
        3 => json!({
            "restartPolicy": "Never",
            "initContainers": [
                { "name": "first", "image": BUSYBOX, "command": ["true"] },
                { "name": "side", "image": BUSYBOX, "command": sleep, "restartPolicy": "Always" },
            ],
            "containers": [{ "name": "main", "image": BUSYBOX, "command": ["true"] }],
        }),
        _ => json!({
            "containers": [{ "name": "main", "image": BUSYBOX, "command": sleep,
                "resources": { "limits": { "cpu": "100m", "memory": "32Mi" } },
                "lifecycle": { "preStop": { "exec": { "command": ["true"] } } },
                "volumeMounts": [{ "name": "room", "mountPath": "/room", "subPath": "below" }] }],
            "volumes": [{ "name": "room", "emptyDir": { "medium": "Memory" } }],
        }),
    };
    spec["nodeName"] = "node1".into();
    spec["terminationGracePeriodSeconds"] = 1.into();
    spec["automountServiceAccountToken"] = false.into();
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// Whether a pod has come as far as its kind goes.
fn has_come(pod: &Value, kind: usize) -> bool {
    match kind {
        2 => pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1),
        3 => pod["status"]["phase"] == "Succeeded",
        _ => condition(pod, "Ready") == "True",
    }
}

/// Every other pod is removed from the API server at once, before the node has ended it.
fn round(space: &Space<'_>, node: &TestNode, round: usize, pods: usize) {
    let name = |index: usize| format!("r{round}-{index}");
    for index in 0..pods {
        space.create(pod(&name(index), index % 5)).unwrap();
    }
    eventually_some(PATIENCE, &format!("the pods of round {round} have come"), || {
        let list = space.get(&["pods"]).ok()?;
        let list = list["items"].as_array()?;
        let kind = |pod: &Value| {
            let (_, index) = pod["metadata"]["name"].as_str()?.rsplit_once('-')?;
            Some(index.parse::<usize>().ok()? % 5)
        };
        let come = |pod: &Value| kind(pod).is_some_and(|kind| has_come(pod, kind));
        (list.len() == pods && list.iter().all(come)).then_some(())
    })
    .unwrap();
    for path in ["/pods", "/stats/summary", "/metrics/cadvisor"] {
        assert!(page(node, path).contains(&name(0)), "{path}");
    }
    let (at_once, later): (Vec<String>, Vec<String>) =
        (0..pods).map(name).partition(|name| name.ends_with(['1', '3', '5', '7', '9']));
    let delete = |names: &[String], how: &[&str]| {
        let names = names.iter().map(String::as_str);
        let args: Vec<&str> = ["delete", "pod"].into_iter().chain(names).collect();
        space.kubectl(&[&args, how].concat()).unwrap();
    };
    delete(&at_once, &["--force", "--grace-period=0"]);
    delete(&later, &["--wait=false"]);
    let mut left = Vec::new();
    eventually_some(PATIENCE, &format!("nothing is left of round {round}"), || {
        let list = space.get(&["pods"]).ok()?;
        left = leftovers::of(node).ok()?;
        (list["items"].as_array()?.is_empty() && left.is_empty()).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}: {left:#?}"));
}

#[test]
fn pods_that_come_and_go_leave_the_agent_as_it_was() {
    let (rounds, pods) = (number("ROUNDS", 4).max(WARM + 1), number("PODS", 10));
    let kind = KubeletKind::from_env().unwrap();
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let options = KubeletOptions { verbosity: 2, ..KubeletOptions::default() };
    let mut node =
        TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let pid = node.kubelet().unwrap().pid();
    let space = Space::default_of(&control);
    space.kubectl(&["create", "configmap", "words", "--from-literal=word=one"]).unwrap();
    space.kubectl(&["create", "secret", "generic", "secrets", "--from-literal=key=two"]).unwrap();
    let mut before = None;
    let mut after = Held::of(pid, &node);
    for index in 1..=rounds {
        round(&space, &node, index, pods);
        after = Held::of(pid, &node);
        println!("round {index}: {after:?}");
        if index == WARM {
            before = Some(after);
        }
    }
    let before = before.unwrap();
    assert!(node.kubelet().unwrap().is_running() && node.kubelet().unwrap().pid() == pid);
    assert!(after.descriptors <= before.descriptors + 8, "{before:?} became {after:?}");
    assert!(after.threads <= before.threads + 8, "{before:?} became {after:?}");
    assert!(after.series <= before.series + 40, "{before:?} became {after:?}");
    assert!(after.resident_kib <= before.resident_kib + 4096, "{before:?} became {after:?}");
}
