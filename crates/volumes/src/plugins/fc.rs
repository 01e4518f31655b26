//! Fibre Channel disks: found by their names, mounted for all pods, deleted from the kernel afterwards.

use super::disk::{self, Disk};
use super::{MountInput, local};
use crate::env::{Env, Step, StepError};
use crate::host_tools;
use crate::pool::NORMAL;
use api::core::v1::FCVolumeSource;
use engine::volumes::VolumeSpec;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PLUGIN: &str = "kubernetes.io/fc";
/// Time between attempts to detach a disk, and their number.
const DETACH_EVERY: Duration = Duration::from_secs(10);
const DETACH_TRIES: u32 = 13;

fn source(spec: &VolumeSpec) -> Option<&FCVolumeSource> {
    let persistent = spec.as_persistent().and_then(|v| v.spec.as_ref()?.fc.as_ref());
    persistent.or_else(|| spec.as_inline().and_then(|v| v.fc.as_ref()))
}

/// World wide names with a LUN, or identifiers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Names {
    wwns: Vec<String>,
    lun: i32,
    wwids: Vec<String>,
}

impl Names {
    fn of(spec: &VolumeSpec) -> Result<Self, StepError> {
        let source = source(spec)
            .ok_or_else(|| StepError::settled("Spec does not reference a FC volume type"))?;
        let wwns = source.target_wwns.clone().unwrap_or_default();
        let wwids: Vec<String> =
            source.wwids.iter().flatten().map(|wwid| wwid.replace(' ', "_")).collect();
        if !wwns.is_empty() && source.lun.is_some() {
            return Ok(Self { wwns, lun: source.lun.unwrap_or_default(), wwids: Vec::new() });
        }
        if wwids.is_empty() {
            return Err(StepError::settled(
                "fc: no fc disk information found. failed to make a new mounter",
            ));
        }
        Ok(Self { wwids, ..Self::default() })
    }

    fn folder(&self) -> String {
        if self.wwns.is_empty() {
            self.wwids.join("-")
        } else {
            format!("{}-lun-{}", self.wwns.join("-"), self.lun)
        }
    }

    /// Whether a name below `/dev/disk` is one of this disk's.
    fn is(&self, id: &str, name: &str) -> bool {
        if self.wwns.is_empty() {
            return name == format!("scsi-{id}");
        }
        let tail = format!("fc-0x{id}-lun-{}", self.lun);
        name == tail || (name.starts_with("pci-") && name.ends_with(&format!("-{tail}")))
    }
}

fn disk_of(env: &Env, spec: &VolumeSpec) -> Result<Disk, StepError> {
    let names = Names::of(spec)?;
    let source = source(spec);
    let read_only = match spec.as_persistent() {
        Some(_) => spec.read_only,
        None => source.and_then(|s| s.read_only) == Some(true),
    };
    Ok(Disk {
        global: env.paths.plugin(PLUGIN).join(names.folder()),
        fs_type: source.and_then(|s| s.fs_type.clone()).unwrap_or_default(),
        read_only,
    })
}

/// Where the disk is mounted for all pods.
pub(crate) fn device_mount(env: &Env, spec: &VolumeSpec) -> Option<PathBuf> {
    disk_of(env, spec).ok().map(|disk| disk.global)
}

/// Where the device is bound for each pod that uses it raw.
pub(crate) fn global_map(env: &Env, spec: &VolumeSpec) -> Result<PathBuf, StepError> {
    Ok(env.paths.plugin(PLUGIN).join("volumeDevices").join(Names::of(spec)?.folder()))
}

/// Finds the disk; the buses are scanned once if it is not there.
pub(crate) async fn find(env: &Env, input: &MountInput) -> Result<PathBuf, StepError> {
    let names = Names::of(&input.spec)?;
    let (sys, dev) = (env.config.roots.sys.clone(), env.config.roots.dev.clone());
    input.step.enter("looking for the Fibre Channel disk");
    env.pool
        .run(&names.folder(), "find disk", NORMAL, move || {
            let first = search(&sys, &dev, &names);
            if let Some((_, Some(mapper))) = first {
                return Ok(mapper);
            }
            rescan(&sys);
            match search(&sys, &dev, &names) {
                Some((_, Some(mapper))) => Ok(mapper),
                Some((disk, None)) => Ok(disk),
                None => Err(StepError::settled("no fc disk found")),
            }
        })
        .await?
}

fn search(sys: &Path, dev: &Path, names: &Names) -> Option<(PathBuf, Option<PathBuf>)> {
    let by = if names.wwns.is_empty() { "disk/by-id" } else { "disk/by-path" };
    let ids = if names.wwns.is_empty() { &names.wwids } else { &names.wwns };
    let links = sys::fs::list_dir(dev.join(by)).unwrap_or_default();
    let mut found = None;
    for id in ids {
        let Some(link) = links.iter().find(|name| names.is(id, name)) else { continue };
        let Ok(disk) = std::fs::canonicalize(dev.join(by).join(link)) else { continue };
        let mapper = disk::multipath_of(sys, dev, &disk);
        let done = mapper.is_some();
        found = Some((disk, mapper));
        if done {
            break;
        }
    }
    found
}

fn rescan(sys: &Path) {
    let hosts = sys.join("class/scsi_host");
    for host in sys::fs::list_dir(&hosts).unwrap_or_default() {
        if let Err(err) = sys::fs::write(hosts.join(&host).join("scan"), "- - -") {
            tracing::debug!(host, %err, "could not scan a SCSI host");
        }
    }
}

pub(crate) async fn mount_device(
    env: &Env,
    input: &MountInput,
    device: &Path,
) -> Result<(), StepError> {
    let disk = disk_of(env, &input.spec)?;
    disk::mount_device(env, input, &disk, device).await
}

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let disk = disk_of(env, &input.spec)?;
    disk::set_up(env, input, &disk).await
}

/// Unmounts the disk, then deletes it from the kernel.
pub(crate) async fn unmount_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let global = disk_of(env, spec)?.global;
    let (looked, proc) = (global.clone(), env.paths.proc().to_owned());
    step.enter("unmounting the disk");
    let table = env
        .pool
        .run(&global.to_string_lossy(), "read mounts", NORMAL, move || sys::mountinfo::read(&proc))
        .await??;
    let device = table.iter().rev().find(|m| m.mount_point == looked).map(|m| m.source.clone());
    local::unmount_and_remove(env, &global).await.map_err(|e| StepError {
        message: format!("fc: failed to unmount: {}\nError: {e}", global.display()),
        ..e
    })?;
    let Some(device) = device else { return Ok(()) };
    let device = PathBuf::from(device);
    step.enter(format!("detaching {}", device.display()));
    for tries in 1.. {
        match detach(env, &device).await {
            Ok(()) => break,
            Err(e) if tries == DETACH_TRIES => {
                return Err(StepError::uncertain(format!(
                    "fc: failed to detach disk: {}: {e}",
                    global.display()
                )));
            }
            Err(_) => tokio::time::sleep(DETACH_EVERY).await,
        }
    }
    Ok(())
}

/// Deletes the disk from the kernel, and the multipath device above it.
async fn detach(env: &Env, device: &Path) -> Result<(), StepError> {
    let (sys, dev) = (env.config.roots.sys.clone(), env.config.roots.dev.clone());
    let found = device.to_owned();
    let key = device.to_string_lossy().into_owned();
    let disk = env
        .pool
        .run(&key, "follow links", NORMAL, move || std::fs::canonicalize(&found))
        .await?
        .map_err(|e| StepError::uncertain(units::errno::go_text(&e)))?;
    let is_mapper = disk.file_name().is_some_and(|n| n.to_string_lossy().starts_with("dm-"));
    let disks = if is_mapper {
        let below = disk::disks_below(&sys, &dev, &disk);
        host_tools::flush_multipath(env, &disk).await?;
        below
    } else {
        vec![disk]
    };
    for disk in disks {
        let shown = disk.to_string_lossy().into_owned();
        let flush = ["--flushbufs", shown.as_str()];
        let program = host_tools::tool(env, "blockdev");
        if let Err(err) = host_tools::run(&program, &flush, host_tools::MOUNT_LIMIT).await {
            tracing::warn!(device = shown, %err, "could not flush a disk");
        }
        let sys = sys.clone();
        env.pool
            .run(&shown, "delete device", NORMAL, move || disk::forget_disk(&sys, &disk))
            .await?;
    }
    Ok(())
}

/// Releases a raw block device, which is found by its folder's name.
pub(crate) async fn tear_down_device(env: &Env, spec: &VolumeSpec) -> Result<(), StepError> {
    let names = Names::of(spec)?;
    let (sys, dev) = (env.config.roots.sys.clone(), env.config.roots.dev.clone());
    let found = env
        .pool
        .run(&names.folder(), "find disk", NORMAL, move || search(&sys, &dev, &names))
        .await?;
    match found {
        Some((_, Some(mapper))) => detach(env, &mapper).await,
        Some((disk, None)) => detach(env, &disk).await,
        None => Ok(()),
    }
}

/// The volume source that a folder below `plugins/kubernetes.io/fc` encodes (upstream: `parsePDName`).
pub(crate) fn source_of_folder(name: &str) -> Option<FCVolumeSource> {
    let parts: Vec<String> = name.split('-').map(str::to_owned).collect();
    let names = |list: &[String]| Some(list.to_vec());
    match parts.as_slice() {
        [.., lun_word, _] if lun_word == "lun" && parts.len() == 2 => None,
        [wwns @ .., lun_word, lun] if lun_word == "lun" => Some(FCVolumeSource {
            target_wwns: names(wwns),
            lun: Some(lun.parse().ok()?),
            ..FCVolumeSource::default()
        }),
        wwids => Some(FCVolumeSource { wwids: names(wwids), ..FCVolumeSource::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_leads_back_to_its_disk() {
        let found = source_of_folder("5006-5007-lun-3").unwrap();
        assert_eq!(found.target_wwns, Some(vec!["5006".into(), "5007".into()]));
        assert_eq!(found.lun, Some(3));
        assert_eq!(source_of_folder("3600").unwrap().wwids, Some(vec!["3600".into()]));
        assert_eq!(source_of_folder("lun-3"), None);
    }

    #[test]
    fn disks_are_known_by_path_or_identifier() {
        let by_path = Names { wwns: vec!["50".into()], lun: 1, ..Names::default() };
        assert!(by_path.is("50", "fc-0x50-lun-1"));
        assert!(by_path.is("50", "pci-0000:41:00.0-fc-0x50-lun-1"));
        assert!(!by_path.is("50", "fc-0x50-lun-11"));
        assert!(!by_path.is("50", "virtio-fc-0x50-lun-1"));
        let by_id = Names { wwids: vec!["36".into()], ..Names::default() };
        assert!(by_id.is("36", "scsi-36"));
        assert!(!by_id.is("36", "scsi-361"));
    }
}
