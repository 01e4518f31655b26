//! Executes one planned action. Nothing here decides; each function reports its outcome.

use crate::block;
use crate::env::{Env, Step, StepError};
use crate::expand::{self, Grown};
use crate::plugins::{self, MountInput, UnmountInput};
use crate::pool::NORMAL;
use crate::subpath::{self, Which};
use api::core::v1::PersistentVolume;
use api::ids::VolumeName;
use engine::volumes::{
    DeviceState, Occasion, Outcome, SpecSource, VolumeSpec, claim_size, volume_fits_node,
};
use ports::EventSeverity;
use std::collections::BTreeMap;
use std::path::Path;

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct OpReport {
    /// How it changes the actual state.
    pub(crate) outcome: Outcome,
    /// The device mount's state, if it was touched.
    pub(crate) device: Option<DeviceState>,
    /// The device path under which the volume is attached, if it was determined.
    pub(crate) device_path: Option<String>,
    /// The volume's size, if it was determined.
    pub(crate) size: Option<i64>,
    /// An expansion was refused for good while the volume is in use here.
    pub(crate) refused: bool,
    /// An expansion failed and is not retried.
    pub(crate) given_up: bool,
    /// What went wrong.
    pub(crate) error: Option<String>,
}

impl OpReport {
    /// Success.
    pub(crate) fn done() -> Self {
        Self {
            outcome: Outcome::Done,
            device: None,
            device_path: None,
            size: None,
            refused: false,
            given_up: false,
            error: None,
        }
    }

    /// A failure.
    pub(crate) fn failed(error: StepError) -> Self {
        Self { error: Some(error.message), outcome: error.outcome, ..Self::done() }
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

/// Mounts the volume for the pod; emits an event on failure.
pub(crate) async fn mount(env: &Env, input: &MountInput) -> OpReport {
    let spec = &input.spec;
    if let Some(pv) = spec.as_persistent() {
        let labels = node_labels(env);
        if !volume_fits_node(pv, &labels) {
            let error = StepError::settled("no matching NodeSelectorTerms");
            let step = if spec.is_block() {
                "MapVolume.NodeAffinity check failed"
            } else {
                "MountVolume.NodeAffinity check failed"
            };
            return fail(env, input, FAILED, step, None, error);
        }
        if !spec.is_block()
            && let Err(e) = plugins::check(env, input).await
        {
            let step = "MountVolume.NewMounter initialization failed";
            return fail(env, input, FAILED, step, None, e);
        }
        if !spec.is_block() && has_mount_options(pv) && !spec.plugin.supports_mount_options() {
            let error = StepError::settled("mount options are not supported for this volume type");
            let step = "MountVolume.MountOptionSupport check failed";
            return fail(env, input, FAILED, step, None, error);
        }
        if input.others && single_pod(pv) {
            let error = StepError::transient(
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
            );
            if spec.is_block() {
                let step = "MapVolume.SetUpDevice failed";
                return fail(env, input, "FailedMapVolume", step, None, error);
            }
            return fail(env, input, FAILED, "MountVolume.SetUp failed", None, error);
        }
    }
    if spec.is_block() {
        let report = block::map(env, input).await;
        return grow_after(env, input, report, "FailedMapVolume").await;
    }
    if spec.as_inline().is_some()
        && let Err(e) = plugins::check(env, input).await
    {
        return fail(env, input, FAILED, "MountVolume.NewMounter initialization failed", None, e);
    }
    let attached = match plugins::wait_attached(env, input).await {
        Ok(attached) => attached,
        Err(e) => return fail(env, input, FAILED, "MountVolume.WaitForAttach failed", None, e),
    };
    let mut device = None;
    if spec.is_device_mountable() && input.device != DeviceState::Mounted {
        if let Err(e) = plugins::mount_device(env, input, &attached).await {
            let left = match e.outcome {
                Outcome::Uncertain => Some(DeviceState::Uncertain),
                Outcome::Final if !input.device_reconstructed => Some(DeviceState::NotMounted),
                _ => None,
            };
            // Nothing was done for the pod itself.
            let e = StepError { outcome: Outcome::Transient, ..e };
            return fail(env, input, FAILED, "MountVolume.MountDevice failed", left, e);
        }
        device = Some(DeviceState::Mounted);
    }
    match plugins::set_up(env, input).await {
        Ok(()) => {
            let report = OpReport { device, ..OpReport::done() };
            grow_after(env, input, report, FAILED).await
        }
        Err(e) => fail(env, input, FAILED, "MountVolume.SetUp failed", device, e),
    }
}

/// A volume that grew while it was not in use here is expanded once it is mounted.
async fn grow_after(
    env: &Env,
    input: &MountInput,
    report: OpReport,
    reason: &'static str,
) -> OpReport {
    let SpecSource::Persistent { claim, .. } = &input.spec.source else { return report };
    if report.outcome != Outcome::Done {
        return report;
    }
    let known = claim_size(claim);
    let wanted = input
        .spec
        .as_persistent()
        .and_then(|v| crate::resolve::capacity(v.spec.as_ref()?.capacity.as_ref()));
    let behind = matches!((known, wanted), (Some(known), Some(wanted)) if known < wanted);
    if !behind || input.is_remount() {
        return OpReport { size: known, ..report };
    }
    match expand::expand(env, input, Occasion::Mount).await {
        Ok(Grown::To(size)) => OpReport { size: Some(size), ..report },
        Ok(Grown::Later) => OpReport { size: known, ..report },
        Ok(Grown::Refused) => OpReport { size: known, refused: true, ..report },
        Err(e) => {
            let step = if reason == FAILED {
                "MountVolume.Setup failed while expanding volume"
            } else {
                "MapVolume.MarkVolumeAsMounted failed while expanding volume"
            };
            let error = StepError { outcome: Outcome::Uncertain, ..e.error };
            let failed = fail(env, input, reason, step, report.device, error);
            OpReport { given_up: e.given_up, ..failed }
        }
    }
}

/// Grows a volume in use.
pub(crate) async fn grow(env: &Env, input: &MountInput) -> OpReport {
    match expand::expand(env, input, Occasion::InUse).await {
        Ok(Grown::To(size)) => OpReport { size: Some(size), ..OpReport::done() },
        // Retried after the back-off; the claim may have changed by then.
        Ok(Grown::Later) => OpReport::failed(StepError::transient(
            "the claim is not ready for expansion on the node",
        )),
        Ok(Grown::Refused) => OpReport { refused: true, ..OpReport::done() },
        Err(e) => {
            let step = "NodeExpandVolume.NodeExpandVolume failed";
            let failed = fail(env, input, "VolumeResizeFailed", step, None, e.error);
            OpReport { given_up: e.given_up, ..failed }
        }
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
    let result = async {
        if let Some(path) = plugins::device_mount_path(env, spec) {
            refuse_while_referenced(env, &path).await?;
        }
        plugins::unmount_device(env, spec, step).await
    };
    result.await.into()
}

/// Refuses to unmount a device while another mount of the same storage refers to it.
async fn refuse_while_referenced(env: &Env, path: &Path) -> Result<(), StepError> {
    const OURS: &str = "/plugins/kubernetes.io/";
    let (looked, proc) = (path.to_owned(), env.paths.proc().to_owned());
    let key = path.to_string_lossy().into_owned();
    let suffix = key.find(OURS).and_then(|at| key.get(at..)).unwrap_or(&key).to_owned();
    let refs = env
        .pool
        .run(&key, "read mounts", NORMAL, move || {
            sys::mountinfo::read(&proc).map(|table| sys::mountinfo::references(&table, &looked))
        })
        .await??;
    let foreign: Vec<String> = refs
        .iter()
        .map(|r| r.to_string_lossy().into_owned())
        .filter(|r| !r.contains(&suffix))
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(StepError::uncertain(format!(
        "the device mount path {key:?} is still mounted by other references [{}]",
        foreign.join(" ")
    )))
}

/// Asks the API server whether the volume is attached to this node.
pub(crate) async fn verify_attached(env: &Env, volume: &VolumeName, step: &Step) -> OpReport {
    step.enter("reading the node object");
    let listed = match env.objects.node_now().await {
        Ok(node) => {
            let mut attached = node.status.iter().flat_map(|s| s.volumes_attached.iter().flatten());
            attached.find(|v| v.name == volume.as_str()).map(|v| v.device_path.clone())
        }
        Err(e) => {
            return OpReport::failed(StepError::transient(format!(
                "VerifyControllerAttachedVolume failed fetching node from API server: {e}"
            )));
        }
    };
    match listed {
        Some(device) => OpReport { device_path: Some(device), ..OpReport::done() },
        None => OpReport::failed(StepError::transient(format!(
            "volume {volume:?} has not been added to the list of VolumesAttached in the node's status"
        ))),
    }
}

/// Attaches the volume to this node if no controller does; emits an event on success.
pub(crate) async fn attach(env: &Env, input: &MountInput) -> OpReport {
    match plugins::attach(env, input).await {
        Ok(device) => {
            let name = &input.spec.name;
            let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
            env.emit(&input.pod, EventSeverity::Normal, "SuccessfulAttachVolume", message);
            OpReport { device_path: Some(device), ..OpReport::done() }
        }
        Err(e) => fail(env, input, "FailedAttachVolume", "AttachVolume.Attach failed", None, e),
    }
}

/// Detaches what this node attached.
pub(crate) async fn detach(env: &Env, spec: &VolumeSpec, step: &Step) -> OpReport {
    plugins::detach(env, spec, step).await.into()
}

pub(crate) fn fail(
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
