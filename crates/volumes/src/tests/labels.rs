//! Volumes mounted with an SELinux label. The machine need not have SELinux: the test driver only records the
//! mount option.

use super::Fixture;
use super::csi::{NAME, claim_pod, csi_claim, watch, with_driver};
use super::fixture::eventually;
use api::core::v1::{Pod, PodSecurityContext};
use engine::volumes::Labelling;
use ports::{PodLife, Volumes};
use serde_json::{Value, json};
use std::sync::Arc;
use testkit::csi_driver::CsiDriver;

const CONTEXTS: &str = "process = \"system_u:system_r:container_t:s0\"\n\
    file = \"system_u:object_r:container_file_t:s0\"\n";

async fn fixture(name: &str) -> (Fixture, CsiDriver) {
    let fixture = Fixture::with(name, |config, _| {
        config.selinux = true;
        config.labelling = Labelling::read(CONTEXTS, false);
    });
    let (fixture, driver) = with_driver(fixture, |_| {}).await;
    let spec = json!({"attachRequired": false, "fsGroupPolicy": "File", "seLinuxMount": true});
    fixture.storage.set_driver(NAME, spec);
    (fixture, driver)
}

fn pod(uid: &str, level: &str) -> Arc<Pod> {
    let mut pod = (*claim_pod(uid, "c")).clone();
    let context: PodSecurityContext =
        serde_json::from_value(json!({"seLinuxOptions": {"level": level}})).unwrap();
    pod.spec.as_mut().unwrap().security_context = Some(context);
    Arc::new(pod)
}

/// Mount flags of every call of this method.
fn flags(driver: &CsiDriver, method: &str) -> Vec<Value> {
    let requests = driver.requests().into_iter().filter(|r| r["method"] == method);
    requests
        .map(|r| r.pointer("/request/volume_capability/access/mount_flags").cloned())
        .map(Option::unwrap_or_default)
        .collect()
}

fn option(level: &str) -> Value {
    json!([format!("context=\"system_u:object_r:container_file_t:{level}\"")])
}

#[tokio::test]
async fn a_labelled_mount_is_not_relabelled_and_its_label_survives_a_restart() {
    let (mut fixture, driver) = fixture("label").await;
    csi_claim(&fixture, "c", json!({"accessModes": ["ReadWriteOncePod"]}));
    let p = pod("u", "s0:c1,c2");
    fixture.show(&[(&p, PodLife::Syncing)]);
    assert!(!fixture.ready(&p).await["v"].selinux_relabel);
    assert_eq!(flags(&driver, "NodeStageVolume"), [option("s0:c1,c2")]);
    assert_eq!(flags(&driver, "NodePublishVolume"), [option("s0:c1,c2")]);
    let notes = fixture.pod_dir("u").join("volumes/kubernetes.io~csi/pv-c/vol_data.json");
    let notes: Value = serde_json::from_slice(&std::fs::read(notes).unwrap()).unwrap();
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    assert_eq!(notes["seLinuxMountContext"], label);
    fixture.restart().await;
    watch(&fixture);
    assert!(!fixture.ready(&p).await["v"].selinux_relabel);
    assert!(flags(&driver, "NodePublishVolume").iter().all(|f| *f == option("s0:c1,c2")));
    fixture.end(&p).await;
}

#[tokio::test]
async fn other_access_modes_are_relabelled_by_the_runtime() {
    let (fixture, driver) = fixture("label-modes").await;
    csi_claim(&fixture, "c", json!({}));
    let p = pod("u", "s0:c1,c2");
    fixture.show(&[(&p, PodLife::Syncing)]);
    assert!(fixture.ready(&p).await["v"].selinux_relabel);
    assert_eq!(flags(&driver, "NodeStageVolume"), [Value::Null]);
    fixture.end(&p).await;
}

#[tokio::test]
async fn what_is_mounted_for_reading_alone_is_not_relabelled() {
    let (fixture, _driver) = fixture("label-read-only").await;
    csi_claim(&fixture, "c", json!({}));
    let mut p = (*pod("u", "s0:c1,c2")).clone();
    let volumes = p.spec.as_mut().unwrap().volumes.as_mut().unwrap();
    volumes[0].persistent_volume_claim.as_mut().unwrap().read_only = Some(true);
    let p = Arc::new(p);
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    assert!(mounts["v"].read_only && !mounts["v"].selinux_relabel);
    fixture.end(&p).await;
}

#[tokio::test]
async fn a_pod_with_another_label_waits_until_the_first_is_gone() {
    let (fixture, driver) = fixture("label-conflict").await;
    csi_claim(&fixture, "c", json!({"accessModes": ["ReadWriteOncePod"]}));
    let (p, q) = (pod("p", "s0:c1"), pod("q", "s0:c2"));
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    fixture.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    let refused = fixture.handle.wait_ready(&q).await.unwrap_err().to_string();
    let label = |level: &str| format!("\"system_u:object_r:container_file_t:{level}\"");
    assert!(
        refused.contains(&format!(
            "conflicting SELinux labels of volume pv-c: {} and {}",
            label("s0:c1"),
            label("s0:c2")
        )),
        "{refused}"
    );
    fixture.show(&[(&p, PodLife::Terminated), (&q, PodLife::Syncing)]);
    fixture.handle.wait_released(&p).await.unwrap();
    eventually("staged anew", || {
        flags(&driver, "NodeStageVolume") == [option("s0:c1"), option("s0:c2")]
    })
    .await;
    fixture.ready(&q).await;
    fixture.end(&q).await;
}
