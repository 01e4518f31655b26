//! Carrying out one action. Nothing here decides; each function reports how it ended.

use crate::env::{Env, Step, StepError};
use crate::plugins::{self, MountInput, UnmountInput};
use crate::pool::NORMAL;
use crate::subpath::{self, Which};
use engine::volumes::{DeviceState, Outcome};

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
    match plugins::set_up(env, input).await {
        Ok(()) => OpReport::done(),
        Err(e) => fail(env, input, "FailedMount", "MountVolume.SetUp failed", None, e),
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
