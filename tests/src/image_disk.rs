//! A node whose runtime has a small disk of its own, with images that nobody uses.
#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test on the real machine")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{ControlPlane, KubeletOptions, TestNode, eventually, eventually_some, run};

/// How long anything may take that takes no minutes.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The image of the pods.
pub const USED: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// The image that the runtime keeps.
pub const PINNED: &str = "registry.k8s.io/pause:3.10.2";
/// Of one unused image: the blob and, unpacked, once more.
pub const IMAGE_MIB: u32 = 20;
const DISK_MIB: u32 = 400;

/// Makes an archive `$1` of an image named `$2` with `$3` MiB that nobody else has.
const MAKE_IMAGE: &str = r#"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
head -c "$3"M /dev/urandom > blob
tar -cf layer.tar blob
sum=$(sha256sum layer.tar | cut -d' ' -f1)
printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
  "$sum" > config.json
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$2" > manifest.json
tar -cf "$1" manifest.json config.json layer.tar
"#;

fn add_image(node: &TestNode, name: &str) {
    let archive = node.slot().path("image.tar");
    let archive = archive.to_str().unwrap();
    let size = IMAGE_MIB.to_string();
    run("sh", ["-ec", MAKE_IMAGE, "sh", archive, name, &size]).unwrap();
    node.runtime().ctr(["images", "import", archive]).unwrap();
    std::fs::remove_file(archive).unwrap();
}

/// The names of the images that the runtime has.
pub fn images(node: &TestNode) -> BTreeSet<String> {
    let list: Value =
        serde_json::from_str(&node.crictl(["images", "-o", "json"]).unwrap()).unwrap();
    let tags = list["images"].as_array().unwrap().iter().flat_map(|i| i["repoTags"].as_array());
    tags.flatten().map(|tag| tag.as_str().unwrap().to_owned()).collect()
}

/// How many images there are that nobody uses.
pub fn unused(node: &TestNode) -> usize {
    images(node).iter().filter(|name| name.contains("/unused-")).count()
}

/// How full the runtime's disk is, in bytes: all of it, what is free.
pub fn space(node: &TestNode) -> (u64, u64) {
    let place = node.slot().path("containerd");
    let text = run("stat", ["-f", "-c", "%S %b %a", place.to_str().unwrap()]).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    (numbers[0] * numbers[1], numbers[0] * numbers[2])
}

/// How much of the runtime's disk is used, in percent as upstream rounds it.
pub fn used_percent(node: &TestNode) -> u64 {
    let (capacity, available) = space(node);
    100 - available * 100 / capacity
}

/// Take space on the runtime's disk that no image frees.
pub fn fill(node: &TestNode, name: &str, bytes: u64) {
    let file = node.slot().path(&format!("containerd/{name}"));
    run("fallocate", ["-l", &bytes.to_string(), file.to_str().unwrap()]).unwrap();
}

/// How many images were collected for want of space.
pub fn collected(node: &TestNode) -> Option<u64> {
    let (_, page) = node.kubelet_get("/metrics").ok()?;
    let name = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    page.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}

/// A pod that runs a script, with a folder of its own.
pub fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": name, "image": USED, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}})
}

/// A node whose runtime has a small disk with four images that nobody uses.
pub fn small_disk(control: &Arc<ControlPlane>, config: &Value) -> TestNode {
    let options = KubeletOptions { config: config.clone(), ..KubeletOptions::default() };
    let builder = TestNode::builder().options(options).join(control);
    let node = builder.disk("containerd", DISK_MIB).start().unwrap();
    for index in 0..4 {
        add_image(&node, &format!("registry.k8s.io/unused-{index}:1"));
    }
    eventually(PATIENCE, "four unused images", || unused(&node) == 4).unwrap();
    node
}

/// The message of the first event of the node with this reason.
pub fn last_message(control: &ControlPlane, reason: &str) -> String {
    let found = || {
        let events = control.get(["events"]).ok()?;
        let mut all = events["items"].as_array()?.clone().into_iter();
        let of_node = |e: &Value| e["reason"] == reason && e["involvedObject"]["kind"] == "Node";
        Some(all.find(of_node)?["message"].as_str()?.to_owned())
    };
    eventually_some(PATIENCE, &format!("the node tells {reason}"), found).unwrap()
}
