//! CSI volumes with a driver that really mounts.

use super::fixture::eventually;
use super::{Fixture, pod};
use ports::{PodLife, VolumeUsages, Volumes};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};

pub(super) const NAME: &str = "hostpath.test";

/// A fixture with a registered driver.
pub(super) async fn fixture_with(
    name: &str,
    change: impl FnOnce(&mut CsiDriverConfig),
) -> (Fixture, CsiDriver) {
    with_driver(Fixture::new(name), change).await
}

/// The given fixture with a registered driver.
pub(super) async fn with_driver(
    fixture: Fixture,
    change: impl FnOnce(&mut CsiDriverConfig),
) -> (Fixture, CsiDriver) {
    fixture.storage.set_driver(NAME, json!({"attachRequired": false, "fsGroupPolicy": "File"}));
    let mut config = CsiDriverConfig::new(NAME, &fixture.root.join("driver"));
    config.registry = Some(registry(&fixture));
    change(&mut config);
    let driver = CsiDriver::start(config).unwrap();
    watch(&fixture);
    eventually("registered", || driver.last_message().as_deref() == Some("ok")).await;
    (fixture, driver)
}

fn registry(fixture: &Fixture) -> PathBuf {
    fixture.root.join("kubelet/plugins_registry")
}

pub(super) fn watch(fixture: &Fixture) {
    let handlers = [("CSIPlugin".to_owned(), fixture.handle.csi_plugins())].into();
    fixture.handle.watch_plugins(registry(fixture), handlers, &fixture.tasks);
}

pub(super) fn csi_claim(fixture: &Fixture, name: &str, extra: serde_json::Value) {
    let mut spec = json!({"csi": {"driver": NAME, "volumeHandle": format!("h-{name}")}});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    fixture.claim(name, spec);
}

pub(super) fn claim_pod(uid: &str, claim: &str) -> Arc<api::core::v1::Pod> {
    pod(uid, json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]))
}

/// The driver's calls without capability and info queries.
pub(super) fn calls(driver: &CsiDriver) -> Vec<String> {
    driver.calls().into_iter().filter(|c| c.contains("Volume")).collect()
}

fn staging(fixture: &Fixture, handle: &str) -> PathBuf {
    let hash = crate::csi::source::sha256(handle);
    fixture.root.join("kubelet/plugins/kubernetes.io/csi").join(NAME).join(hash)
}

#[tokio::test]
async fn a_volume_is_staged_published_and_undone_in_order() {
    let (mut fixture, driver) = fixture_with("csi-order", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    let dir = fixture.pod_dir("u").join("volumes/kubernetes.io~csi/pv-c");
    assert_eq!(mounts["v"].host_path, dir.join("mount"));
    std::fs::write(dir.join("mount/file"), "data").unwrap();
    assert_eq!(calls(&driver), ["NodeStageVolume h-c", "NodePublishVolume h-c"]);
    let notes = std::fs::read_to_string(dir.join("vol_data.json")).unwrap();
    let id = crate::csi::source::attachment_name("h-c", NAME, "node");
    assert_eq!(
        notes,
        format!(
            "{{\"attachmentID\":\"{id}\",\"driverName\":\"{NAME}\",\"nodeName\":\"node\",\"specVolID\":\"pv-c\",\"volumeHandle\":\"h-c\",\"volumeLifecycleMode\":\"Persistent\"}}\n"
        )
    );
    assert_eq!(
        std::fs::read_to_string(staging(&fixture, "h-c").join("vol_data.json")).unwrap(),
        format!("{{\"driverName\":\"{NAME}\",\"volumeHandle\":\"h-c\"}}\n")
    );
    // A restart in between changes nothing for the pod.
    fixture.restart().await;
    watch(&fixture);
    fixture.ready(&p).await;
    assert_eq!(std::fs::read_to_string(dir.join("mount/file")).unwrap(), "data");
    fixture.end(&p).await;
    eventually("unstaged", || !staging(&fixture, "h-c").exists()).await;
    let all = calls(&driver);
    assert_eq!(all[all.len() - 2..], ["NodeUnpublishVolume h-c", "NodeUnstageVolume h-c"]);
    assert!(fixture.mounts().is_empty());
    eventually("the pod's folder goes", || !fixture.pod_dir("u").exists()).await;
    assert_eq!(
        std::fs::read_to_string(fixture.root.join("driver/volumes/h-c/file")).unwrap(),
        "data",
        "the volume's data stays"
    );
}

#[tokio::test]
async fn a_driver_that_changes_its_limit_is_asked_for_it_again() {
    let fixture = Fixture::new("csi-limit");
    let spec = json!({"attachRequired": false, "fsGroupPolicy": "File",
        "nodeAllocatableUpdatePeriodSeconds": 1});
    fixture.storage.set_driver(NAME, spec);
    let mut config = CsiDriverConfig::new(NAME, &fixture.root.join("driver"));
    config.registry = Some(registry(&fixture));
    let driver = CsiDriver::start(config).unwrap();
    watch(&fixture);
    // Once during registration.
    let asked = || driver.calls().iter().filter(|call| call.starts_with("NodeGetInfo")).count();
    eventually("asked again", || asked() >= 3).await;
}

#[tokio::test]
async fn two_pods_share_one_stage() {
    let (fixture, driver) = fixture_with("csi-share", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    let (p, q) = (claim_pod("p", "c"), claim_pod("q", "c"));
    fixture.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    fixture.ready(&p).await;
    fixture.ready(&q).await;
    let stages = |d: &CsiDriver| calls(d).iter().filter(|c| c.contains("Stage")).count();
    assert_eq!(stages(&driver), 1);
    fixture.show(&[(&q, PodLife::Syncing), (&p, PodLife::Terminated)]);
    fixture.handle.wait_released(&p).await.unwrap();
    fixture.ready(&q).await;
    assert!(!calls(&driver).iter().any(|c| c.starts_with("NodeUnstage")));
    fixture.end(&q).await;
    eventually("unstaged", || !staging(&fixture, "h-c").exists()).await;
}

#[tokio::test]
async fn a_final_error_leaves_nothing_and_an_open_one_is_undone() {
    let (fixture, driver) = fixture_with("csi-errors", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    driver.fault("NodeStageVolume", Some("before Internal"));
    let p = claim_pod("p", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("told", || !fixture.events.all().is_empty()).await;
    assert_eq!(
        fixture.events.all()[0],
        "FailedMount: MountVolume.MountDevice failed for volume \"pv-c\" : rpc error: code = Internal desc = NodeStageVolume told to fail"
    );
    eventually("nothing stays", || !staging(&fixture, "h-c").exists()).await;
    fixture.end(&p).await;
    assert!(!calls(&driver).iter().any(|c| c.starts_with("NodeUnstage")), "nothing to undo");

    driver.fault("NodeStageVolume", Some("after DeadlineExceeded"));
    let q = claim_pod("q", "c");
    fixture.show(&[(&q, PodLife::Syncing)]);
    eventually("told", || fixture.events.all().iter().any(|e| e.contains("DeadlineExceeded")))
        .await;
    assert!(staging(&fixture, "h-c").join("vol_data.json").exists());
    fixture.show(&[]);
    eventually("undone", || calls(&driver).iter().any(|c| c.starts_with("NodeUnstage"))).await;
    eventually("nothing stays", || !staging(&fixture, "h-c").exists()).await;
    assert!(fixture.mounts().is_empty());
}

#[tokio::test]
async fn a_failed_republish_keeps_the_running_pods_mount() {
    let (fixture, driver) = fixture_with("csi-republish", |_| {}).await;
    fixture.storage.set_driver(
        NAME,
        json!({"attachRequired": false, "requiresRepublish": true, "fsGroupPolicy": "File"}),
    );
    csi_claim(&fixture, "c", json!({}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let path = fixture.ready(&p).await["v"].host_path.clone();
    driver.fault("NodePublishVolume", Some("before Internal"));
    fixture.ready(&p).await;
    eventually("told", || {
        fixture.events.all().iter().any(|e| e.contains("MountVolume.SetUp failed"))
    })
    .await;
    assert!(sys::mount::is_mount_point(&path).unwrap());
    driver.fault("NodePublishVolume", None);
    fixture.end(&p).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn inline_volumes_get_pod_facts_and_tokens_without_leaking_them() {
    let (fixture, driver) = fixture_with("csi-inline", |_| {}).await;
    let spec = |in_secrets: bool| {
        json!({
            "attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Ephemeral"],
            "serviceAccountTokenInSecrets": in_secrets,
            "tokenRequests": [{"audience": "vault"}]
        })
    };
    fixture.storage.set_driver(NAME, spec(true));
    let p = pod("u", json!([{"name": "v", "csi": {"driver": NAME}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    let read = |file: &str| {
        std::fs::read_to_string(fixture.root.join("driver").join(file)).unwrap_or_default()
    };
    assert!(read("context-keys").contains("csi.storage.k8s.io/pod.uid"));
    assert!(read("context-keys").contains("csi.storage.k8s.io/ephemeral"));
    assert!(!read("context-keys").contains("tokens"), "{}", read("context-keys"));
    assert_eq!(read("secret-keys"), "csi.storage.k8s.io/serviceAccount.tokens");
    let handle = format!("csi-{}", crate::csi::source::sha256("uv"));
    assert_eq!(calls(&driver), [format!("NodePublishVolume {handle}")]);
    fixture.end(&p).await;
    assert_eq!(calls(&driver)[1], format!("NodeUnpublishVolume {handle}"));
    assert!(fixture.mounts().is_empty());
}

#[tokio::test]
async fn an_attachable_volume_waits_for_the_controller_and_is_reported_in_use() {
    let (fixture, driver) = fixture_with("csi-attach", |_| {}).await;
    fixture.storage.set_driver(NAME, json!({"attachRequired": true, "fsGroupPolicy": "None"}));
    csi_claim(&fixture, "c", json!({}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let unique = format!("kubernetes.io/csi/{NAME}^h-c");
    eventually("reported", || {
        fixture.handle.facts().in_use.as_deref() == Some(std::slice::from_ref(&unique))
    })
    .await;
    assert!(calls(&driver).is_empty());
    fixture.attach(&[&unique]);
    eventually("the attachment is looked for", || {
        fixture.events.all().iter().any(|e| {
            e.contains(
                "MountVolume.WaitForAttach failed for volume \"pv-c\" : volume h-c has GET error",
            )
        })
    })
    .await;
    let id = crate::csi::source::attachment_name("h-c", NAME, "node");
    let attachment = serde_json::from_value(json!({
        "metadata": {"name": id},
        "spec": {"attacher": NAME, "nodeName": "node", "source": {}},
        "status": {"attached": true, "attachmentMetadata": {"lun": "7"}}
    }))
    .unwrap();
    fixture.storage.attachments.lock().unwrap().insert(id, Arc::new(attachment));
    fixture.ready(&p).await;
    fixture.end(&p).await;
    eventually("no longer in use", || {
        fixture.handle.facts().in_use.as_deref() == Some([].as_slice())
    })
    .await;
}

#[tokio::test]
async fn a_crash_between_stage_and_publish_is_undone_after_the_pod_is_gone() {
    let (mut fixture, driver) = fixture_with("csi-crash", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    driver.fault("NodePublishVolume", Some("hang"));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("publishing", || calls(&driver).len() == 2).await;
    assert_eq!(fixture.mounts().len(), 1);
    fixture.show(&[]);
    driver.fault("NodePublishVolume", None);
    fixture.restart().await;
    watch(&fixture);
    eventually("unstaged", || !staging(&fixture, "h-c").exists()).await;
    eventually("all gone", || fixture.mounts().is_empty() && !fixture.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn a_driver_that_never_answers_holds_up_nobody_else() {
    let (fixture, driver) = fixture_with("csi-hang", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    driver.fault("NodeStageVolume", Some("hang"));
    let stuck = claim_pod("stuck", "c");
    let others: Vec<_> = (0..20)
        .map(|n| pod(&format!("o{n}"), json!([{"name": "d", "emptyDir": {"medium": "Memory"}}])))
        .collect();
    let mut shown = vec![(&stuck, PodLife::Syncing)];
    shown.extend(others.iter().map(|p| (p, PodLife::Syncing)));
    fixture.show(&shown);
    eventually("staging", || !calls(&driver).is_empty()).await;
    let all = futures::future::join_all(others.iter().map(|p| fixture.ready(p)));
    tokio::time::timeout(Duration::from_secs(3), all).await.unwrap();
}

#[tokio::test]
async fn a_driver_is_entered_into_the_node_and_taken_out_with_its_socket() {
    let (fixture, driver) = fixture_with("csi-register", |config| {
        config.max_volumes = 5;
        config.topology = [("rack".to_owned(), "r1".to_owned())].into();
    })
    .await;
    let entries = || {
        let node = fixture.storage.csi_node.lock().unwrap().clone();
        node.map(|n| n.spec.drivers.clone()).unwrap_or_default()
    };
    let entry = entries().remove(0);
    assert_eq!((entry.name.as_str(), entry.node_id.as_str()), (NAME, "node"));
    assert_eq!(entry.allocatable.unwrap().count, Some(5));
    assert_eq!(entry.topology_keys.unwrap(), ["rack"]);
    let node = Arc::clone(&fixture.objects.node.lock().unwrap());
    let annotations = node.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["csi.volume.kubernetes.io/nodeid"], format!("{{\"{NAME}\":\"node\"}}"));
    assert_eq!(node.metadata.labels.as_ref().unwrap()["rack"], "r1");
    assert_eq!(fixture.handle.facts().not_ready, None);
    let shown = || {
        let page = fixture.registry.render();
        let lines = page.lines().filter(|line| line.starts_with("plugin_manager_total_plugins{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let socket = std::fs::read_dir(registry(&fixture)).unwrap().next().unwrap().unwrap().path();
    let line = |state: &str| {
        let socket = socket.display();
        format!("plugin_manager_total_plugins{{socket_path=\"{socket}\",state=\"{state}\"}} 1")
    };
    let both = ["actual_state_of_world", "desired_state_of_world"].map(line);
    eventually("shown", || shown() == both).await;
    drop(driver);
    eventually("taken out", || entries().is_empty()).await;
    eventually("no longer shown", || shown().is_empty()).await;
    let again = CsiDriver::start({
        let mut config = CsiDriverConfig::new(NAME, &fixture.root.join("driver"));
        config.registry = Some(registry(&fixture));
        config
    });
    let _again = again.unwrap();
    eventually("entered again", || entries().len() == 1).await;
}

#[tokio::test]
async fn operations_on_a_moved_volume_are_counted_apart() {
    const MOVED: &str = "ebs.csi.aws.com";
    let fixture = Fixture::new("csi-moved");
    fixture.storage.set_driver(MOVED, json!({"attachRequired": false, "fsGroupPolicy": "File"}));
    let mut config = CsiDriverConfig::new(MOVED, &fixture.root.join("driver"));
    config.registry = Some(registry(&fixture));
    let driver = CsiDriver::start(config).unwrap();
    watch(&fixture);
    eventually("registered", || driver.last_message().as_deref() == Some("ok")).await;
    fixture.claim("c", json!({"awsElasticBlockStore": {"volumeID": "aws://zone/vol-1"}}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    fixture.end(&p).await;
    let counted = |line: &str| fixture.registry.render().contains(line);
    for operation in ["volume_mount", "volume_unmount"] {
        assert!(counted(&format!(
            "storage_operation_duration_seconds_count{{migrated=\"true\",operation_name=\"{operation}\",status=\"success\",volume_plugin=\"kubernetes.io/csi:{MOVED}\"}} 1"
        )));
    }
    for (call, migrated) in [("NodePublishVolume", "true"), ("NodeUnpublishVolume", "false")] {
        assert!(
            counted(&format!(
                "csi_operations_seconds_count{{driver_name=\"{MOVED}\",grpc_status_code=\"OK\",method_name=\"/csi.v1.Node/{call}\",migrated=\"{migrated}\"}} 1"
            )),
            "{call}"
        );
    }
}

#[tokio::test]
async fn the_group_owns_a_volume_of_a_driver_that_leaves_it_to_us() {
    use std::os::unix::fs::MetadataExt;
    let (fixture, _driver) = fixture_with("csi-group", |_| {}).await;
    csi_claim(&fixture, "c", json!({}));
    let folder = fixture.root.join("driver/volumes/h-c/sub");
    std::fs::create_dir_all(&folder).unwrap();
    let mut p = (*claim_pod("u", "c")).clone();
    p.spec.as_mut().unwrap().security_context =
        Some(serde_json::from_value(json!({"fsGroup": 777})).unwrap());
    let p = Arc::new(p);
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    assert_eq!(std::fs::metadata(Path::new(&folder)).unwrap().gid(), 777);
    fixture.end(&p).await;
}

#[tokio::test]
async fn what_ails_a_volume_is_told_where_that_is_asked_for() {
    let worn = Some((true, "the disk is worn out".to_owned()));
    let fixture = Fixture::with("csi-health", |config, _| {
        config.health = true;
        config.usage_period = Some(Duration::from_millis(50));
    });
    let (fixture, _driver) = with_driver(fixture, |config| config.condition = worn.clone()).await;
    csi_claim(&fixture, "data", json!({}));
    let own = claim_pod("own", "data");
    fixture.show(&[(&own, PodLife::Syncing)]);
    fixture.ready(&own).await;
    let told = |fixture: &Fixture| {
        let told = "VolumeConditionAbnormal: Volume v: the disk is worn out";
        fixture.events.all().iter().any(|text| text.ends_with(told))
    };
    eventually("told without being asked", || told(&fixture)).await;
    assert_eq!(fixture.handle.usages(&"own".into()).await[0].health, worn);

    let (fixture, _driver) = fixture_with("csi-no-health", |config| config.condition = worn).await;
    csi_claim(&fixture, "data", json!({}));
    fixture.show(&[(&own, PodLife::Syncing)]);
    fixture.ready(&own).await;
    assert_eq!(fixture.handle.usages(&"own".into()).await[0].health, None);
    assert!(!told(&fixture));
}
