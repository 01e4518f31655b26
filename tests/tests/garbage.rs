//! Garbage of a real runtime. Images on a small disk of its own go when it is too full, never one in use or
//! pinned; dead containers go as the limits say. What takes minutes is in `garbage_slow`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};
use tests::image_disk::{
    PATIENCE, PINNED, collected, images, last_message, pod, small_disk, space, unused, used_percent,
};

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
    let message = last_message(&control, "EvictionThresholdMet");
    assert_eq!(message, "Attempting to reclaim ephemeral-storage");
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
    node.stop_kubelet();
}
