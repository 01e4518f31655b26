//! Flexvolume drivers: programs of the host.

use super::fixture::eventually;
use super::{Fixture, pod};
use ports::{PodLife, Volumes};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

const DRIVER: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount) mount -t tmpfs -o size=64k flex "$2" && echo '{"status": "Success"}' ;;
unmount) umount "$2" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}' ;;
esac
"#;

#[tokio::test]
async fn a_driver_mounts_and_unmounts_and_an_unknown_one_is_no_plugin() {
    let fixture =
        Fixture::with("flex", |config, root| config.volume_plugin_dir = root.join("exec"));
    let p = pod("u", json!([{"name": "v", "flexVolume": {"driver": "example.com/disk"}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    let refused = fixture.handle.wait_ready(&p).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: failed to get \
         Plugin from volumeSpec for volume \"v\" err=no volume plugin matched"
    );

    let folder = fixture.root.join("exec/example.com~disk");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("disk"), DRIVER).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.join("disk"), mode).unwrap();
    let mounts = fixture.ready(&p).await;
    let path = fixture.pod_dir("u").join("volumes/example.com~disk/v");
    assert_eq!(mounts["v"].host_path, path);
    assert_eq!(fixture.mounts().len(), 1);
    fixture.end(&p).await;
    eventually("unmounted", || fixture.mounts().is_empty()).await;
    let calls = std::fs::read_to_string(folder.join("calls")).unwrap();
    let last = calls.lines().last().unwrap();
    assert_eq!(last, format!("unmount {}", path.display()));
    let mounted = calls.lines().find(|l| l.starts_with("mount ")).unwrap();
    for part in [
        "\"kubernetes.io/fsType\":\"\"",
        "\"kubernetes.io/readwrite\":\"rw\"",
        "\"kubernetes.io/pod.uid\":\"u\"",
    ] {
        assert!(mounted.contains(part), "{mounted}");
    }
}

const ATTACHING: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
case "$1" in
init) echo '{"status": "Success"}' ;;
attach) echo '{"status": "Success", "device": "/dev/own"}' ;;
waitforattach) echo "{\"status\": \"Success\", \"device\": \"$2\"}" ;;
mountdevice) mount -t tmpfs -o size=64k flex "$2" && echo '{"status": "Success"}' ;;
unmountdevice) umount "$2" && echo '{"status": "Success"}' ;;
detach) echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}' ;;
esac
"#;

fn install(fixture: &Fixture) -> std::path::PathBuf {
    let folder = fixture.root.join("exec/example.com~disk");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("disk"), ATTACHING).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.join("disk"), mode).unwrap();
    folder
}

/// The commands, each with its first argument unless that is JSON.
fn calls(folder: &std::path::Path, root: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("calls")).unwrap();
    let root = root.to_string_lossy().into_owned();
    let short = |line: &str| line.split('{').next().unwrap().trim().replace(&root, "");
    text.lines().map(short).collect()
}

#[tokio::test]
async fn an_attaching_driver_waits_for_the_controller_and_shares_one_mount() {
    let mut fixture =
        Fixture::with("flex-attach", |config, root| config.volume_plugin_dir = root.join("exec"));
    let folder = install(&fixture);
    let p = pod("u", json!([{"name": "v", "flexVolume": {"driver": "example.com/disk"}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    let waiting = fixture.handle.clone();
    let asked = Arc::clone(&p);
    let wait = tokio::spawn(async move { waiting.wait_ready(&asked).await });
    eventually("reported in use", || {
        fixture.handle.facts().in_use.as_deref() == Some(&["example.com/disk/v".to_owned()])
    })
    .await;
    assert!(!wait.is_finished());
    fixture.attach(&["example.com/disk/v"]);
    let mounts = wait.await.unwrap().unwrap();
    let path = fixture.pod_dir("u").join("volumes/example.com~disk/v");
    assert_eq!(mounts["v"].host_path, path);
    assert_eq!(fixture.mounts().len(), 2, "the shared one and the pod's");
    // A restart takes over both.
    fixture.restart().await;
    fixture.ready(&p).await;
    fixture.end(&p).await;
    eventually("unmounted", || fixture.mounts().is_empty()).await;
    let global = "/kubelet/plugins/kubernetes.io/flexvolume/example.com/disk/mounts/v";
    let inside = "/kubelet/pods/u/volumes/example.com~disk/v";
    eventually("forgotten", || fixture.handle.facts().in_use.as_deref() == Some(&[])).await;
    assert!(!fixture.root.join(&global[1..]).exists());
    let seen = calls(&folder, &fixture.root);
    assert_eq!(seen.first().map(String::as_str), Some("init"));
    let mounted = format!("mountdevice {global}");
    let unmounted = format!("unmountdevice {global}");
    for wanted in ["getvolumename", "waitforattach", &mounted, &format!("mount {inside}")] {
        assert!(seen.iter().any(|line| line == wanted), "{wanted}: {seen:?}");
    }
    assert_eq!(seen.iter().filter(|line| **line == mounted).count(), 1, "{seen:?}");
    assert_eq!(seen.last(), Some(&unmounted));
    assert!(!seen.iter().any(|line| line.starts_with("attach") || line.starts_with("detach")));
}

#[tokio::test]
async fn without_a_controller_the_node_attaches_and_detaches() {
    let fixture = Fixture::with("flex-own", |config, root| {
        config.volume_plugin_dir = root.join("exec");
        config.controller_attaches = false;
    });
    let folder = install(&fixture);
    let p = pod("u", json!([{"name": "v", "flexVolume": {"driver": "example.com/disk"}}]));
    fixture.show(&[(&p, PodLife::Syncing)]);
    fixture.ready(&p).await;
    let told = "SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume \"v\" ";
    assert!(fixture.events.all().iter().any(|e| e == told), "{:?}", fixture.events.all());
    fixture.end(&p).await;
    eventually("detached", || calls(&folder, &fixture.root).last().unwrap() == "detach v node")
        .await;
    let seen = calls(&folder, &fixture.root);
    assert!(seen.contains(&"waitforattach /dev/own".to_owned()), "{seen:?}");
    assert_eq!(seen.iter().filter(|line| line.starts_with("detach")).count(), 1);
    assert!(fixture.mounts().is_empty());
}
