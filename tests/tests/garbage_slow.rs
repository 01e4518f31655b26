//! Garbage of a real runtime that takes minutes: a full disk is rid of images, only as many as it takes, and a
//! disk that stays full is told; pods that go while nobody looks leave nothing.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, TestNode, eventually};
use tests::image_disk::{
    IMAGE_MIB, PATIENCE, PINNED, USED, collected, fill, images, last_message, pod, small_disk,
    space, unused, used_percent,
};

/// Images are as young as the agent at its first look: five minutes pass until it may take them.
#[test]
fn a_full_disk_is_rid_of_as_many_unused_images_as_it_takes() {
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
    let message = last_message(&control, "FreeDiskSpaceFailed");
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

/// A minute passes between two looks for dead containers.
#[test]
fn pods_that_go_while_nobody_looks_leave_nothing() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let mut node = TestNode::builder().join(&control).start().unwrap();
    let kind = KubeletKind::from_env().unwrap();
    node.start_kubelet(kind).unwrap();
    // The first start of each fails, so that there are dead containers too.
    let fails = "[ -e /v/once ] || { touch /v/once; exit 1; }; sleep 3600";
    for name in ["first", "second"] {
        control.create(&pod(name, fails)).unwrap();
        node.wait_running(name, PATIENCE).unwrap();
    }
    let patience = Duration::from_secs(120) + PATIENCE;
    node.stop_kubelet();
    let force = ["--force", "--grace-period=0", "--wait=false"];
    control.kubectl(["delete", "pods", "--all"].into_iter().chain(force)).unwrap();
    node.start_kubelet(kind).unwrap();
    eventually(patience, "no sandbox is left", || node.sandboxes().unwrap().is_empty()).unwrap();
    assert!(node.containers().unwrap().is_empty());
    let no_logs = || std::fs::read_dir(node.pod_logs_dir()).unwrap().flatten().next().is_none();
    eventually(patience, "no log is left", no_logs).unwrap();
    node.stop_kubelet();
}
