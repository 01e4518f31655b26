//! Local volumes: a folder or a disk of this node, by a persistent volume.

use super::{MountInput, UnmountInput, make_mount_point, mount_options, report_not_mounted};
use crate::env::{Env, Step, StepError};
use crate::host_tools::{self, NotMounted};
use crate::ownership;
use crate::pool::NORMAL;
use engine::volumes::VolumeSpec;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use sys::mount;
use units::errno::go_text;

/// The type of file at the volume's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    Disk,
}

/// Where a disk is mounted for all pods.
pub(crate) fn device_mount(env: &Env, name: &str) -> PathBuf {
    env.paths.plugin("kubernetes.io/local-volume").join("mounts").join(name)
}

/// The volume's path on this node.
pub(crate) fn local_path(spec: &VolumeSpec) -> Option<&str> {
    let local = spec.as_persistent()?.spec.as_ref()?.local.as_ref()?;
    Some(&local.path)
}

fn fs_type(spec: &VolumeSpec) -> String {
    spec.as_persistent()
        .and_then(|v| v.spec.as_ref()?.local.as_ref()?.fs_type.clone())
        .filter(|t| !t.is_empty())
        .unwrap_or_else(|| "ext4".into())
}

async fn kind(env: &Env, spec: &VolumeSpec) -> Result<(PathBuf, Kind), StepError> {
    let path = local_path(spec).unwrap_or_default();
    if path.is_empty() {
        return Err(StepError::settled("local volume source is nil or local path is not set"));
    }
    let path = PathBuf::from(path);
    let seen = path.clone();
    let found = env
        .pool
        .run(&path.to_string_lossy(), "stat", NORMAL, move || std::fs::metadata(&seen))
        .await?;
    match found {
        Ok(m) if m.is_dir() => Ok((path, Kind::Folder)),
        Ok(m) if m.file_type().is_block_device() => Ok((path, Kind::Disk)),
        Ok(_) => Err(StepError::settled("only directory and block device are supported")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(StepError::settled(format!("path {:?} does not exist", path.to_string_lossy())))
        }
        Err(e) => Err(StepError::settled(format!("stat {}: {}", path.display(), go_text(&e)))),
    }
}

/// Whether the volume's path can be examined; called before anything is done for it.
pub(crate) async fn check(env: &Env, spec: &VolumeSpec) -> Result<(), StepError> {
    kind(env, spec).await.map(drop)
}

/// Whether it is a disk with a file system of its own, and not a folder.
pub(crate) async fn is_disk(env: &Env, spec: &VolumeSpec) -> Result<bool, StepError> {
    Ok(kind(env, spec).await?.1 == Kind::Disk)
}

/// Mounts a disk for all pods; a folder needs nothing.
pub(crate) async fn mount_device(env: &Env, input: &MountInput) -> Result<(), StepError> {
    input.step.enter("looking at the local path");
    let (path, found) = kind(env, &input.spec).await?;
    if found == Kind::Folder {
        return Ok(());
    }
    let target = device_mount(env, &input.spec.name);
    if make_mount_point(env, &target).await? {
        return Ok(());
    }
    let mut options = mount_options(&input.spec);
    if input.spec.read_only {
        options.push("ro".into());
        options.sort();
        options.dedup();
    }
    input.step.enter(format!("formatting and mounting {}", path.display()));
    let device = path.to_string_lossy().into_owned();
    let fs_type = fs_type(&input.spec);
    let mounted = host_tools::format_and_mount(&device, &target, &fs_type, &options).await;
    let Err(e) = mounted else { return Ok(()) };
    let (unused, shown) = (target.clone(), target.display().to_string());
    let removed =
        env.pool.run(&shown, "remove directory", NORMAL, move || sys::fs::remove_dir(&unused));
    if let Ok(Err(e)) = removed.await {
        tracing::warn!(path = shown, err = %e, "could not remove an unused mount point");
    }
    let message = format!(
        "local: failed to mount device {device} at {shown} (fstype: {fs_type}), error {}",
        e.error
    );
    let mismatch = e.mismatch;
    let error = StepError { message, ..e.error };
    Err(report_not_mounted(env, input, NotMounted { error, mismatch }))
}

/// Binds the folder, or the mounted disk, into the pod.
pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let (path, found) = kind(env, &input.spec).await?;
    let source = match found {
        Kind::Folder => path,
        Kind::Disk => device_mount(env, &input.spec.name),
    };
    let target = env.paths.volume(&input.uid, &input.spec.plugin, &input.spec.name);
    if source.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(StepError::settled(format!(
            "invalid path: {} must not contain '..'",
            source.display()
        )));
    }
    let read_only = input.spec.read_only;
    let gid = ownership::fs_group(&input.pod);
    input.step.enter(format!("binding {}", source.display()));
    let (from, to) = (source.clone(), target.clone());
    let bound = env
        .pool
        .run(
            &source.to_string_lossy(),
            "bind",
            NORMAL,
            move || -> Result<Option<u32>, StepError> {
                sys::fs::create_dir_all(&to, 0o750)?;
                if mount::is_mount_point(&to)? {
                    return Ok(None);
                }
                if let Err(e) = mount::bind(&from, &to, read_only) {
                    mount::unmount_all_at(&to)?;
                    sys::fs::remove_dir(&to)?;
                    return Err(StepError { outcome: engine::volumes::Outcome::Final, ..e.into() });
                }
                std::fs::metadata(&from)
                    .map(|m| Some(m.gid()))
                    .map_err(|e| StepError::uncertain(format!("stat {}: {e}", from.display())))
            },
        )
        .await??;
    // Ownership is not applied again to a volume that was already bound, by this agent or another.
    let Some(owner) = bound else { return Ok(()) };
    let options = mount_options(&input.spec);
    if !options.is_empty() {
        host_tools::remount_bind(&target, &options).await?;
    }
    match gid {
        Some(gid) if input.others && gid != owner => env.warn(
            &input.pod,
            "AlreadyMountedVolume",
            format!(
                "The requested fsGroup is {gid}, but the volume {} has GID {owner}. The volume may not be shareable.",
                input.spec.name
            ),
        ),
        Some(_) if !input.others && !read_only && !input.is_remount() => {
            ownership::apply(env, input, target, read_only).await?;
        }
        _ => {}
    }
    Ok(())
}

pub(crate) async fn tear_down(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    let path = env.paths.volume(&input.uid, &input.spec.plugin, &input.spec.name);
    input.step.enter("unmounting");
    unmount_and_remove(env, &path).await
}

pub(crate) async fn unmount_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    step.enter("unmounting the disk");
    unmount_and_remove(env, &device_mount(env, &spec.name)).await
}

/// Unmounts everything at a path of ours and removes its empty folder.
pub(crate) async fn unmount_and_remove(env: &Env, path: &Path) -> Result<(), StepError> {
    let target = path.to_owned();
    env.pool
        .run(&path.to_string_lossy(), "unmount", NORMAL, move || -> Result<(), StepError> {
            mount::unmount_all_at(&target)?;
            Ok(sys::fs::remove_dir(&target)?)
        })
        .await?
}
