//! Volumes made of objects: content, modes, refresh.

use super::fixture::eventually;
use super::{Fixture, pod};
use ports::{ObjectKind, PodLife, Volumes};
use serde_json::json;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn content_of_every_kind_is_shown_with_its_modes() {
    let fixture = Fixture::new("kinds");
    fixture.objects.set_map("cm", &[("a", "1"), ("b", "2")]);
    fixture.objects.set_secret("sec", &[("k", "hidden")]);
    let p = pod(
        "u",
        json!([
            {"name": "c", "configMap": {"name": "cm", "defaultMode": 0o644}},
            {"name": "s", "secret": {"secretName": "sec", "defaultMode": 0o400,
                "items": [{"key": "k", "path": "dir/key", "mode": 0o440}]}},
            {"name": "w", "downwardAPI": {"defaultMode": 0o644, "items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "mem", "resourceFieldRef":
                    {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}},
            {"name": "p", "projected": {"defaultMode": 0o644, "sources": [
                {"configMap": {"name": "cm", "items": [{"key": "a", "path": "x"}]}},
                {"secret": {"name": "sec"}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
                {"downwardAPI": {"items": [
                    {"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}
        ]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    let at = |volume: &str, file: &str| mounts[volume].host_path.join(file);
    assert!(mounts.values().all(|m| m.read_only), "never writable for a pod");
    assert_eq!((read(&at("c", "a")), read(&at("c", "b"))), ("1".into(), "2".into()));
    assert_eq!(read(&at("s", "dir/key")), "hidden");
    let mode = std::fs::metadata(at("s", "dir/key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o440);
    assert_eq!(read(&at("w", "labels")), "l=\"1\"");
    assert_eq!(read(&at("w", "mem")), "64");
    assert_eq!(read(&at("p", "x")), "p", "a later source wins");
    assert_eq!(read(&at("p", "k")), "hidden");
    assert_eq!(read(&at("p", "token")), "token-sa-0");
    // Secrets never touch the disk.
    let tmpfs = |v: &str| {
        sys::mount::fs_magic(&mounts[v].host_path).unwrap() == sys::mount::TMPFS_MAGIC
            && sys::mount::is_mount_point(&mounts[v].host_path).unwrap()
    };
    assert!(tmpfs("s") && tmpfs("p") && tmpfs("w") && !tmpfs("c"));
    fixture.end(&p).await;
    assert!(fixture.mounts().is_empty());
    eventually("the pod's folder goes", || !fixture.pod_dir("u").exists()).await;
}

#[tokio::test]
async fn a_changed_object_is_shown_within_two_seconds() {
    let fixture = Fixture::new("refresh");
    fixture.objects.set_map("cm", &[("a", "1"), ("b", "2")]);
    let p = pod("u", json!([{"name": "c", "configMap": {"name": "cm", "defaultMode": 0o644}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    let dir = fixture.ready(&p).await["c"].host_path.clone();
    let before = std::fs::read_link(dir.join("..data")).unwrap();
    fixture.objects.set_map("cm", &[("a", "one")]);
    let shown = tokio::time::timeout(
        Duration::from_secs(2),
        eventually("new content", || read(&dir.join("a")) == "one" && !dir.join("b").exists()),
    );
    shown.await.unwrap();
    assert_ne!(std::fs::read_link(dir.join("..data")).unwrap(), before);
    // A refresh that fails leaves the files alone.
    fixture.objects.maps.lock().unwrap().clear();
    fixture.objects.changed(ObjectKind::ConfigMap, "cm");
    eventually("the failure is told", || !fixture.events.all().is_empty()).await;
    assert_eq!(
        fixture.events.all()[0],
        "FailedMount: MountVolume.SetUp failed for volume \"c\" : configmap \"cm\" not found"
    );
    assert_eq!(read(&dir.join("a")), "one");
    assert!(fixture.handle.wait_ready(&p).await.is_ok());
}

#[tokio::test]
async fn a_missing_object_blocks_unless_optional_and_is_picked_up_when_it_appears() {
    let fixture = Fixture::new("missing");
    let p = pod(
        "u",
        json!([
            {"name": "o", "configMap": {"name": "opt", "optional": true, "defaultMode": 0o644}},
            {"name": "s", "secret": {"secretName": "late", "defaultMode": 0o644}}
        ]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let (handle, waiting) = (fixture.handle.clone(), Arc::clone(&p));
    let wait = tokio::task::spawn(async move { handle.wait_ready(&waiting).await });
    let optional = fixture.pod_dir("u").join("volumes/kubernetes.io~configmap/o");
    eventually("the optional one is empty", || optional.join("..data").exists()).await;
    eventually("told", || !fixture.events.all().is_empty()).await;
    assert!(!wait.is_finished());
    fixture.objects.set_secret("late", &[("k", "v")]);
    let mounts =
        tokio::time::timeout(Duration::from_secs(5), wait).await.unwrap().unwrap().unwrap();
    assert_eq!(read(&mounts["s"].host_path.join("k")), "v");
    fixture.objects.set_map("opt", &[("a", "1")]);
    eventually("it appears", || read(&optional.join("a")) == "1").await;
}

#[tokio::test]
async fn changed_labels_reach_downward_files() {
    let fixture = Fixture::new("labels");
    let p = pod(
        "u",
        json!([{"name": "w", "downwardAPI": {"defaultMode": 0o644, "items": [
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    let dir = fixture.ready(&p).await["w"].host_path.clone();
    let mut changed = (*p).clone();
    changed.metadata.labels = Some([("l".to_owned(), "2".to_owned())].into());
    let changed = Arc::new(changed);
    fixture.show(&[(&changed, PodLife::Syncing)]);
    eventually("new label", || read(&dir.join("labels")) == "l=\"2\"").await;
}

#[tokio::test]
async fn tokens_belong_to_the_one_user_of_the_pod() {
    let fixture = Fixture::new("token");
    let mut p = (*pod(
        "u",
        json!([{"name": "p", "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"path": "token"}}]}}]),
    ))
    .clone();
    p.spec.as_mut().unwrap().security_context =
        Some(serde_json::from_value(json!({"runAsUser": 1234})).unwrap());
    let p = Arc::new(p);
    fixture.show(&[(&p, PodLife::Syncing)]);
    let file = fixture.ready(&p).await["p"].host_path.join("token");
    let found = std::fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (1234, 0o600));
}

#[tokio::test]
async fn where_there_are_no_trust_bundles_the_pod_is_told_so() {
    let fixture = Fixture::new("bundles");
    let p = pod(
        "u",
        json!([{"name": "p", "projected": {"defaultMode": 0o644, "sources": [
            {"clusterTrustBundle": {"name": "b", "path": "roots"}}]}}]),
    );
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("told", || !fixture.events.all().is_empty()).await;
    assert_eq!(
        fixture.events.all()[0],
        "FailedMount: MountVolume.SetUp failed for volume \"p\" : ClusterTrustBundle projection is not supported in static kubelet mode"
    );
}
