//! Raw block volumes: the device is bound for each pod, linked into its folder, and held open by
//! a loop device (upstream: `volumepathhandler`).
//!
//! ```text
//!  <global map>/<pod>                                   bind mount of the device
//!  pods/<pod>/volumeDevices/<plugin>/<name> -> device   what containers get
//! ```

use crate::csi;
use crate::env::{Env, Step, StepError};
use crate::ops::{OpReport, fail};
use crate::plugins::{self, MountInput, UnmountInput, local};
use crate::pool::NORMAL;
use engine::volumes::{DeviceState, Outcome, Plugin, VolumeSpec};
use ports::EventSeverity;
use std::path::{Path, PathBuf};
use sys::removal::{Contents, remove_tree};
use sys::{loop_device, mount};
use units::errno::go_text;

const FAILED: &str = "FailedMapVolume";

fn global_map(env: &Env, spec: &VolumeSpec) -> Result<PathBuf, StepError> {
    match &spec.plugin {
        Plugin::Csi => Ok(csi::block::global_map(env, &spec.name)),
        Plugin::Local => Ok(env
            .paths
            .plugin("kubernetes.io~local-volume")
            .join("volumeDevices")
            .join(&spec.name)),
        Plugin::Iscsi => plugins::iscsi::global_map(env, spec),
        Plugin::Fc => plugins::fc::global_map(env, spec),
        other => {
            Err(StepError::settled(format!("{} volumes cannot be used as devices", other.name())))
        }
    }
}

/// Makes the device available to the pod.
pub(crate) async fn map(env: &Env, input: &MountInput) -> OpReport {
    let spec = &input.spec;
    let global = match global_map(env, spec) {
        Ok(path) => path,
        Err(e) => {
            let step = "MapVolume.NewBlockVolumeMapper initialization failed";
            return fail(env, input, FAILED, step, None, e);
        }
    };
    let attached = match plugins::wait_attached(env, input).await {
        Ok(attached) => attached,
        Err(e) => return fail(env, input, FAILED, "MapVolume.WaitForAttach failed", None, e),
    };
    let mut device = None;
    if input.device != DeviceState::Mounted {
        let set_up = match spec.plugin {
            Plugin::Csi => csi::block::set_up_device(env, input).await,
            _ => Ok(()),
        };
        if let Err(e) = set_up {
            let left = (e.outcome == Outcome::Uncertain).then_some(DeviceState::Uncertain);
            let e = StepError { outcome: Outcome::Transient, ..e };
            return fail(env, input, FAILED, "MapVolume.SetUpDevice failed", left, e);
        }
        device = Some(DeviceState::Mounted);
    }
    let link = env.paths.device(&input.uid, &spec.plugin, &spec.name);
    let bound = global.join(&input.uid);
    let published = match spec.plugin {
        Plugin::Csi => publish(env, input, &bound).await,
        Plugin::Iscsi | Plugin::Fc => Ok(attached),
        _ => local::local_path(spec)
            .map(PathBuf::from)
            .ok_or_else(|| StepError::settled("the volume has no path")),
    };
    let published = match published {
        Ok(path) => path,
        Err(e) => return fail(env, input, FAILED, "MapVolume.MapPodDevice failed", device, e),
    };
    input.step.enter("linking the device");
    let key = bound.to_string_lossy().into_owned();
    let found = env
        .pool
        .run(&key, "follow links", NORMAL, move || {
            std::fs::canonicalize(&published).map_err(|e| {
                StepError::uncertain(format!("lstat {}: {}", published.display(), go_text(&e)))
            })
        })
        .await;
    let found = match found.map_err(StepError::from).and_then(|result| result) {
        Ok(found) => found,
        Err(e) => return fail(env, input, FAILED, "MapVolume.EvalHostSymlinks failed", device, e),
    };
    let (dev, sys) = (env.config.roots.dev.clone(), env.config.roots.sys.clone());
    let (to_link, to_bind) = (link.clone(), bound.clone());
    let linked = env
        .pool
        .run(&key, "map device", NORMAL, move || {
            let device = found;
            bind_device(&device, &to_bind)?;
            relink(&device, &to_link)?;
            if loop_device::find(&sys, &dev, &to_bind)?.is_none() {
                loop_device::attach(&dev, &to_bind, false)?;
            }
            Ok::<(), StepError>(())
        })
        .await;
    let linked = linked.map_err(StepError::from).and_then(|result| result);
    if let Err(e) = linked {
        return fail(env, input, FAILED, "MapVolume.MapBlockVolume failed", device, e);
    }
    let dir = link.parent().map(Path::to_owned).unwrap_or_default();
    for (name, path) in [("globalMapPath", &global), ("volumeMapPath", &dir)] {
        let message = format!(
            "MapVolume.MapPodDevice succeeded for volume {:?} {name} {:?}",
            spec.name,
            path.to_string_lossy()
        );
        env.emit(&input.pod, EventSeverity::Normal, "SuccessfulMountVolume", message);
    }
    OpReport { device, ..OpReport::done() }
}

/// Has the driver publish the device. The bind target is created first, so that a crash in between
/// is found on disk and undone.
async fn publish(env: &Env, input: &MountInput, bound: &Path) -> Result<PathBuf, StepError> {
    let (place, key) = (bound.to_owned(), bound.to_string_lossy().into_owned());
    env.pool.run(&key, "make place for device", NORMAL, move || make_place(&place)).await??;
    let published = csi::block::map_pod_device(env, input).await;
    if published.as_ref().is_err_and(|e| e.outcome != Outcome::Uncertain) && !input.reconstructed {
        let place = bound.to_owned();
        let removed = env.pool.run(&key, "remove place for device", NORMAL, move || {
            match mount::is_mount_point(&place) {
                Ok(false) => sys::fs::remove_file(&place),
                _ => Ok(()),
            }
        });
        if let Ok(Err(e)) = removed.await {
            tracing::warn!(path = key, err = %e, "could not remove an unused bind target of a device");
        }
    }
    published
}

/// Makes the file onto which the device is bound.
fn make_place(target: &Path) -> Result<(), StepError> {
    if let Some(parent) = target.parent() {
        sys::fs::create_dir_all(parent, 0o750)?;
    }
    if !sys::fs::try_exists(target)? {
        use std::os::unix::fs::OpenOptionsExt;
        sys::fail_point::before("create", target)?;
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o750)
            .open(target)
            .map_err(|e| StepError::uncertain(format!("create {}: {e}", target.display())))?;
    }
    Ok(())
}

fn bind_device(device: &Path, target: &Path) -> Result<(), StepError> {
    make_place(target)?;
    if mount::is_mount_point(target)? {
        return Ok(());
    }
    Ok(mount::bind(device, target, false)?)
}

fn relink(device: &Path, link: &Path) -> Result<(), StepError> {
    if let Some(parent) = link.parent() {
        sys::fs::create_dir_all(parent, 0o750)?;
    }
    if std::fs::symlink_metadata(link).is_ok() {
        sys::fs::remove_file(link)?;
    }
    sys::fail_point::before("link", link)?;
    std::os::unix::fs::symlink(device, link)
        .map_err(|e| StepError::uncertain(format!("link {}: {e}", link.display())))
}

/// Takes the device from the pod, in reverse.
pub(crate) async fn unmap(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    let spec = &input.spec;
    let bound = global_map(env, spec)?.join(&input.uid);
    let link = env.paths.device(&input.uid, &spec.plugin, &spec.name);
    let (dev, sys) = (env.config.roots.dev.clone(), env.config.roots.sys.clone());
    input.step.enter("unlinking the device");
    let key = bound.to_string_lossy().into_owned();
    env.pool
        .run(&key, "unmap device", NORMAL, move || {
            if let Some(device) = loop_device::find(&sys, &dev, &bound)? {
                loop_device::detach(&device)?;
            }
            mount::unmount_all_at(&bound)?;
            sys::fs::remove_file(&bound)?;
            Ok::<(), StepError>(())
        })
        .await??;
    if spec.plugin == Plugin::Csi {
        csi::block::unmap_pod_device(env, input).await?;
    }
    // The link is removed last: reconstruction after a restart finds the volume by it.
    env.pool
        .run(&key, "remove link", NORMAL, move || -> Result<(), StepError> {
            sys::fs::remove_file(&link)?;
            if let Some(parent) = link.parent() {
                // Fails while other volumes of this plugin are in the folder.
                let _ = std::fs::remove_dir(parent);
                if let Some(top) = parent.parent() {
                    let _ = std::fs::remove_dir(top);
                }
            }
            Ok(())
        })
        .await?
}

/// Releases the device after the last pod has stopped using it.
pub(crate) async fn unmap_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let global = global_map(env, spec)?;
    let (looked, key) = (global.clone(), global.to_string_lossy().into_owned());
    let refs = env
        .pool
        .run(&key, "list devices", NORMAL, move || {
            let mut names = sys::fs::list_dir(&looked).unwrap_or_default();
            // The iSCSI plugin's metadata file, not a pod's bind.
            names.retain(|name| name != "iscsi.json");
            names
        })
        .await?;
    if !refs.is_empty() {
        return Err(StepError::uncertain(format!(
            "the device {:?} is still referenced from other Pods [{}]",
            global.to_string_lossy(),
            refs.join(" ")
        )));
    }
    if spec.plugin == Plugin::Csi {
        return csi::block::tear_down_device(env, spec, step).await;
    }
    match &spec.plugin {
        Plugin::Iscsi => return plugins::iscsi::unmount_device(env, spec, step).await,
        Plugin::Fc => plugins::fc::tear_down_device(env, spec).await?,
        _ => {}
    }
    let proc = env.paths.proc().to_owned();
    env.pool
        .run(&key, "remove map directory", NORMAL, move || -> Result<(), StepError> {
            Ok(remove_tree(&proc, &global, Contents::Everything)?)
        })
        .await?
}
