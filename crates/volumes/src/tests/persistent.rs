//! Claims: local folders and disks, raw devices, growing volumes.

use super::bed::eventually;
use super::csi::{bed_with, calls, claim_pod, csi_claim};
use super::{Bed, pod};
use api::core::v1::Pod;
use ports::{PodLife, Volumes};
use serde_json::json;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[tokio::test]
async fn a_local_folder_is_bound_and_its_data_stays() {
    let bed = Bed::new("local");
    let folder = bed.root.join("disk");
    std::fs::create_dir_all(&folder).unwrap();
    bed.claim("c", json!({"local": {"path": folder}}));
    let p = claim_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    let path = bed.ready(&p).await["v"].host_path.clone();
    assert_eq!(path, bed.pod_dir("u").join("volumes/kubernetes.io~local-volume/pv-c"));
    std::fs::write(path.join("f"), "x").unwrap();
    bed.end(&p).await;
    assert!(folder.join("f").exists());
    eventually("the pod's folder goes", || !bed.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn a_claim_of_another_node_is_refused_and_a_file_is_no_volume() {
    let bed = Bed::new("affinity");
    let elsewhere = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}});
    bed.claim("far", json!({"local": {"path": "/tmp"}, "nodeAffinity": elsewhere}));
    bed.claim("file", json!({"local": {"path": "/etc/os-release"}}));
    bed.claim("gone", json!({"local": {"path": "/no/such"}}));
    let (p, q) = (claim_pod("p", "far"), claim_pod("q", "file"));
    let r = claim_pod("r", "gone");
    bed.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing), (&r, PodLife::Syncing)]);
    let has = |text: &str| bed.events.all().iter().any(|e| e == text);
    eventually("told", || {
        has("FailedMount: MountVolume.NodeAffinity check failed for volume \"pv-far\" : no matching NodeSelectorTerms")
            && has("FailedMount: MountVolume.NewMounter initialization failed for volume \"pv-file\" : only directory and block device are supported")
            && has("FailedMount: MountVolume.NewMounter initialization failed for volume \"pv-gone\" : path \"/no/such\" does not exist")
    })
    .await;
}

#[tokio::test]
async fn a_local_disk_is_formatted_once_and_shared() {
    let bed = Bed::new("disk");
    let image = bed.root.join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let device = sys::loop_device::attach(Path::new("/dev"), &image, false).unwrap();
    bed.claim("c", json!({"local": {"path": device}}));
    let (p, q) = (claim_pod("p", "c"), claim_pod("q", "c"));
    bed.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    let one = bed.ready(&p).await["v"].host_path.clone();
    let two = bed.ready(&q).await["v"].host_path.clone();
    std::fs::write(one.join("f"), "x").unwrap();
    assert!(two.join("f").exists());
    assert_eq!(bed.mounts().len(), 3, "{:?}", bed.mounts());
    bed.show(&[(&p, PodLife::Terminated), (&q, PodLife::Terminated)]);
    bed.handle.wait_released(&p).await.unwrap();
    bed.handle.wait_released(&q).await.unwrap();
    eventually("all unmounted", || bed.mounts().is_empty()).await;
    // Data is still there for the next pod: it was not formatted again.
    let r = claim_pod("r", "c");
    bed.show(&[(&r, PodLife::Syncing)]);
    assert!(bed.ready(&r).await["v"].host_path.join("f").exists());
    bed.end(&r).await;
    eventually("all unmounted", || bed.mounts().is_empty()).await;
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
    let (mut bed, driver) = bed_with("block", |_| {}).await;
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    let volume = bed.ready(&p).await["v"].clone();
    assert!(volume.block);
    assert_eq!(volume.host_path, bed.pod_dir("u").join("volumeDevices/kubernetes.io~csi/pv-c"));
    let device = std::fs::metadata(&volume.host_path).unwrap();
    assert!(device.file_type().is_block_device());
    let top = bed.root.join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    let bound = std::fs::metadata(top.join("pv-c/dev/u")).unwrap();
    assert_eq!(bound.rdev(), device.rdev());
    assert_eq!(loops_on(&bed.root.join("kubelet")), [top.join("pv-c/dev/u")]);
    let told = |text: &str| bed.events.all().iter().any(|e| e.contains(text));
    assert!(told(
        "SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume \"pv-c\" globalMapPath"
    ));
    assert!(told("volumeMapPath"));
    // Found again after a restart.
    bed.restart().await;
    super::csi::watch(&bed);
    bed.ready(&p).await;
    bed.end(&p).await;
    eventually("unstaged", || calls(&driver).last().unwrap() == "NodeUnstageVolume h-c").await;
    eventually("all gone", || {
        bed.mounts().is_empty() && loops_on(&bed.root).is_empty() && !top.join("pv-c").exists()
    })
    .await;
    eventually("the pod's folder goes", || !bed.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn folders_of_a_device_whose_notes_cannot_be_written_go_with_its_pod() {
    let (bed, driver) = bed_with("notes", |_| {}).await;
    let top = bed.root.join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    std::fs::create_dir_all(&top).unwrap();
    // Room for two folders, and for no file in them.
    let full = ["-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs"];
    let mounted = std::process::Command::new("mount").args(full).arg(&top).status();
    assert!(mounted.unwrap().success());
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    let told = |text: &str| bed.events.all().iter().any(|e| e.contains(text));
    eventually("it fails", || told("FailedMapVolume")).await;
    assert!(top.join("pv-c/data").exists());
    bed.end(&p).await;
    eventually("all gone", || !top.join("pv-c").exists()).await;
    assert!(!calls(&driver).iter().any(|call| call.starts_with("NodeStage")));
}

#[tokio::test]
async fn the_mode_of_a_claim_must_match_its_use() {
    let (bed, _driver) = bed_with("mode", |_| {}).await;
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = claim_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    let error = bed.handle.wait_ready(&p).await.unwrap_err().to_string();
    assert!(
        error.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{error}"
    );
}

#[tokio::test]
async fn a_second_pod_waits_for_a_single_pod_volume() {
    let (bed, _driver) = bed_with("rwop", |_| {}).await;
    csi_claim(&bed, "c", json!({"accessModes": ["ReadWriteOncePod"]}));
    let (p, q) = (claim_pod("p", "c"), claim_pod("q", "c"));
    bed.show(&[(&p, PodLife::Syncing)]);
    bed.ready(&p).await;
    bed.show(&[(&p, PodLife::Syncing), (&q, PodLife::Syncing)]);
    eventually("refused", || {
        bed.events.all().iter().any(|e| {
            e == "FailedMount: MountVolume.SetUp failed for volume \"pv-c\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
        })
    })
    .await;
    bed.show(&[(&p, PodLife::Terminated), (&q, PodLife::Syncing)]);
    bed.handle.wait_released(&p).await.unwrap();
    bed.ready(&q).await;
    bed.end(&q).await;
}

/// The claim wants to grow from 16 to 32 MiB; the user asks for `request` by now.
fn wish_to_grow(bed: &Bed, request: &str) {
    csi_claim(bed, "c", json!({"volumeMode": "Block", "capacity": {"storage": "32Mi"}}));
    let mut claim = (**bed.objects.claims.lock().unwrap().get("c").unwrap()).clone();
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
    bed.objects.claims.lock().unwrap().insert("c".into(), Arc::new(claim));
}

/// A raw device, because growing a mounted ext4 needs a right that not every test machine gives.
#[tokio::test]
async fn a_volume_grows_while_it_is_in_use() {
    let (bed, driver) = bed_with("grow", |_| {}).await;
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    let path = bed.ready(&p).await["v"].host_path.clone();
    let size = || {
        use std::io::{Seek, SeekFrom};
        std::fs::File::open(&path).unwrap().seek(SeekFrom::End(0)).unwrap()
    };
    assert_eq!(size(), 16 << 20);
    // The controller has grown it to 32 MiB; the node has to follow.
    wish_to_grow(&bed, "32Mi");
    bed.ready(&p).await;
    eventually("grown", || size() == 32 << 20).await;
    eventually("told", || bed.storage.claim_patches.lock().unwrap().len() == 2).await;
    let claim = Arc::clone(bed.objects.claims.lock().unwrap().get("c").unwrap());
    let status = claim.status.as_ref().unwrap();
    assert_eq!(status.capacity.as_ref().unwrap()["storage"].0, "32Mi");
    assert!(bed.events.all().contains(
        &"FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume \"pv-c\" node".to_owned()
    ));
    let expansions = || calls(&driver).iter().filter(|c| c.starts_with("NodeExpand")).count();
    assert_eq!(expansions(), 1);
    bed.ready(&p).await;
    assert_eq!(expansions(), 1, "once is enough");
    bed.end(&p).await;
    eventually("all gone", || bed.mounts().is_empty() && loops_on(&bed.root).is_empty()).await;
}

/// Upstream asks the driver of a volume in use without looking at the claim, unless the resizer keeps its own books.
#[tokio::test]
async fn a_volume_in_use_grows_here_although_its_claim_has_the_size() {
    let (bed, driver) = bed_with("grow-told", |_| {}).await;
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    bed.ready(&p).await;
    wish_to_grow(&bed, "32Mi");
    let mut claim = (**bed.objects.claims.lock().unwrap().get("c").unwrap()).clone();
    let status = json!({"phase": "Bound", "capacity": {"storage": "32Mi"}});
    claim.status = serde_json::from_value(status).unwrap();
    bed.objects.claims.lock().unwrap().insert("c".into(), Arc::new(claim));
    bed.ready(&p).await;
    let asked = || calls(&driver).iter().filter(|c| c.starts_with("NodeExpand")).count();
    eventually("asked", || asked() == 1).await;
    let told = |e: &String| e.starts_with("FileSystemResizeSuccessful: ");
    eventually("told", || bed.events.all().iter().any(told)).await;
    assert!(bed.storage.claim_patches.lock().unwrap().is_empty(), "the claim knows");
    bed.ready(&p).await;
    assert_eq!(asked(), 1, "once is enough");
    bed.end(&p).await;
    eventually("all gone", || bed.mounts().is_empty() && loops_on(&bed.root).is_empty()).await;
}

#[tokio::test]
async fn a_volume_that_does_not_grow_is_given_up_once_somebody_asks_for_another_size() {
    let (bed, driver) = bed_with("grow-not", |_| {}).await;
    csi_claim(&bed, "c", json!({"volumeMode": "Block"}));
    let p = device_pod("u", "c");
    bed.show(&[(&p, PodLife::Syncing)]);
    bed.ready(&p).await;
    driver.fault("NodeExpandVolume", Some("before Internal"));
    wish_to_grow(&bed, "32Mi");
    bed.ready(&p).await;
    let told = || bed.storage.claim_patches.lock().unwrap().clone();
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
    wish_to_grow(&bed, "24Mi");
    eventually("given up", || told().iter().any(infeasible)).await;
    assert!(bed.events.all().iter().any(|e| {
        e.starts_with("VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume \"pv-c\" : Expander.NodeExpand failed")
    }));
    driver.fault("NodeExpandVolume", None);
    bed.end(&p).await;
    eventually("all gone", || bed.mounts().is_empty() && loops_on(&bed.root).is_empty()).await;
}

#[tokio::test]
async fn a_nowhere_server_fails_with_the_helpers_words() {
    let bed = Bed::new("nfs");
    let p = pod("u", json!([{"name": "n", "nfs": {"server": "127.0.0.1", "path": "/none"}}]));
    bed.show(&[(&p, PodLife::Syncing)]);
    eventually("told", || !bed.events.all().is_empty()).await;
    let event = bed.events.all().remove(0);
    assert!(
        event.contains("MountVolume.SetUp failed for volume \"n\" : mount failed: exit status"),
        "{event}"
    );
    assert!(event.contains("Mounting arguments: -t nfs 127.0.0.1:/none "), "{event}");
}
