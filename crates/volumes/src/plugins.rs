//! One file per volume plugin; this one dispatches to them.

pub(crate) mod content;
pub(crate) mod disk;
pub(crate) mod empty_dir;
pub(crate) mod fc;
pub(crate) mod flex;
pub(crate) mod host_path;
pub(crate) mod iscsi;
pub(crate) mod local;
pub(crate) mod nfs;

use crate::block;
use crate::csi;
use crate::env::{Env, Step, StepError};
use crate::host_tools::NotMounted;
use crate::pool::NORMAL;
use api::core::v1::{ObjectReference, Pod};
use engine::volumes::{DeviceState, MountState, Plugin, VolumeSpec};
use ports::{EventSeverity, EventTarget, NodeEvent};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything a mount needs to know.
#[derive(Debug, Clone)]
pub(crate) struct MountInput {
    /// For this pod.
    pub(crate) pod: Arc<Pod>,
    /// Its UID.
    pub(crate) uid: String,
    /// The volume.
    pub(crate) spec: Arc<VolumeSpec>,
    /// The pod's mount so far.
    pub(crate) state: Option<MountState>,
    /// The mount was found on disk and not set up since.
    pub(crate) reconstructed: bool,
    /// Some pod's mount of the volume was found on disk and not set up since.
    pub(crate) device_reconstructed: bool,
    /// The shared device mount so far.
    pub(crate) device: DeviceState,
    /// The device path under which it is attached.
    pub(crate) device_path: String,
    /// Other pods have it mounted.
    pub(crate) others: bool,
    /// An earlier expansion on this node failed for good.
    pub(crate) growth_given_up: bool,
    /// The SELinux label to mount it with; empty: none.
    pub(crate) label: String,
    /// What is being done, for whoever waits.
    pub(crate) step: Step,
}

impl MountInput {
    /// Whether a running pod already uses it: then nothing may be torn down on failure.
    pub(crate) fn is_remount(&self) -> bool {
        self.state == Some(MountState::Mounted)
    }
}

/// Everything a tear-down needs to know.
#[derive(Debug, Clone)]
pub(crate) struct UnmountInput {
    /// Of this pod.
    pub(crate) uid: String,
    /// The volume as it was mounted or found.
    pub(crate) spec: Arc<VolumeSpec>,
    /// What is being done, for whoever waits.
    pub(crate) step: Step,
}

/// How a volume is to be handled, as far as API objects decide that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Treatment {
    /// A controller must attach it before it can be mounted.
    pub(crate) attachable: bool,
    /// It is set up again while the pod runs (upstream: `RequiresRemount`).
    pub(crate) refresh: bool,
    /// It can be mounted with an SELinux label.
    pub(crate) labels: bool,
}

/// Reads the API objects that decide how a volume is handled.
pub(crate) async fn treatment(env: &Env, spec: &VolumeSpec) -> Result<Treatment, StepError> {
    match &spec.plugin {
        Plugin::Iscsi | Plugin::Fc => {
            Ok(Treatment { attachable: true, refresh: false, labels: true })
        }
        Plugin::FlexAttached(_) => {
            Ok(Treatment { attachable: true, refresh: false, labels: false })
        }
        Plugin::Csi => {
            let inline = spec.as_inline().and_then(|v| v.csi.as_ref()).map(|c| c.driver.clone());
            let name = inline.or_else(|| csi::mount::storage_id(spec).map(|(driver, _)| driver));
            let object = csi::source::driver_object(env, &name.unwrap_or_default()).await?;
            let attach = csi::source::attach_required(object.as_deref());
            Ok(Treatment {
                attachable: spec.is_device_mountable() && attach,
                refresh: object.as_deref().is_some_and(|d| d.spec.requires_republish == Some(true)),
                labels: csi::source::takes_labels(object.as_deref()),
            })
        }
        other => Ok(Treatment { attachable: false, refresh: other.is_content(), labels: false }),
    }
}

/// Makes the volume available to the pod.
pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    match &input.spec.plugin {
        Plugin::EmptyDir => empty_dir::set_up(env, input).await,
        Plugin::HostPath => host_path::set_up(env, input).await,
        Plugin::ConfigMap | Plugin::Secret | Plugin::DownwardApi | Plugin::Projected => {
            content::set_up(env, input).await
        }
        Plugin::Csi => csi::mount::set_up(env, input).await,
        Plugin::Local => local::set_up(env, input).await,
        Plugin::Nfs => nfs::set_up(env, input).await,
        Plugin::Iscsi => iscsi::set_up(env, input).await,
        Plugin::Fc => fc::set_up(env, input).await,
        Plugin::Flex(driver) | Plugin::FlexAttached(driver) => {
            flex::set_up(env, driver, input).await
        }
        Plugin::Image => Ok(()),
        Plugin::GitRepo => Err(StepError::settled(
            "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`",
        )),
    }
}

/// Takes the volume away from the pod.
pub(crate) async fn tear_down(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    if input.spec.is_block() {
        return block::unmap(env, input).await;
    }
    match &input.spec.plugin {
        Plugin::EmptyDir => empty_dir::tear_down(env, input, &input.spec.name).await,
        Plugin::ConfigMap | Plugin::Secret | Plugin::DownwardApi | Plugin::Projected => {
            empty_dir::tear_down(env, input, &format!("wrapped_{}", input.spec.name)).await
        }
        Plugin::Csi => csi::mount::tear_down(env, input).await,
        Plugin::Local | Plugin::Iscsi | Plugin::Fc => local::tear_down(env, input).await,
        Plugin::Nfs => nfs::tear_down(env, input).await,
        Plugin::Flex(driver) | Plugin::FlexAttached(driver) => {
            flex::tear_down(env, driver, input).await
        }
        Plugin::HostPath | Plugin::Image | Plugin::GitRepo => Ok(()),
    }
}

/// Whether the volume's definition is usable (upstream: `NewMounter`).
pub(crate) async fn check(env: &Env, input: &MountInput) -> Result<(), StepError> {
    match &input.spec.plugin {
        Plugin::Local => local::check(env, &input.spec).await,
        Plugin::Iscsi => iscsi::check(env, input).await,
        _ => Ok(()),
    }
}

/// Waits for the volume's device and returns its path (upstream: `WaitForAttach`).
pub(crate) async fn wait_attached(env: &Env, input: &MountInput) -> Result<PathBuf, StepError> {
    match &input.spec.plugin {
        Plugin::Csi => csi::mount::check_attached(env, input).await.map(|()| PathBuf::new()),
        Plugin::Iscsi => iscsi::attach(env, input).await,
        Plugin::Fc => fc::find(env, input).await,
        Plugin::FlexAttached(driver) => flex::wait_attached(env, driver, input).await,
        _ => Ok(PathBuf::new()),
    }
}

/// Attaches the volume to this node; returns the device path, if it is known already.
pub(crate) async fn attach(env: &Env, input: &MountInput) -> Result<String, StepError> {
    match &input.spec.plugin {
        Plugin::Csi => {
            Err(StepError::settled("attaching volumes from the kubelet is not supported"))
        }
        Plugin::FlexAttached(driver) => flex::attach(env, driver, input).await,
        _ => Ok(String::new()),
    }
}

/// Detaches the volume from this node.
pub(crate) async fn detach(env: &Env, spec: &VolumeSpec, step: &Step) -> Result<(), StepError> {
    match &spec.plugin {
        Plugin::FlexAttached(driver) => flex::detach(env, driver, spec, step).await,
        _ => Ok(()),
    }
}

/// Makes the device mount that pods share.
pub(crate) async fn mount_device(
    env: &Env,
    input: &MountInput,
    device: &Path,
) -> Result<(), StepError> {
    match &input.spec.plugin {
        Plugin::Iscsi => iscsi::mount_device(env, input, device).await,
        Plugin::Fc => fc::mount_device(env, input, device).await,
        Plugin::Csi => csi::mount::mount_device(env, input).await,
        Plugin::Local => local::mount_device(env, input).await,
        Plugin::FlexAttached(driver) => flex::mount_device(env, driver, input, device).await,
        _ => Ok(()),
    }
}

/// Removes the device mount that pods shared.
pub(crate) async fn unmount_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    if spec.is_block() {
        return block::unmap_device(env, spec, step).await;
    }
    match &spec.plugin {
        Plugin::Local => local::unmount_device(env, spec, step).await,
        Plugin::Csi => csi::mount::unmount_device(env, spec, step).await,
        Plugin::Iscsi => iscsi::unmount_device(env, spec, step).await,
        Plugin::Fc => fc::unmount_device(env, spec, step).await,
        Plugin::FlexAttached(driver) => flex::unmount_device(env, driver, spec, step).await,
        _ => Ok(()),
    }
}

/// Makes the folder for a mount; returns whether something is mounted there already.
pub(crate) async fn make_mount_point(env: &Env, target: &Path) -> Result<bool, StepError> {
    let made = target.to_owned();
    let key = target.to_string_lossy();
    env.pool
        .run(&key, "make directory", NORMAL, move || {
            sys::fs::create_dir_all(&made, 0o750)?;
            Ok::<bool, StepError>(sys::mount::is_mount_point(&made)?)
        })
        .await?
}

/// The error of a disk that was not mounted; a file system mismatch also becomes an event on its
/// persistent volume.
pub(crate) fn report_not_mounted(env: &Env, input: &MountInput, not: NotMounted) -> StepError {
    if let (true, Some(volume)) = (not.mismatch, input.spec.as_persistent()) {
        let meta = &volume.metadata;
        let reference = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolume".into()),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            ..ObjectReference::default()
        };
        env.events.emit(NodeEvent {
            target: EventTarget::Object(Box::new(reference)),
            severity: EventSeverity::Warning,
            reason: "FailedMountOnFilesystemMismatch",
            message: format!("MountVolume failed for volume {:?} {}", input.spec.name, not.error),
        });
    }
    not.error
}

/// PV mount options; the deprecated annotation takes precedence over the field.
pub(crate) fn mount_options(spec: &VolumeSpec) -> Vec<String> {
    let Some(volume) = spec.as_persistent() else { return Vec::new() };
    let annotation = volume
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get("volume.beta.kubernetes.io/mount-options"));
    let mut options: Vec<String> = match annotation {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => volume.spec.as_ref().and_then(|s| s.mount_options.clone()).unwrap_or_default(),
    };
    options.sort();
    options.dedup();
    options
}

/// Where the mount that pods share is, for plugins that have one.
pub(crate) fn device_mount_path(env: &Env, spec: &VolumeSpec) -> Option<PathBuf> {
    match &spec.plugin {
        _ if spec.is_block() => None,
        Plugin::Local => Some(local::device_mount(env, &spec.name)),
        Plugin::Iscsi => iscsi::device_mount(env, spec),
        Plugin::Fc => fc::device_mount(env, spec),
        Plugin::FlexAttached(driver) => Some(flex::device_mount(env, driver, &spec.name)),
        Plugin::Csi => {
            let (driver, handle) = csi::mount::storage_id(spec)?;
            Some(csi::mount::staging_path(env, &driver, &handle))
        }
        _ => None,
    }
}
