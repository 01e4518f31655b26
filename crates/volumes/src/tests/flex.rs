//! Flexvolume drivers: programs of the host.

use super::bed::eventually;
use super::{Bed, pod};
use ports::{PodLife, Volumes};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

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
    let bed = Bed::with("flex", |config, root| config.volume_plugin_dir = root.join("exec"));
    let p = pod("u", json!([{"name": "v", "flexVolume": {"driver": "example.com/disk"}}]));
    bed.show(&[(&p, PodLife::Syncing)]);
    let refused = bed.handle.wait_ready(&p).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: failed to get \
         Plugin from volumeSpec for volume \"v\" err=no volume plugin matched"
    );

    let folder = bed.root.join("exec/example.com~disk");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("disk"), DRIVER).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.join("disk"), mode).unwrap();
    let mounts = bed.ready(&p).await;
    let path = bed.pod_dir("u").join("volumes/example.com~disk/v");
    assert_eq!(mounts["v"].host_path, path);
    assert_eq!(bed.mounts().len(), 1);
    bed.end(&p).await;
    eventually("unmounted", || bed.mounts().is_empty()).await;
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
