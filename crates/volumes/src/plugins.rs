//! One file per kind of volume; this one chooses.

pub(crate) mod content;
pub(crate) mod empty_dir;
pub(crate) mod host_path;

use crate::env::{Env, Step, StepError};
use api::core::v1::Pod;
use engine::volumes::{DeviceState, MountState, Plugin, VolumeSpec};
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
    /// The shared device mount so far.
    pub(crate) device: DeviceState,
    /// Other pods have it mounted.
    pub(crate) others: bool,
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

/// Whether a controller must attach the volume before it can be mounted.
pub(crate) async fn is_attachable(_env: &Env, spec: &VolumeSpec) -> bool {
    matches!(spec.plugin, Plugin::Iscsi | Plugin::Fc)
}

/// Makes the volume available to the pod.
pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    match &input.spec.plugin {
        Plugin::EmptyDir => empty_dir::set_up(env, input).await,
        Plugin::HostPath => host_path::set_up(env, input).await,
        Plugin::ConfigMap | Plugin::Secret | Plugin::DownwardApi | Plugin::Projected => {
            content::set_up(env, input).await
        }
        Plugin::Image => Ok(()),
        Plugin::GitRepo => Err(StepError::settled(
            "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`",
        )),
        other => Err(StepError::settled(format!("no volume plugin for {}", other.name()))),
    }
}

/// Takes the volume away from the pod.
pub(crate) async fn tear_down(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    match &input.spec.plugin {
        Plugin::EmptyDir => empty_dir::tear_down(env, input, &input.spec.name).await,
        Plugin::ConfigMap | Plugin::Secret | Plugin::DownwardApi | Plugin::Projected => {
            empty_dir::tear_down(env, input, &format!("wrapped_{}", input.spec.name)).await
        }
        Plugin::HostPath | Plugin::Image => Ok(()),
        other => Err(StepError::settled(format!("no volume plugin for {}", other.name()))),
    }
}
