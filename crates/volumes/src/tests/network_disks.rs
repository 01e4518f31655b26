//! iSCSI and Fibre Channel disks, with stand-ins for the host's tools and kernel folders and a real disk.

use super::fixture::eventually;
use super::{Fixture, pod};
use ports::PodLife;
use serde_json::json;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const IQN: &str = "iqn.2020-01.com.example:disk";

/// Records its calls; a login makes a session and a device appear.
const ISCSIADM: &str = r#"#!/bin/sh
root=$(dirname "$0")
echo "$*" >> "$root/calls"
case "$*" in
*"-o show"*) printf 'iface.iscsi_ifacename = default\niface.transport_name = tcp\niface.initiatorname = <empty>\n' ;;
*--login*)
  s="$root/sys/class/iscsi_host/host3/device/session1"
  mkdir -p "$s/iscsi_session/session1" "$s/connection1:0/iscsi_connection/connection1:0" "$root/sys/class/scsi_host/host3"
  echo iqn.2020-01.com.example:disk > "$s/iscsi_session/session1/targetname"
  c="$s/connection1:0/iscsi_connection/connection1:0"
  for f in address persistent_address; do echo 10.0.0.1 > "$c/$f"; done
  for f in port persistent_port; do echo 3260 > "$c/$f"; done
  ln -s "$(cat "$root/device")" "$root/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-iqn.2020-01.com.example:disk-lun-4" ;;
*--logout*) rm -rf "$root/sys/class/iscsi_host" "$root/dev/disk/by-path"/ip-* ;;
esac
exit 0
"#;

/// A disk that really exists.
struct Disk(PathBuf);

impl Disk {
    fn new(root: &Path) -> Self {
        let image = root.join("image");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        Self(sys::loop_device::attach(Path::new("/dev"), &image, false).unwrap())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = sys::loop_device::detach(&self.0);
    }
}

fn fixture(name: &str) -> (Fixture, Disk) {
    let fixture = Fixture::with(name, |config, root| {
        config.tools = Some(root.to_owned());
        config.roots.sys = root.join("sys");
        config.roots.dev = root.join("dev");
    });
    for folder in ["dev/disk/by-path", "dev/disk/by-id", "sys/block", "sys/class/scsi_host"] {
        std::fs::create_dir_all(fixture.root.join(folder)).unwrap();
    }
    let disk = Disk::new(&fixture.root);
    std::fs::write(fixture.root.join("device"), disk.0.to_string_lossy().as_bytes()).unwrap();
    for (tool, script) in
        [("iscsiadm", ISCSIADM), ("blockdev", "#!/bin/sh\n"), ("multipath", "#!/bin/sh\n")]
    {
        let path = fixture.root.join(tool);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    (fixture, disk)
}

#[tokio::test]
async fn an_iscsi_disk_is_logged_in_mounted_found_again_and_logged_out() {
    let (mut fixture, _disk) = fixture("iscsi");
    let source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 4, "fsType": "ext4",
        "iscsiInterface": "default"});
    let p = pod("u", json!([{"name": "v", "iscsi": source}]));
    // The unique name from the spec, and the one from the folder after a restart.
    fixture.attach(&[
        &format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:4"),
        &format!("kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:4"),
    ]);
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    std::fs::write(mounts["v"].host_path.join("file"), "x").unwrap();
    let global = fixture.root.join(format!(
        "kubelet/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-4"
    ));
    assert!(global.join("file").exists(), "one mount serves all pods");
    let scan =
        std::fs::read_to_string(fixture.root.join("sys/class/scsi_host/host3/scan")).unwrap();
    assert_eq!(scan, "0 0 4", "only the one LUN is looked for");
    let db = "-m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default";
    let node = format!("-m node -p 10.0.0.1:3260 -T {IQN}");
    let calls = || std::fs::read_to_string(fixture.root.join("calls")).unwrap_or_default();
    let login = format!(
        "-m iface -I default -o show\n{db} -o new\n{db} --discover\n\
         {node} -I default -o update -n node.session.scan -v manual\n{node} -I default --login\n\
         {node} -o update -n node.startup -v manual\n"
    );
    assert_eq!(calls(), login);

    // The pod ends while the agent is down: after the restart the disk is found by its folder.
    fixture.show(&[]);
    fixture.restart().await;
    eventually("unmounted", || fixture.mounts().is_empty()).await;
    eventually("logged out", || {
        let calls = std::fs::read_to_string(fixture.root.join("calls")).unwrap_or_default();
        calls.ends_with(&format!("{node} --logout -I default\n{node} -o delete -I default\n"))
    })
    .await;
    eventually("the folder goes", || !global.exists()).await;
}

#[tokio::test]
async fn a_target_that_refuses_is_told_in_upstreams_words() {
    let (fixture, _disk) = fixture("iscsi-refused");
    let script =
        ISCSIADM.replace("*--login*)", "*--discover*) echo refused; exit 4 ;;\n*--login*)");
    std::fs::write(fixture.root.join("iscsiadm"), script).unwrap();
    let source = json!({"targetPortal": "10.0.0.1:3260", "iqn": IQN, "lun": 4});
    let p = pod("u", json!([{"name": "v", "iscsi": source}]));
    fixture.attach(&[&format!("kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:4")]);
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("told", || {
        fixture.events.all().iter().any(|e| {
            e == "FailedMount: MountVolume.WaitForAttach failed for volume \"v\" : failed to get any \
                  path for iscsi disk, last err seen:\niscsi: failed to sendtargets to portal \
                  10.0.0.1:3260 output: refused\n, err exit status 4"
        })
    })
    .await;
}

#[tokio::test]
async fn a_fibre_channel_disk_is_found_mounted_and_forgotten() {
    let (fixture, disk) = fixture("fc");
    symlink(&disk.0, fixture.root.join("dev/disk/by-path/pci-0000:41:00.0-fc-0x5006-lun-2"))
        .unwrap();
    let name = disk.0.file_name().unwrap().to_string_lossy().into_owned();
    let delete = fixture.root.join("sys/block").join(&name).join("device/delete");
    std::fs::create_dir_all(delete.parent().unwrap()).unwrap();
    std::fs::write(&delete, "").unwrap();
    let source = json!({"targetWWNs": ["5006"], "lun": 2, "fsType": "ext4"});
    let p = pod("u", json!([{"name": "v", "fc": source}]));
    fixture.attach(&["kubernetes.io/fc/[5006]:2"]);
    fixture.show(&[(&p, PodLife::Syncing)]);
    let mounts = fixture.ready(&p).await;
    std::fs::write(mounts["v"].host_path.join("file"), "x").unwrap();
    let global = fixture.root.join("kubelet/plugins/kubernetes.io/fc/5006-lun-2");
    assert!(global.join("file").exists());
    fixture.end(&p).await;
    eventually("forgotten", || std::fs::read_to_string(&delete).unwrap() == "1").await;
    assert!(fixture.mounts().is_empty());
    assert!(!global.exists());

    let missing = pod("w", json!([{"name": "v", "fc": {"wwids": ["36 5"]}}]));
    fixture.attach(&["kubernetes.io/fc/[36 5]"]);
    fixture.show(&[(&missing, PodLife::Syncing)]);
    eventually("told", || {
        fixture.events.all().iter().any(|e| {
            e == "FailedMount: MountVolume.WaitForAttach failed for volume \"v\" : no fc disk found"
        })
    })
    .await;
}
