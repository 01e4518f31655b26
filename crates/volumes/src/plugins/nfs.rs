//! NFS by the host's mount helper.

use super::{MountInput, UnmountInput, local, make_mount_point, mount_options};
use crate::env::{Env, StepError};
use crate::host_tools;
use crate::pool::{NORMAL, PoolError};
use engine::volumes::VolumeSpec;
use std::path::PathBuf;
use sys::mount;

struct Share {
    server: String,
    path: String,
    read_only: bool,
}

fn share(spec: &VolumeSpec) -> Option<Share> {
    let inline = spec.as_inline().and_then(|v| v.nfs.as_ref());
    let persistent = spec.as_persistent().and_then(|v| v.spec.as_ref()?.nfs.as_ref());
    let nfs = inline.or(persistent)?;
    let server = if nfs.server.contains(':') && !nfs.server.starts_with('[') {
        format!("[{}]", nfs.server)
    } else {
        nfs.server.clone()
    };
    let read_only = spec.read_only || nfs.read_only == Some(true);
    Some(Share { server, path: nfs.path.clone(), read_only })
}

fn target(env: &Env, uid: &str, spec: &VolumeSpec) -> PathBuf {
    env.paths.volume(uid, &spec.plugin, &spec.name)
}

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let share =
        share(&input.spec).ok_or_else(|| StepError::settled("the volume has no NFS source"))?;
    let target = target(env, &input.uid, &input.spec);
    if make_mount_point(env, &target).await? {
        return Ok(());
    }
    let mut options = mount_options(&input.spec);
    if share.read_only {
        options.push("ro".into());
    }
    options.sort();
    options.dedup();
    let source = format!("{}:{}", share.server, share.path);
    input.step.enter(format!("mounting {source}"));
    let result = host_tools::mount(&source, &target, "nfs", &options).await;
    if result.as_ref().is_err_and(|e| e.outcome == engine::volumes::Outcome::Final) {
        local::unmount_and_remove(env, &target).await?;
    }
    result
}

/// Unmounts; forced if the server does not answer for a minute.
pub(crate) async fn tear_down(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    let path = target(env, &input.uid, &input.spec);
    input.step.enter("unmounting");
    let first = path.clone();
    let plain = env
        .pool
        .run(&path.to_string_lossy(), "unmount", NORMAL, move || {
            mount::unmount(&first, mount::Unmount::Plain)
        })
        .await;
    let done = match plain {
        Ok(result) => result,
        Err(PoolError::Hung { .. } | PoolError::Quarantined { .. }) => {
            let (again, key) = (path.clone(), format!("{} (forced)", path.display()));
            env.pool
                .run(&key, "unmount", NORMAL, move || mount::unmount(&again, mount::Unmount::Force))
                .await?
        }
        Err(e) => return Err(e.into()),
    };
    done?;
    let key = format!("{} (forced)", path.display());
    env.pool
        .run(&key, "remove directory", NORMAL, move || -> Result<(), StepError> {
            Ok(sys::fs::remove_dir(&path)?)
        })
        .await?
}
