//! Static pods as the API server sees them.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::cluster::{BUSYBOX, Cluster, condition, status_of};

use super::Entry;

pub(super) const ALL: &[Entry] = &[("a_mirror_pod_follows_its_static_pod", follows)];

const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";

fn manifest(version: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "fixed", "namespace": "mirror", "labels": { "version": version } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [
            { "name": "fixed", "image": BUSYBOX, "command": ["sh", "-c", "sleep 3600"] },
        ] },
    })
    .to_string()
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

fn follows(cluster: &Cluster) -> anyhow::Result<()> {
    let (space, node) = (cluster.namespace("mirror")?, cluster.node()?);
    node.add_manifest("fixed.json", &manifest("1"))?;
    let mirror = space.wait_ready("fixed-node1")?;
    let annotations = &mirror["metadata"]["annotations"];
    ensure!(annotations[HASH].is_string() && annotations[HASH] == annotations[MIRROR]);
    ensure!(annotations["kubernetes.io/config.source"] == "file", "{annotations}");
    let owner = &mirror["metadata"]["ownerReferences"];
    let machine = cluster.control().get(["node", "node1"])?;
    let expected = json!([{
        "apiVersion": "v1", "kind": "Node", "name": "node1", "uid": uid(&machine), "controller": true,
    }]);
    ensure!(*owner == expected, "{owner}");
    ensure!(mirror["status"].get("observedGeneration").is_none(), "{}", mirror["status"]);

    // Deleted by hand: made anew at once, and nothing happens to the containers.
    space.kubectl(&["delete", "pod", "fixed-node1", "--wait=false"])?;
    let again = space.wait_pod("fixed-node1", "made anew", |pod| {
        uid(pod) != uid(&mirror) && condition(pod, "Ready") == "True"
    })?;
    ensure!(status_of(&again)["containerID"] == status_of(&mirror)["containerID"]);
    ensure!(status_of(&again)["restartCount"] == 0);

    // Another manifest is another pod.
    node.add_manifest("fixed.json", &manifest("2"))?;
    let other = space.wait_pod("fixed-node1", "the second version", |pod| {
        pod["metadata"]["labels"]["version"] == "2" && condition(pod, "Ready") == "True"
    })?;
    ensure!(other["metadata"]["annotations"][HASH] != again["metadata"]["annotations"][HASH]);
    ensure!(status_of(&other)["containerID"] != status_of(&again)["containerID"]);

    node.remove_manifest("fixed.json")?;
    space.wait_gone("pod", "fixed-node1")?;
    let left = node.containers()?;
    let runs = |c: &&Value| c["metadata"]["name"] == "fixed" && c["state"] == "CONTAINER_RUNNING";
    ensure!(left.iter().find(runs).is_none(), "{left:?}");
    status_of(&other)["containerID"].as_str().context("it had run").map(drop)
}
