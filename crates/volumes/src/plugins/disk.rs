//! What iSCSI and Fibre Channel disks share: finding multipath devices, the mount that pods share, and each
//! pod's bind of it.

use super::{MountInput, make_mount_point, mount_options, report_not_mounted};
use crate::env::{Env, StepError};
use crate::host_tools;
use crate::ownership;
use crate::pool::NORMAL;
use engine::volumes::{Outcome, label_option};
use std::path::{Path, PathBuf};
use sys::mount;

/// How a disk is to be mounted.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    /// Where it is mounted for all pods.
    pub(crate) global: PathBuf,
    /// The file system it has, or is formatted with.
    pub(crate) fs_type: String,
    /// Nobody writes to it.
    pub(crate) read_only: bool,
}

/// The device-mapper device above a disk (`/dev/sda` → `/dev/dm-0`), if there is one.
pub(crate) fn multipath_of(sys: &Path, dev: &Path, device: &Path) -> Option<PathBuf> {
    let found = std::fs::canonicalize(device).ok()?;
    let name = found.file_name()?.to_string_lossy().into_owned();
    let block = sys.join("block");
    let mappers = sys::fs::list_dir(&block).ok()?;
    let above = mappers.into_iter().filter(|mapper| mapper.starts_with("dm-")).find(|mapper| {
        std::fs::symlink_metadata(block.join(mapper).join("slaves").join(&name)).is_ok()
    })?;
    Some(dev.join(above))
}

/// The disks below a device-mapper device.
pub(crate) fn disks_below(sys: &Path, dev: &Path, mapper: &Path) -> Vec<PathBuf> {
    let Some(name) = mapper.file_name() else { return Vec::new() };
    let slaves = sys::fs::list_dir(sys.join("block").join(name).join("slaves"));
    slaves.unwrap_or_default().into_iter().map(|disk| dev.join(disk)).collect()
}

/// Deletes a disk's SCSI device from the kernel; one that is gone already is fine.
pub(crate) fn forget_disk(sys: &Path, device: &Path) {
    let Some(name) = device.file_name() else { return };
    let file = sys.join("block").join(name).join("device/delete");
    if let Err(err) = sys::fs::write(&file, "1")
        && !err.is_not_found()
    {
        tracing::warn!(device = %device.display(), %err, "could not delete a block device");
    }
}

/// Mounts the disk for all pods, formatting an empty one.
pub(crate) async fn mount_device(
    env: &Env,
    input: &MountInput,
    disk: &Disk,
    device: &Path,
) -> Result<(), StepError> {
    if make_mount_point(env, &disk.global).await? {
        return Ok(());
    }
    let mut options = mount_options(&input.spec);
    if disk.read_only {
        options.push("ro".into());
    }
    options.extend(label_option(&input.label));
    options.sort();
    options.dedup();
    input.step.enter(format!("formatting and mounting {}", device.display()));
    let device = device.to_string_lossy();
    let mounted = host_tools::format_and_mount(&device, &disk.global, &disk.fs_type, &options);
    mounted.await.map_err(|e| report_not_mounted(env, input, e))
}

/// Binds the mounted disk into the pod.
pub(crate) async fn set_up(env: &Env, input: &MountInput, disk: &Disk) -> Result<(), StepError> {
    let target = env.paths.volume(&input.uid, &input.spec.plugin, &input.spec.name);
    let (from, to, read_only) = (disk.global.clone(), target.clone(), disk.read_only);
    input.step.enter(format!("binding {}", from.display()));
    let fresh = env
        .pool
        .run(&target.to_string_lossy(), "bind", NORMAL, move || -> Result<bool, StepError> {
            sys::fs::create_dir_all(&to, 0o750)?;
            if mount::is_mount_point(&to)? {
                return Ok(false);
            }
            if let Err(e) = mount::bind(&from, &to, read_only) {
                mount::unmount_all_at(&to)?;
                sys::fs::remove_dir(&to)?;
                return Err(StepError { outcome: Outcome::Final, ..e.into() });
            }
            Ok(true)
        })
        .await??;
    if !fresh {
        return Ok(());
    }
    let options = mount_options(&input.spec);
    if !options.is_empty() {
        host_tools::remount_bind(&target, &options).await?;
    }
    if !read_only && let Err(err) = ownership::apply(env, input, target, read_only).await {
        tracing::warn!(volume = input.spec.name, %err, "could not set ownership");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_a_mapper_is_found_from_either_side() {
        let root = std::env::temp_dir().join(format!("rubelet-multipath-{}", std::process::id()));
        let (sys, dev) = (root.join("sys"), root.join("dev"));
        std::fs::create_dir_all(sys.join("block/dm-3/slaves/sda")).unwrap();
        std::fs::create_dir_all(sys.join("block/dm-3/slaves/sdb")).unwrap();
        std::fs::create_dir_all(sys.join("block/sdc/device")).unwrap();
        std::fs::create_dir_all(&dev).unwrap();
        for disk in ["sda", "sdc"] {
            std::fs::write(dev.join(disk), "").unwrap();
        }
        assert_eq!(multipath_of(&sys, &dev, &dev.join("sda")), Some(dev.join("dm-3")));
        assert_eq!(multipath_of(&sys, &dev, &dev.join("sdc")), None);
        assert_eq!(disks_below(&sys, &dev, &dev.join("dm-3")), [dev.join("sda"), dev.join("sdb")]);
        std::fs::write(sys.join("block/sdc/device/delete"), "").unwrap();
        forget_disk(&sys, &dev.join("sdc"));
        assert_eq!(std::fs::read_to_string(sys.join("block/sdc/device/delete")).unwrap(), "1");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
