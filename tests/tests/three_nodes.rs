//! Three kubelets on one machine, in one cluster: the real scheduler spreads pods over them, a node is
//! drained, the API server goes away in the middle of a rollout.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use testkit::real::KubeletKind;
use tests::cluster::{Cluster, PAUSE, Space, condition};

const REPLICAS: usize = 60;

fn deployment() -> Value {
    let spread = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "app": "many" } },
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "many" },
        "spec": {
            "replicas": REPLICAS,
            "strategy": { "rollingUpdate": { "maxSurge": 10, "maxUnavailable": 10 } },
            "selector": { "matchLabels": { "app": "many" } },
            "template": {
                "metadata": { "labels": { "app": "many" } },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "topologySpreadConstraints": spread,
                    "containers": [{ "name": "c", "image": PAUSE }],
                },
            },
        },
    })
}

/// The ready pods that are not on their way out, by node.
fn by_node(space: &Space<'_>) -> BTreeMap<String, Vec<Value>> {
    let mut nodes = BTreeMap::<String, Vec<Value>>::new();
    for pod in space.pods("app=many").unwrap_or_default() {
        let stays = pod["metadata"].get("deletionTimestamp").is_none();
        if stays && condition(&pod, "Ready") == "True" {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            nodes.entry(node).or_default().push(pod);
        }
    }
    nodes
}

fn all_ready(space: &Space<'_>, nodes: usize) -> BTreeMap<String, Vec<Value>> {
    space
        .wait(&format!("{REPLICAS} ready pods on {nodes} nodes"), || {
            let found = by_node(space);
            let count: usize = found.values().map(Vec::len).sum();
            (count == REPLICAS && found.len() == nodes).then_some(found)
        })
        .unwrap()
}

#[test]
fn sixty_pods_are_spread_drained_and_rolled_out_over_a_restart_of_the_api_server() {
    let cluster = Cluster::start(KubeletKind::from_env().unwrap(), 3).unwrap();
    let space = cluster.namespace("many").unwrap();
    space.create(deployment()).unwrap();
    let spread = all_ready(&space, 3);
    for (node, pods) in &spread {
        assert!((15..=25).contains(&pods.len()), "{} pods on {node}", pods.len());
    }
    let addresses: BTreeSet<String> =
        spread.values().flatten().map(|pod| pod["status"]["podIP"].to_string()).collect();
    assert_eq!(addresses.len(), REPLICAS);

    cluster.control().kubectl(["cordon", "node2"]).unwrap();
    let drain = ["drain", "node2", "--ignore-daemonsets", "--timeout=120s"];
    cluster.control().kubectl(drain).unwrap();
    let left = all_ready(&space, 2);
    assert!(!left.contains_key("node2"), "{:?}", left.keys());
    let containers = |node: usize| {
        let list = cluster.nodes().get(node).and_then(|n| n.containers().ok()).unwrap_or_default();
        list.into_iter().filter(|c| c["state"] == "CONTAINER_RUNNING").count()
    };
    space.wait("the drained node runs nothing", || (containers(1) == 0).then_some(())).unwrap();
    let events = Space::default_of(cluster.control()).reasons("node2").unwrap();
    assert!(events.iter().any(|reason| reason == "NodeNotSchedulable"), "{events:?}");
    cluster.control().kubectl(["uncordon", "node2"]).unwrap();

    space.kubectl(&["set", "env", "deployment/many", "VERSION=2"]).unwrap();
    let new = |pod: &Value| pod["spec"]["containers"][0]["env"][0]["value"] == "2";
    space
        .wait("the rollout has begun", || by_node(&space).values().flatten().any(new).then_some(()))
        .unwrap();
    cluster.control().stop_api_server();
    // Pods do not need it: everything that ran, or was about to, runs.
    let running = || (0..3).map(containers).sum::<usize>();
    let before = running();
    assert!(before >= REPLICAS - 10, "{before} containers when the API server went away");
    cluster.control().start_api_server().unwrap();
    space.kubectl(&["rollout", "status", "deployment/many", "--timeout=90s"]).unwrap();
    let rolled = all_ready(&space, 3);
    assert!(rolled.values().flatten().all(new));
    space.kubectl(&["delete", "deployment", "many", "--timeout=60s"]).unwrap();
    space.wait("all is gone from the nodes", || (running() == 0).then_some(())).unwrap();
}
