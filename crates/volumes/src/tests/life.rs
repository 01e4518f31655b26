//! From set-up to tear-down, with restarts in between.

use super::fixture::eventually;
use super::{Fixture, pod};
use ports::{PodLife, SubPathRequest, VolumeError, VolumeUsages as _, Volumes};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn empty_dirs_are_made_on_disk_and_in_memory_and_leave_nothing() {
    let fixture = Fixture::new("empty");
    let p = pod(
        "u1",
        json!([
            {"name": "d", "emptyDir": {}},
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
        ]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    let dir = fixture.pod_dir("u1").join("volumes/kubernetes.io~empty-dir");
    assert_eq!(mounts["d"].host_path, dir.join("d"));
    assert!(!mounts["d"].read_only);
    assert_eq!(mode(&dir.join("d")), 0o777);
    assert_eq!(sys::mount::capacity(&dir.join("m")).unwrap().capacity, 1 << 20);
    assert_eq!(fixture.mounts(), [Path::new("kubelet/pods/u1/volumes/kubernetes.io~empty-dir/m")]);
    assert!(fixture.pod_dir("u1").join("plugins/kubernetes.io~empty-dir/d/ready").exists());
    assert!(fixture.handle.in_use(&"u1".into()));
    std::fs::create_dir_all(dir.join("d/x/y")).unwrap();
    std::fs::write(dir.join("d/x/file"), "data").unwrap();

    fixture.end(&p).await;
    assert_eq!(fixture.mounts(), [] as [&Path; 0]);
    assert!(!fixture.handle.in_use(&"u1".into()));
    eventually("the pod's folder goes", || !fixture.pod_dir("u1").exists()).await;
}

#[tokio::test]
async fn data_survives_a_restart_and_a_pod_deleted_meanwhile_is_cleaned() {
    let mut fixture = Fixture::new("restart");
    let volumes = json!([
        {"name": "d", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o644}}
    ]);
    fixture.objects.set_secret("s", &[("k", "v")]);
    let (stays, goes) = (pod("stays", volumes.clone()), pod("goes", volumes));
    fixture.show(&[(&stays, PodLife::Syncing), (&goes, PodLife::Syncing)]);
    fixture.ready(&stays).await;
    fixture.ready(&goes).await;
    let file = fixture.pod_dir("stays").join("volumes/kubernetes.io~empty-dir/m/f");
    std::fs::write(&file, "kept").unwrap();
    let before = fixture.mounts().len();

    // Sources are not ready: nothing may be unmounted.
    fixture.pods.send_replace(ports::PodsSnapshot::default());
    fixture.restart().await;
    eventually("found", || fixture.handle.in_use(&"goes".into())).await;
    assert_eq!(fixture.mounts().len(), before);

    fixture.show(&[(&stays, PodLife::Syncing)]);
    fixture.ready(&stays).await;
    eventually("the deleted pod is cleaned", || !fixture.pod_dir("goes").exists()).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    assert_eq!(fixture.mounts().len(), before / 2);
    fixture.end(&stays).await;
    assert!(fixture.mounts().is_empty());
}

#[tokio::test]
async fn a_pod_being_stopped_across_a_restart_keeps_its_volumes_until_released() {
    let mut fixture = Fixture::new("stopping");
    let p = pod("u", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    fixture.show(&[(&p, PodLife::Terminating)]);
    fixture.restart().await;
    let other = pod("o", json!([{"name": "d", "emptyDir": {}}]));
    fixture.show(&[(&p, PodLife::Terminating), (&other, PodLife::Syncing)]);
    fixture.ready(&other).await;
    assert_eq!(fixture.mounts().len(), 1, "still mounted while its containers stop");
    fixture.handle.wait_released(&p).await.unwrap();
    eventually("unmounted", || fixture.mounts().is_empty()).await;
}

#[tokio::test]
async fn unused_volumes_neither_mount_nor_block() {
    let fixture = Fixture::new("unused");
    let mut p = (*pod("u", json!([{"name": "s", "secret": {"secretName": "missing"}}]))).clone();
    p.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    let p = Arc::new(p);
    fixture.show(&[(&p, PodLife::Syncing)]);
    assert!(fixture.ready(&p).await.is_empty());
    assert!(fixture.events.all().is_empty());
}

#[tokio::test]
async fn a_wrong_host_path_type_is_told_in_upstreams_words() {
    let fixture = Fixture::new("hostpath");
    let p = pod(
        "u",
        json!([{"name": "h", "hostPath": {"path": "/etc/os-release", "type": "Directory"}}]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let wait =
        tokio::time::timeout(std::time::Duration::from_millis(300), fixture.handle.wait_ready(&p));
    assert!(wait.await.is_err(), "it keeps waiting");
    assert_eq!(
        fixture.events.all()[0],
        "FailedMount: MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: /etc/os-release is not a directory"
    );
}

#[tokio::test]
async fn git_repo_is_refused_and_nothing_is_created() {
    let fixture = Fixture::new("git");
    let p = pod(
        "u",
        json!([{"name": "g", "gitRepo": {"repository": "https://x", "directory": "a/.git"}}]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let wait =
        tokio::time::timeout(std::time::Duration::from_millis(300), fixture.handle.wait_ready(&p));
    assert!(wait.await.is_err());
    assert!(fixture.events.all()[0].contains("git-repo volume plugin has been disabled"));
    assert!(!fixture.pod_dir("u").exists());
}

#[tokio::test]
async fn a_missing_claim_is_an_error_at_once() {
    let fixture = Fixture::new("claim");
    let p = pod(
        "u",
        json!([
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "emptyDir": {}}
        ]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let error = fixture.handle.wait_ready(&p).await.unwrap_err();
    let VolumeError::NotReady(text) = error else { panic!("{error:?}") };
    // The other volume may or may not be mounted already.
    assert!(text.contains("failed to process volumes=[c]: "), "{text}");
    assert!(
        text.ends_with(
            "error processing PVC ns/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn a_sub_path_is_bound_below_the_pod_and_goes_with_the_volume() {
    let fixture = Fixture::new("sub");
    let p = pod("u", json!([{"name": "d", "emptyDir": {}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    let request = SubPathRequest {
        pod_uid: "u".into(),
        volume_name: "d".into(),
        volume_path: mounts["d"].host_path.clone(),
        sub_path: "x/y".into(),
        container_name: "main".into(),
        mount_index: 2,
    };
    let path = fixture.handle.bind_sub_path(&request).await.unwrap();
    assert_eq!(path, fixture.pod_dir("u").join("volume-subpaths/d/main/2"));
    assert_eq!(mode(&mounts["d"].host_path.join("x/y")), 0o777);
    std::os::unix::fs::symlink("/etc", mounts["d"].host_path.join("etc")).unwrap();
    let evil = SubPathRequest { sub_path: "etc".into(), mount_index: 3, ..request.clone() };
    assert_eq!(
        fixture.handle.bind_sub_path(&evil).await.unwrap_err().to_string(),
        "failed to prepare subPath for volumeMount \"d\" of container \"main\""
    );
    assert_eq!(fixture.mounts().len(), 1);
    fixture.end(&p).await;
    assert!(fixture.mounts().is_empty());
    eventually("the pod's folder goes", || !fixture.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn fs_group_owns_empty_dirs() {
    let fixture = Fixture::new("fsgroup");
    let mut p = (*pod("u", json!([{"name": "d", "emptyDir": {}}]))).clone();
    p.spec.as_mut().unwrap().security_context =
        Some(serde_json::from_value(json!({"fsGroup": 4321})).unwrap());
    let p = Arc::new(p);
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    let found = std::fs::metadata(&mounts["d"].host_path).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (4321, 0o2777));
    // Verified attached, ownership set, mounted: each is counted as an operation.
    let shown = fixture.registry.render();
    for name in ["verify_controller_attached_volume", "volume_apply_access_control", "volume_mount"]
    {
        let counted = shown.lines().any(|line| {
            line.starts_with("storage_operation_duration_seconds_count{")
                && line.contains(&format!("operation_name=\"{name}\""))
                && line.contains("volume_plugin=\"kubernetes.io/empty-dir\"")
                && line.contains("status=\"success\"")
                && line.ends_with(" 1")
        });
        assert!(counted, "{name} in {shown}");
    }
}

#[tokio::test]
async fn a_worker_that_asks_before_the_snapshot_shows_its_pod_is_served() {
    let fixture = Fixture::new("early");
    fixture.show(&[]);
    let p = pod("u", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    fixture.ready(&p).await;
    fixture.show(&[(&p, PodLife::Syncing)]);
    let other = pod("o", json!([{"name": "d", "emptyDir": {}}]));
    fixture.ready(&other).await;
    assert_eq!(fixture.mounts().len(), 1);
    fixture.end(&p).await;
    assert!(fixture.mounts().is_empty());
}

#[tokio::test]
async fn volumes_on_a_disk_without_quotas_are_measured_by_a_walk() {
    let fixture = Fixture::with("no-quota", |config, root| {
        config.project_quotas = true;
        config.roots.etc = root.join("etc");
        std::fs::create_dir_all(root.join("etc")).unwrap();
    });
    let source = json!({"name": "d", "emptyDir": {"sizeLimit": "1Mi"}});
    let mut own = (*pod("own", json!([source]))).clone();
    own.spec.as_mut().unwrap().host_users = Some(false);
    let own = Arc::new(own);
    fixture.show(&[(&own, PodLife::Syncing)]);
    fixture.ready(&own).await;
    let folder = fixture.pod_dir("own").join("volumes/kubernetes.io~empty-dir/d");
    std::fs::write(folder.join("file"), vec![b'x'; 5000]).unwrap();
    let usages = fixture.handle.usages(&"own".into()).await;
    assert_eq!(usages[0].inodes_used, Some(2));
    let page = fixture.registry.render();
    let count = "kubelet_volume_metric_collection_duration_seconds_count{metric_source=\"du\"} 1";
    assert!(page.contains(count) && !page.contains("fsquota"), "{page}");
    assert_eq!(sys::fs::list_dir(fixture.root.join("etc")).unwrap(), [""; 0]);
    fixture.end(&own).await;
    assert!(!folder.exists());
}
