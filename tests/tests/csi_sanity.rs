//! The test kit's CSI driver proves itself to upstream's csi-sanity before any kubelet is judged by it.
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test on the real machine that says what ran"
)]

use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{Parts, eventually};

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs every specification that the driver's capabilities ask for; `change` makes another driver of it.
fn sanity(name: &str, change: impl FnOnce(&mut CsiDriverConfig), access: &str) {
    let program = Parts::find().unwrap().bin("csi-sanity").unwrap();
    let dir = std::env::temp_dir().join(format!("rubelet-sanity-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let mut config = CsiDriverConfig::new("hostpath.test", &dir.join("driver"));
    change(&mut config);
    let socket = config.socket.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let driver = runtime.block_on(async { CsiDriver::start(config) }).unwrap();
    let log = dir.join("log");
    let out = std::fs::File::create(&log).unwrap();
    let mut child = Command::new(program)
        .arg(format!("-csi.endpoint=unix://{}", socket.display()))
        .arg(format!("-csi.mountdir={}", dir.join("mount").display()))
        .arg(format!("-csi.stagingdir={}", dir.join("staging").display()))
        .arg(format!("-csi.testvolumeaccesstype={access}"))
        .args(["-csi.testvolumesize=16777216", "-csi.testvolumeexpandsize=33554432"])
        .args(["-ginkgo.no-color", "-ginkgo.succinct=false"])
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let mut ended = None;
    let in_time = eventually(PATIENCE, "csi-sanity ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    if in_time.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    drop(driver);
    drop(runtime);
    let said = std::fs::read_to_string(&log).unwrap();
    let table = sys::mountinfo::read(std::path::Path::new("/proc")).unwrap();
    let left = sys::mountinfo::at_or_below(&table, &dir);
    assert!(ended.is_some_and(|status| status.success()), "csi-sanity: {ended:?}\n{said}");
    assert!(said.contains("SUCCESS! -- "), "{said}");
    let ran = said.lines().find(|line| line.starts_with("Ran ")).unwrap_or_default();
    println!("{name}: {ran}");
    assert!(left.is_empty(), "mounts left behind: {left:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_driver_of_the_test_kit_passes_csi_sanity() {
    sanity("mount", |_| {}, "mount");
}

#[test]
fn the_driver_without_staging_passes_csi_sanity() {
    sanity("unstaged", |config| config.stages = false, "mount");
}

#[test]
fn the_driver_with_block_volumes_passes_csi_sanity() {
    sanity("block", |_| {}, "block");
}
