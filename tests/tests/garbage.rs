//! Garbage of a real runtime. Images on a small disk of its own go when it is too full, only as many as it
//! takes, never one in use or pinned, and a disk that stays full is told; dead containers go as the limits
//! say, and with their pods. `LONG=1` waits for what takes minutes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
    eventually_some, run,
};

const PATIENCE: Duration = Duration::from_secs(90);
const USED: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const PINNED: &str = "registry.k8s.io/pause:3.10.2";
/// Of one unused image: the blob and, unpacked, once more.
const IMAGE_MIB: u32 = 20;
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
fn images(node: &TestNode) -> BTreeSet<String> {
    let list: Value =
        serde_json::from_str(&node.crictl(["images", "-o", "json"]).unwrap()).unwrap();
    let tags = list["images"].as_array().unwrap().iter().flat_map(|i| i["repoTags"].as_array());
    tags.flatten().map(|tag| tag.as_str().unwrap().to_owned()).collect()
}

fn unused(node: &TestNode) -> usize {
    images(node).iter().filter(|name| name.contains("/unused-")).count()
}

/// How full the runtime's disk is, in bytes: all of it, what is free.
fn space(node: &TestNode) -> (u64, u64) {
    let place = node.slot().path("containerd");
    let text = run("stat", ["-f", "-c", "%S %b %a", place.to_str().unwrap()]).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    (numbers[0] * numbers[1], numbers[0] * numbers[2])
}

/// How much of the runtime's disk is used, in percent as upstream rounds it.
fn used_percent(node: &TestNode) -> u64 {
    let (capacity, available) = space(node);
    100 - available * 100 / capacity
}

/// Take space on the runtime's disk that no image frees.
fn fill(node: &TestNode, name: &str, bytes: u64) {
    let file = node.slot().path(&format!("containerd/{name}"));
    run("fallocate", ["-l", &bytes.to_string(), file.to_str().unwrap()]).unwrap();
}

fn collected(node: &TestNode) -> Option<u64> {
    let (_, page) = node.kubelet_get("/metrics").ok()?;
    let name = "kubelet_image_garbage_collected_total{reason=\"space\"} ";
    page.lines().find_map(|line| line.strip_prefix(name))?.parse().ok()
}

fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": name, "image": USED, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}})
}

/// A node whose runtime has a small disk with four images that nobody uses.
fn small_disk(control: &Arc<ControlPlane>, config: &Value) -> TestNode {
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
fn told(control: &ControlPlane, reason: &str) -> String {
    let found = || {
        let events = control.get(["events"]).ok()?;
        let mut all = events["items"].as_array()?.clone().into_iter();
        let of_node = |e: &Value| e["reason"] == reason && e["involvedObject"]["kind"] == "Node";
        Some(all.find(of_node)?["message"].as_str()?.to_owned())
    };
    eventually_some(PATIENCE, &format!("the node tells {reason}"), found).unwrap()
}

#[test]
fn a_disk_that_runs_short_is_rid_of_unused_images_before_any_pod_goes() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let config = json!({
        "imageMinimumGCAge": "1ms",
        "evictionHard": {"imagefs.available": "60%", "nodefs.available": "1%",
                         "memory.available": "50Mi"},
    });
    let mut node = small_disk(&control, &config);
    assert!(used_percent(&node) > 40, "{:?}", space(&node));
    node.start_kubelet(KubeletKind::from_env().unwrap()).unwrap();
    let told = told(&control, "EvictionThresholdMet");
    assert_eq!(told, "Attempting to reclaim ephemeral-storage");
    eventually(PATIENCE, "unused images are gone", || unused(&node) == 0).unwrap();
    let left = images(&node);
    assert!(left.contains(PINNED), "{left:?}");
    assert!(used_percent(&node) < 40, "{:?}", space(&node));
    eventually(PATIENCE, "they are counted", || collected(&node) >= Some(4)).unwrap();
    let (_, page) = node.kubelet_get("/stats/summary").unwrap();
    let summary: Value = serde_json::from_str(&page).unwrap();
    let (fs, runtime) = (&summary["node"]["fs"], &summary["node"]["runtime"]);
    assert_eq!(runtime["imageFs"]["capacityBytes"], space(&node).0, "a disk of its own");
    assert_eq!(runtime["containerFs"], runtime["imageFs"]);
    assert_ne!(fs["capacityBytes"], runtime["imageFs"]["capacityBytes"]);
    node.stop_kubelet();
}

/// Images are as young as the agent at its first look: five minutes pass until it may take them.
#[test]
fn a_full_disk_is_rid_of_as_many_unused_images_as_it_takes() {
    if std::env::var_os("LONG").is_none() {
        return;
    }
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let config = json!({
        "imageGCHighThresholdPercent": 50,
        "imageGCLowThresholdPercent": 45,
        "imageMinimumGCAge": "1ms",
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%",
                         "memory.available": "50Mi"},
    });
    let mut node = small_disk(&control, &config);
    // One and a half images too much: two must go, two may stay.
    let (capacity, available) = space(&node);
    let wanted = capacity * 45 / 100 + (u64::from(IMAGE_MIB) << 20) * 3 / 2;
    fill(&node, "padding", wanted - (capacity - available));
    assert!(used_percent(&node) >= 50, "{:?}", space(&node));
    control.create(&pod("user", "sleep 3600")).unwrap();
    node.start_kubelet(KubeletKind::from_env().unwrap()).unwrap();
    node.wait_running("user", PATIENCE).unwrap();
    let message = told(&control, "FreeDiskSpaceFailed");
    assert!(
        message.starts_with("Insufficient free disk space on the node's image filesystem (5")
            && message.contains("by deleting unused images (freed 0 bytes)."),
        "{message}"
    );
    let period = Duration::from_secs(300) + PATIENCE;
    eventually(period, "two images are collected", || collected(&node) == Some(2)).unwrap();
    assert_eq!(unused(&node), 2);
    assert!(used_percent(&node) < 45, "{:?}", space(&node));
    let left = images(&node);
    assert!(left.contains(USED) && left.contains(PINNED), "{left:?}");
    node.wait_running("user", PATIENCE).unwrap();
    node.stop_kubelet();
}

/// The dead containers by name, with how often each was started before.
fn dead(node: &TestNode) -> Vec<(String, u64)> {
    let all = node.containers().unwrap();
    let ended = all.iter().filter(|c| c["state"] == "CONTAINER_EXITED");
    let named = ended.map(|c| {
        let name = c["metadata"]["name"].as_str().unwrap().to_owned();
        (name, c["metadata"]["attempt"].as_u64().unwrap_or(0))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

/// Fails as often as told, then stays.
fn fails(times: u32) -> String {
    format!(
        "n=$(cat /v/n || echo 0); echo $((n+1)) > /v/n; [ $n -lt {times} ] && exit 1; sleep 3600"
    )
}

#[test]
fn dead_containers_go_as_the_limits_say_and_with_their_pods() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let config = json!({
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
    });
    let args = vec!["--maximum-dead-containers-per-container=2".to_owned()];
    let options = KubeletOptions { config, args, ..KubeletOptions::default() };
    let mut node = TestNode::builder().options(options).join(&control).start().unwrap();
    let kind = KubeletKind::from_env().unwrap();
    node.start_kubelet(kind).unwrap();
    let two_dead = |name: &str| [(name.to_owned(), 1), (name.to_owned(), 2)];
    control.create(&pod("first", &fails(3))).unwrap();
    eventually(PATIENCE, "the two newest are kept", || dead(&node) == two_dead("first")).unwrap();
    node.wait_running("first", PATIENCE).unwrap();
    control.create(&pod("second", &fails(3))).unwrap();
    let both = [two_dead("first"), two_dead("second")].concat();
    eventually(PATIENCE, "two of each are kept", || dead(&node) == both).unwrap();
    node.wait_running("second", PATIENCE).unwrap();

    // Three in all: one of each container, and the newest that is left over is none.
    node.stop_kubelet();
    node.add_argument("--maximum-dead-containers=3");
    node.start_kubelet(kind).unwrap();
    let newest = [("first".to_owned(), 2), ("second".to_owned(), 2)];
    eventually(PATIENCE, "one of each is kept", || dead(&node) == newest).unwrap();

    if std::env::var_os("LONG").is_some() {
        leave_nothing(&mut node, kind, &control);
    }
    node.stop_kubelet();
}

/// Pods that go while nobody looks leave nothing; a minute passes between two looks for dead containers.
fn leave_nothing(node: &mut TestNode, kind: KubeletKind, control: &ControlPlane) {
    let patience = Duration::from_secs(120) + PATIENCE;
    node.stop_kubelet();
    let force = ["--force", "--grace-period=0", "--wait=false"];
    control.kubectl(["delete", "pods", "--all"].into_iter().chain(force)).unwrap();
    node.start_kubelet(kind).unwrap();
    eventually(patience, "no sandbox is left", || node.sandboxes().unwrap().is_empty()).unwrap();
    assert!(node.containers().unwrap().is_empty());
    let no_logs = || std::fs::read_dir(node.pod_logs_dir()).unwrap().flatten().next().is_none();
    eventually(patience, "no log is left", no_logs).unwrap();
}
