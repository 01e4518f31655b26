//! Checkpoints of devices and claims that the Go kubelet wrote are read, and written again byte for byte.
#![forbid(unsafe_code)]

use engine::claims::ClaimState;
use engine::devices::{Device, DeviceState, PluginOptions};
use std::time::Duration;

const DEVICES: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/golden/checkpoints/kubelet_internal_checkpoint"
));
const CLAIMS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/golden/checkpoints/dra_manager_state"
));

#[test]
fn a_device_checkpoint_of_the_go_kubelet_survives_the_switch() {
    let mut book = DeviceState::new(vec![0]);
    assert!(book.restore(DEVICES.trim_end(), Duration::ZERO).unwrap().is_empty());
    let uid = "6d6792dd-e510-4663-bb2e-753bafcd9b65";
    assert_eq!(book.additions(uid, "one").mounts[0].container_path, "/tmp/Dev-1");
    // Its plugin comes back.
    book.connected("example.com/resource", PluginOptions::default());
    let device = |id: &str| Device { id: id.to_owned(), healthy: true, nodes: None };
    book.listed("example.com/resource", vec![device("Dev-1"), device("Dev-2")]);
    assert_eq!(book.to_checkpoint().unwrap(), DEVICES.trim_end());
}

#[test]
fn a_claim_checkpoint_of_the_go_kubelet_survives_the_switch() {
    let book = ClaimState::restore(CLAIMS.trim_end()).unwrap();
    assert!(book.has_pod("7d483fa3-7cef-4832-bb43-81e8cf23dc9c"));
    assert_eq!(book.to_checkpoint().unwrap(), CLAIMS.trim_end());
}
