//! Carrying out one action. Nothing here decides; each function reports how it ended.

use crate::env::{Env, Step, StepError};
use crate::plugins::{self, MountInput, UnmountInput};
use crate::pool::NORMAL;
use crate::subpath::{self, Which};
use api::core::v1::PersistentVolume;
use api::ids::VolumeName;
use engine::volumes::{DeviceState, Outcome, VolumeSpec, volume_fits_node};
use std::collections::BTreeMap;

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct OpReport {
    /// What it means for the books.
    pub(crate) outcome: Outcome,
    /// The device mount's state, if it was touched.
    pub(crate) device: Option<DeviceState>,
    /// The size that is now known.
    pub(crate) size: Option<i64>,
    /// What went wrong.
    pub(crate) error: Option<String>,
}

impl OpReport {
    /// All well.
    pub(crate) fn done() -> Self {
        Self { outcome: Outcome::Done, device: None, size: None, error: None }
    }

    /// A failure.
    pub(crate) fn failed(error: StepError) -> Self {
        Self { outcome: error.outcome, device: None, size: None, error: Some(error.message) }
    }
}

impl From<Result<(), StepError>> for OpReport {
    fn from(result: Result<(), StepError>) -> Self {
        match result {
            Ok(()) => Self::done(),
            Err(e) => Self::failed(e),
        }
    }
}

/// Mounts the volume for the pod; says what failed in an event.
pub(crate) async fn mount(env: &Env, input: &MountInput) -> OpReport {
    let spec = &input.spec;
    if let Some(pv) = spec.as_persistent() {
        let labels = node_labels(env);
        if !volume_fits_node(pv, &env.config.node_name, &labels) {
            let error = StepError::settled("no matching NodeSelectorTerms");
            return fail(env, input, FAILED, "MountVolume.NodeAffinity check failed", None, error);
        }
        if has_mount_options(pv) && !spec.plugin.supports_mount_options() {
            let error = StepError::settled("mount options are not supported for this volume type");
            let step = "MountVolume.MountOptionSupport check failed";
            return fail(env, input, FAILED, step, None, error);
        }
        if input.others && single_pod(pv) {
            let error = StepError::transient(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
            );
            return fail(env, input, FAILED, "MountVolume.SetUp failed", None, error);
        }
    }
    if let Err(e) = plugins::wait_attached(env, input).await {
        return fail(env, input, FAILED, "MountVolume.WaitForAttach failed", None, e);
    }
    let mut device = None;
    if spec.is_device_mountable() && input.device != DeviceState::Mounted {
        if let Err(e) = plugins::mount_device(env, input).await {
            let left = match e.outcome {
                Outcome::Uncertain => Some(DeviceState::Uncertain),
                Outcome::Final if !input.reconstructed => Some(DeviceState::NotMounted),
                _ => None,
            };
            // Nothing was done for the pod itself.
            let e = StepError { outcome: Outcome::Transient, ..e };
            return fail(env, input, FAILED, "MountVolume.MountDevice failed", left, e);
        }
        device = Some(DeviceState::Mounted);
    }
    match plugins::set_up(env, input).await {
        Ok(()) => OpReport { device, ..OpReport::done() },
        Err(e) => fail(env, input, FAILED, "MountVolume.SetUp failed", device, e),
    }
}

const FAILED: &str = "FailedMount";

fn node_labels(env: &Env) -> BTreeMap<String, String> {
    let view = env.node.borrow();
    view.node.as_ref().and_then(|n| n.metadata.labels.clone()).unwrap_or_default()
}

fn has_mount_options(volume: &PersistentVolume) -> bool {
    const ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
    let listed = volume.spec.as_ref().and_then(|s| s.mount_options.as_ref());
    listed.is_some_and(|o| !o.is_empty())
        || volume.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(ANNOTATION))
}

/// Whether `ReadWriteOncePod` is the only access mode.
fn single_pod(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref());
    modes.is_some_and(|m| matches!(m, [only] if only == "ReadWriteOncePod"))
}

/// Tears down the device mount.
pub(crate) async fn unmount_device(env: &Env, spec: &VolumeSpec, step: &Step) -> OpReport {
    plugins::unmount_device(env, spec, step).await.into()
}

/// Asks the API server whether the volume is attached to this node.
pub(crate) async fn verify_attached(env: &Env, volume: &VolumeName, step: &Step) -> OpReport {
    step.enter("reading the node object");
    let listed = match env.objects.node_now().await {
        Ok(node) => {
            let attached = node.status.iter().flat_map(|s| s.volumes_attached.iter().flatten());
            attached.into_iter().any(|v| v.name == volume.as_str())
        }
        Err(e) => {
            return OpReport::failed(StepError::transient(format!(
                "VerifyControllerAttachedVolume failed fetching node from API server: {e}"
            )));
        }
    };
    if listed {
        OpReport::done()
    } else {
        OpReport::failed(StepError::transient(format!(
            "volume {volume:?} has not been added to the list of VolumesAttached in the node's status"
        )))
    }
}

fn fail(
    env: &Env,
    input: &MountInput,
    reason: &'static str,
    step: &str,
    device: Option<DeviceState>,
    error: StepError,
) -> OpReport {
    let message = format!("{step} for volume {:?} : {error}", input.spec.name);
    tracing::warn!(pod = input.pod.metadata.name, podUID = input.uid, err = %error,
        volume = input.spec.name, step, "volume operation failed");
    env.warn(&input.pod, reason, message);
    OpReport { device, ..OpReport::failed(error) }
}

/// Cleans the pod's subPath binds of the volume, then tears the volume down.
pub(crate) async fn unmount(env: &Env, input: &UnmountInput) -> OpReport {
    let result = async {
        clean_sub_paths(env, &input.uid, &input.spec.name, &input.step).await?;
        plugins::tear_down(env, input).await
    };
    result.await.into()
}

async fn clean_sub_paths(env: &Env, uid: &str, volume: &str, step: &Step) -> Result<(), StepError> {
    let top = env.paths.sub_paths(uid);
    let key = top.join(volume).to_string_lossy().into_owned();
    let volume = volume.to_owned();
    step.enter("cleaning subPath mounts");
    env.pool
        .run(&key, "clean subPath mounts", NORMAL, move || {
            subpath::clean(&top, Which::Volume(&volume))
        })
        .await?
        .map_err(|e| StepError::uncertain(format!("error cleaning subPath mounts: {e}")))
}
