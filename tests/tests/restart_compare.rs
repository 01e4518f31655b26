//! What a restart by `kill -9` changes on a node, next to what it changes with the Go kubelet: nothing may differ
//! afterwards under Rubelet, or across a change from one to the other, that does not differ with the Go kubelet.
//!
//! `WAIT=seconds` is how long each kubelet is in charge before the node is looked at (default 20; `make
//! restart-compare` takes 75, beyond every period of either). `FIRST=rubelet` lets Rubelet make the pods.
//! `SHOW=1` prints what differs with the Go kubelet too.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::KubeletKind;
use tests::notes::{self, Notes};
use tests::residents::{Residents, STAYS, container, mounted, one, pod};

/// How long between two looks that tell what moves by itself.
const BETWEEN: Duration = Duration::from_secs(8);

fn wait() -> Duration {
    let seconds = std::env::var("WAIT").map_or(20, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Beside the usual ones: ports of the host, groups that own volumes, parts of volumes, and enough of each class
/// that sums over pods show.
fn more() -> Vec<Value> {
    let port = json!({ "ports": [{ "containerPort": 80, "hostPort": 39_080 }] });
    let mut grouped = mounted(json!({ "emptyDir": {} }), STAYS);
    grouped["securityContext"] = json!({ "fsGroup": 4321 });
    let part = json!([{ "name": "v", "mountPath": "/v", "subPath": "part" }]);
    let parts = json!({ "containers": [container(&json!({ "volumeMounts": part }))],
        "volumes": [{ "name": "v", "emptyDir": {} }] });
    let asks =
        |cpu: &str| one(&json!({ "resources": { "requests": { "cpu": cpu, "memory": "16Mi" } } }));
    let mut burst = pod("whole-pod", one(&json!({})));
    burst["spec"]["resources"] = json!({ "requests": { "cpu": "20m", "memory": "16Mi" },
        "limits": { "cpu": "100m", "memory": "64Mi" } });
    vec![
        pod("port", one(&port)),
        pod("grouped", grouped),
        pod("parts", parts),
        pod("hidden", mounted(json!({ "secret": { "secretName": "settings" } }), STAYS)),
        pod("asks-a", asks("30m")),
        pod("asks-b", asks("40m")),
        burst,
    ]
}

/// Notes of what stays as it is while nobody does anything.
fn look(node: &Residents) -> Notes {
    std::thread::sleep(wait());
    node.settle().unwrap();
    let first = notes::take(&node.node, &node.control).unwrap();
    std::thread::sleep(BETWEEN);
    notes::steady(&first, &notes::take(&node.node, &node.control).unwrap())
}

/// A difference by what it is about: the numbers that a run makes up do not matter.
type Differences = BTreeMap<String, (String, String)>;

/// Whether a difference is about the kubelet that runs, not about the node: its own state, its version, and what it
/// shows of itself (`make metrics-compare` is about that).
fn is_own(name: &str, swap: bool) -> bool {
    name.starts_with("file /rubelet")
        || (swap && name == "node.status.nodeInfo.kubeletVersion")
        || (swap && name.starts_with("gauge "))
}

/// What a difference is about: one static pod is as good as another.
fn about(name: &str) -> String {
    let of_static = name.strip_prefix("pod static").and_then(|rest| rest.split_once('.'));
    of_static.map_or_else(|| name.to_owned(), |(_, field)| format!("pod static.{field}"))
}

fn name_of(kind: KubeletKind) -> &'static str {
    if kind == KubeletKind::Go { "Go" } else { "rubelet" }
}

#[test]
fn a_restart_changes_nothing_that_it_does_not_change_with_the_go_kubelet() {
    let (go, ours) = (KubeletKind::Go, KubeletKind::Rubelet);
    let turns = match std::env::var("FIRST").as_deref() {
        Ok("rubelet") => [ours, ours, go, go, ours],
        _ => [go, go, ours, ours, go],
    };
    let mut node = Residents::start(turns[0], &more()).unwrap();
    let mut before = look(&node);
    println!("{} facts are noted", before.len());
    let mut changes: Vec<((KubeletKind, KubeletKind), Differences)> = Vec::new();
    for pair in turns.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        node.node.kill_kubelet();
        node.node.start_kubelet(to).unwrap();
        let after = look(&node);
        let mut found = notes::differences(&before, &after);
        found.retain(|name, _| !is_own(name, from != to));
        println!("{} -> {}: {} differ", name_of(from), name_of(to), found.len());
        changes.push(((from, to), found));
        before = after;
    }
    let with_go: BTreeSet<String> = changes
        .iter()
        .filter(|(pair, _)| *pair == (go, go))
        .flat_map(|(_, found)| found.keys().map(|name| about(name)))
        .collect();
    let mut wrong = Vec::new();
    for ((from, to), found) in &changes {
        let title = format!("{} -> {}", name_of(*from), name_of(*to));
        for (name, (was, is)) in found {
            let line = format!("{title}: {name}: {was} -> {is}");
            if (*from, *to) != (go, go) && !with_go.contains(&about(name)) {
                wrong.push(line);
            } else if std::env::var_os("SHOW").is_some() {
                println!("with Go too: {line}");
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
