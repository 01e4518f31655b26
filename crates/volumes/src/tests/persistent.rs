//! Claims: local folders and disks, raw devices, growing volumes.

use super::csi::{calls, claim_pod, csi_claim, fixture_with};
use super::fixture::eventually;
use super::{Fixture, pod};
use api::core::v1::Pod;
use ports::{PodLife, Volumes};
use serde_json::json;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[tokio::test]
async fn a_local_folder_is_bound_and_its_data_stays() {
    let fixture = Fixture::new("local");
    let folder = fixture.root.join("disk");
    std::fs::create_dir_all(&folder).unwrap();
    fixture.claim("c", json!({"local": {"path": folder}}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let path = fixture.ready(&p).await["v"].host_path.clone();
    assert_eq!(path, fixture.pod_dir("u").join("volumes/kubernetes.io~local-volume/pv-c"));
    std::fs::write(path.join("f"), "x").unwrap();
    fixture.end(&p).await;
    assert!(folder.join("f").exists());
    eventually("the pod's folder goes", || !fixture.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn a_claim_of_another_node_is_refused_and_a_file_is_no_volume() {
    let fixture = Fixture::new("affinity");
    let elsewhere = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}});
    fixture.claim("far", json!({"local": {"path": "/tmp"}, "nodeAffinity": elsewhere}));
    fixture.claim("file", json!({"local": {"path": "/etc/os-release"}}));
    fixture.claim("gone", json!({"local": {"path": "/no/such"}}));
    let (p, q) = (claim_pod("p", "far"), claim_pod("q", "file"));
    let r = claim_pod("r", "gone");
    fixture.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing), (&r, PodLife::Syncing)]);
    let has = |text: &str| fixture.events.all().iter().any(|e| e == text);
    eventually("told", || {
        has("FailedMount: MountVolume.NodeAffinity check failed for volume \"pv-far\" : no matching NodeSelectorTerms")
            && has("FailedMount: MountVolume.NewMounter initialization failed for volume \"pv-file\" : only directory and block device are supported")
            && has("FailedMount: MountVolume.NewMounter initialization failed for volume \"pv-gone\" : path \"/no/such\" does not exist")
    })
    .await;
}

#[tokio::test]
async fn a_local_disk_is_formatted_once_and_shared() {
    let fixture = Fixture::new("disk");
    let image = fixture.root.join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let device = sys::loop_device::attach(Path::new("/dev"), &image, false).unwrap();
    fixture.claim("c", json!({"local": {"path": device}}));
    let (p, q) = (claim_pod("p", "c"), claim_pod("q", "c"));
    fixture.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    let one = fixture.ready(&p).await["v"].host_path.clone();
    let two = fixture.ready(&q).await["v"].host_path.clone();
    std::fs::write(one.join("f"), "x").unwrap();
    assert!(two.join("f").exists());
    assert_eq!(fixture.mounts().len(), 3, "{:?}", fixture.mounts());
    fixture.show(&[(&p, PodLife::Terminated), (&q, PodLife::Terminated)]);
    fixture.handle.wait_released(&p).await.unwrap();
    fixture.handle.wait_released(&q).await.unwrap();
    eventually("all unmounted", || fixture.mounts().is_empty()).await;
    // The next pod finds the data: the disk was not formatted again.
    let r = claim_pod("r", "c");
    fixture.show(&[(&r, PodLife::Syncing)]);
    assert!(fixture.ready(&r).await["v"].host_path.join("f").exists());
    fixture.end(&r).await;
    eventually("all unmounted", || fixture.mounts().is_empty()).await;
    sys::loop_device::detach(&device).unwrap();
}

fn device_pod(uid: &str, claim: &str) -> Arc<Pod> {
    let mut p = (*claim_pod(uid, claim)).clone();
    let container = &mut p.spec.as_mut().unwrap().containers[0];
    container.volume_mounts = None;
    container.volume_devices =
        Some(serde_json::from_value(json!([{"name": "v", "devicePath": "/dev/x"}])).unwrap());
    Arc::new(p)
}

fn loops_on(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in sys::fs::list_dir("/sys/block").unwrap() {
        let backing = format!("/sys/block/{name}/loop/backing_file");
        let file = std::fs::read_to_string(backing).unwrap_or_default();
        if file.starts_with(root.to_str().unwrap()) {
            found.push(PathBuf::from(file.trim()));
        }
    }
    found
}

#[tokio::test]
async fn a_raw_device_is_mapped_held_and_let_go() {
    let (mut fixture, driver) = fixture_with("block", |_| {}).await;
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let volume = fixture.ready(&p).await["v"].clone();
    assert!(volume.block);
    assert_eq!(volume.host_path, fixture.pod_dir("u").join("volumeDevices/kubernetes.io~csi/pv-c"));
    let device = std::fs::metadata(&volume.host_path).unwrap();
    assert!(device.file_type().is_block_device());
    let top = fixture.root.join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    let bound = std::fs::metadata(top.join("pv-c/dev/u")).unwrap();
    assert_eq!(bound.rdev(), device.rdev());
    assert_eq!(loops_on(&fixture.root.join("kubelet")), [top.join("pv-c/dev/u")]);
    let told = |text: &str| fixture.events.all().iter().any(|e| e.contains(text));
    assert!(told(
        "SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"pv-c\" globalMapPath"
    ));
    assert!(told("volumeMapPath"));
    // Reconstructed after a restart.
    fixture.restart().await;
    super::csi::watch(&fixture);
    fixture.ready(&p).await;
    fixture.end(&p).await;
    eventually("unstaged", || calls(&driver).last().unwrap() == "NodeUnstageVolume h-c").await;
    eventually("all gone", || {
        fixture.mounts().is_empty()
            && loops_on(&fixture.root).is_empty()
            && !top.join("pv-c").exists()
    })
    .await;
    eventually("the pod's folder goes", || !fixture.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn folders_of_a_device_whose_notes_cannot_be_written_go_with_its_pod() {
    let (fixture, driver) = fixture_with("notes", |_| {}).await;
    let top = fixture.root.join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    std::fs::create_dir_all(&top).unwrap();
    // Room for two folders, and for no file in them.
    let full = ["-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs"];
    let mounted = std::process::Command::new("mount").args(full).arg(&top).status();
    assert!(mounted.unwrap().success());
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let told = |text: &str| fixture.events.all().iter().any(|e| e.contains(text));
    eventually("it fails", || told("FailedMapVolume")).await;
    assert!(top.join("pv-c/data").exists());
    fixture.end(&p).await;
    eventually("all gone", || !top.join("pv-c").exists()).await;
    assert!(!calls(&driver).iter().any(|call| call.starts_with("NodeStage")));
}

#[tokio::test]
async fn the_mode_of_a_claim_must_match_its_use() {
    let (fixture, _driver) = fixture_with("mode", |_| {}).await;
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = claim_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let error = fixture.handle.wait_ready(&p).await.unwrap_err().to_string();
    assert!(
        error.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{error}"
    );
}

#[tokio::test]
async fn a_second_pod_waits_for_a_single_pod_volume() {
    let (fixture, _driver) = fixture_with("rwop", |_| {}).await;
    csi_claim(&fixture, "c", json!({"accessModes": ["ReadWriteOncePod"]}));
    let (p, q) = (claim_pod("p", "c"), claim_pod("q", "c"));
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    fixture.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    eventually("refused", || {
        fixture.events.all().iter().any(|e| {
            e == "FailedMount: MountVolume.SetUp failed for volume \"pv-c\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
        })
    })
    .await;
    fixture.show(&[(&p, PodLife::Terminated), (&q, PodLife::Syncing)]);
    fixture.handle.wait_released(&p).await.unwrap();
    fixture.ready(&q).await;
    fixture.end(&q).await;
}

/// The claim's expansion from 16 to 32 MiB is pending; the user now requests `request`.
fn request_expansion(fixture: &Fixture, request: &str) {
    csi_claim(fixture, "c", json!({"volumeMode": "Block", "capacity": {"storage": "32Mi"}}));
    let mut claim = (**fixture.objects.claims.lock().unwrap().get("c").unwrap()).clone();
    let resources = json!({"requests": {"storage": request}});
    claim.spec.get_or_insert_default().resources = serde_json::from_value(resources).unwrap();
    claim.status = Some(
        serde_json::from_value(json!({
            "phase": "Bound", "capacity": {"storage": "16Mi"},
            "allocatedResources": {"storage": "32Mi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"}
        }))
        .unwrap(),
    );
    fixture.objects.claims.lock().unwrap().insert("c".into(), Arc::new(claim));
}

/// Uses a raw device, because expanding a mounted ext4 needs a privilege that not every test machine has.
#[tokio::test]
async fn a_volume_grows_while_it_is_in_use() {
    let (fixture, driver) = fixture_with("grow", |_| {}).await;
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let path = fixture.ready(&p).await["v"].host_path.clone();
    let size = || {
        use std::io::{Seek, SeekFrom};
        std::fs::File::open(&path).unwrap().seek(SeekFrom::End(0)).unwrap()
    };
    assert_eq!(size(), 16 << 20);
    // The controller has expanded it to 32 MiB; the node has to follow.
    request_expansion(&fixture, "32Mi");
    fixture.ready(&p).await;
    eventually("grown", || size() == 32 << 20).await;
    eventually("told", || fixture.storage.claim_patches.lock().unwrap().len() == 2).await;
    let claim = Arc::clone(fixture.objects.claims.lock().unwrap().get("c").unwrap());
    let status = claim.status.as_ref().unwrap();
    assert_eq!(status.capacity.as_ref().unwrap()["storage"].0, "32Mi");
    assert!(fixture.events.all().contains(
        &"FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume \"pv-c\" node".to_owned()
    ));
    let expansions = || calls(&driver).iter().filter(|c| c.starts_with("NodeExpand")).count();
    assert_eq!(expansions(), 1);
    fixture.ready(&p).await;
    assert_eq!(expansions(), 1, "once is enough");
    fixture.end(&p).await;
    eventually("all gone", || fixture.mounts().is_empty() && loops_on(&fixture.root).is_empty())
        .await;
}

/// Upstream calls the driver for a volume in use without checking the claim, unless the claim's status tracks the
/// resize.
#[tokio::test]
async fn a_volume_in_use_grows_here_although_its_claim_has_the_size() {
    let (fixture, driver) = fixture_with("grow-told", |_| {}).await;
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    request_expansion(&fixture, "32Mi");
    let mut claim = (**fixture.objects.claims.lock().unwrap().get("c").unwrap()).clone();
    let status = json!({"phase": "Bound", "capacity": {"storage": "32Mi"}});
    claim.status = serde_json::from_value(status).unwrap();
    fixture.objects.claims.lock().unwrap().insert("c".into(), Arc::new(claim));
    fixture.ready(&p).await;
    let asked = || calls(&driver).iter().filter(|c| c.starts_with("NodeExpand")).count();
    eventually("asked", || asked() == 1).await;
    let told = |e: &String| e.starts_with("FileSystemResizeSuccessful: ");
    eventually("told", || fixture.events.all().iter().any(told)).await;
    assert!(fixture.storage.claim_patches.lock().unwrap().is_empty(), "the claim knows");
    fixture.ready(&p).await;
    assert_eq!(asked(), 1, "once is enough");
    fixture.end(&p).await;
    eventually("all gone", || fixture.mounts().is_empty() && loops_on(&fixture.root).is_empty())
        .await;
}

#[tokio::test]
async fn a_volume_that_does_not_grow_is_given_up_once_somebody_asks_for_another_size() {
    let (fixture, driver) = fixture_with("grow-not", |_| {}).await;
    csi_claim(&fixture, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    driver.fault("NodeExpandVolume", Some("before Internal"));
    request_expansion(&fixture, "32Mi");
    fixture.ready(&p).await;
    let told = || fixture.storage.claim_patches.lock().unwrap().clone();
    let message = |patch: &serde_json::Value| {
        patch["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    eventually("told", || told().iter().any(|patch| {
        message(patch).starts_with(
            "failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = Internal",
        )
    })).await;
    let infeasible = |patch: &serde_json::Value| {
        patch["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible"
    };
    assert!(!told().iter().any(infeasible), "{:?}", told());
    request_expansion(&fixture, "24Mi");
    eventually("given up", || told().iter().any(infeasible)).await;
    assert!(fixture.events.all().iter().any(|e| {
        e.starts_with("VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume \"pv-c\" : Expander.NodeExpand failed")
    }));
    driver.fault("NodeExpandVolume", None);
    fixture.end(&p).await;
    eventually("all gone", || fixture.mounts().is_empty() && loops_on(&fixture.root).is_empty())
        .await;
}

#[tokio::test]
async fn a_nowhere_server_fails_with_the_helpers_words() {
    let fixture = Fixture::new("nfs");
    let p = pod("u", json!([{"name": "n", "nfs": {"server": "127.0.0.1", "path": "/none"}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("told", || !fixture.events.all().is_empty()).await;
    let event = fixture.events.all().remove(0);
    assert!(
        event.contains("MountVolume.SetUp failed for volume \"n\" : mount failed: exit status"),
        "{event}"
    );
    assert!(event.contains("Mounting arguments: -t nfs 127.0.0.1:/none "), "{event}");
}
