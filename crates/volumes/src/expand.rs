//! Growing a volume on the node.

use crate::csi;
use crate::csi::client::CallError;
use crate::csi::drivers::missing;
use crate::env::{Env, StepError};
use crate::host_tools;
use crate::plugins::{MountInput, flex, local};
use api::core::v1::{ObjectReference, PersistentVolumeClaim};
use engine::volumes::{
    Expansion, Occasion, Outcome, Plugin, claim_size, expansion, failed_patch, finished_patch,
    in_progress_patch,
};
use ports::{EventSeverity, EventTarget, NodeEvent};
use proto::csi_v1 as pb;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use std::sync::Arc;
use tonic::Code;

/// What came of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grown {
    /// The volume now has this size.
    To(i64),
    /// Not possible yet; to be retried.
    Later,
    /// The driver refuses while the volume is in use here.
    Refused,
}

/// An expansion that failed.
#[derive(Debug)]
pub(crate) struct NotGrown {
    pub(crate) error: StepError,
    /// The expansion is not retried, and the claim's status says so.
    pub(crate) given_up: bool,
}

impl From<StepError> for NotGrown {
    fn from(error: StepError) -> Self {
        Self { error, given_up: false }
    }
}

/// Expands the volume to its claim's size, recording each step in the claim's status.
pub(crate) async fn expand(
    env: &Env,
    input: &MountInput,
    occasion: Occasion,
) -> Result<Grown, NotGrown> {
    let spec = &input.spec;
    let Some(volume) = spec.as_persistent() else { return Ok(Grown::Later) };
    let engine::volumes::SpecSource::Persistent { claim, .. } = &spec.source else {
        return Ok(Grown::Later);
    };
    let capacity = volume.spec.as_ref().and_then(|s| s.capacity.as_ref());
    let Some(whole) = crate::resolve::capacity(capacity) else { return Ok(Grown::Later) };
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let name = claim.metadata.name.clone().unwrap_or_default();
    // Only these plugins expand on the node; the recorded size is enough for the others.
    let grows = match &spec.plugin {
        Plugin::Csi | Plugin::Local => true,
        Plugin::Flex(driver) | Plugin::FlexAttached(driver) => flex::resizes(env, driver),
        _ => false,
    };
    if !grows {
        return Ok(Grown::To(whole));
    }
    input.step.enter("reading the claim for its size");
    let claim = env.objects.claim(&namespace, &name).await.map_err(|e| {
        StepError::transient(format!("mountVolume.NodeExpandVolume get PVC failed : {e}"))
    })?;
    if spec.read_only && claim_size(&claim).unwrap_or_default() < whole {
        let message = format!(
            "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file system",
            spec.name
        );
        tell(env, input, &claim, EventSeverity::Warning, "FileSystemResizeFailed", message);
        return Ok(Grown::Later);
    }
    match expansion(&claim, capacity, occasion) {
        Some(Expansion::Done { size }) => Ok(Grown::To(size)),
        Some(Expansion::Expand { size, amount, follows, already_told, overtaken }) => {
            let requested = RequestedSize { size, amount, follows, already_told, overtaken };
            carry_out(env, input, claim, requested).await
        }
        Some(Expansion::Wait) | None => Ok(Grown::Later),
    }
}

/// How the volume is to grow (see [`Expansion::Expand`]).
struct RequestedSize {
    size: i64,
    amount: String,
    follows: bool,
    already_told: bool,
    overtaken: bool,
}

async fn carry_out(
    env: &Env,
    input: &MountInput,
    mut claim: Arc<PersistentVolumeClaim>,
    requested: RequestedSize,
) -> Result<Grown, NotGrown> {
    if requested.follows && !requested.already_told {
        claim = patch(env, &claim, in_progress_patch(&claim)).await?;
    }
    input.step.enter("expanding the volume");
    match ask_driver(env, input, (requested.size, claim_size(&claim).unwrap_or_default())).await {
        Ok(()) => {}
        Err(Refusal::Missing(e)) => return Err(e.into()),
        Err(Refusal::NotSupported(_)) if requested.already_told || !requested.follows => {
            return Ok(Grown::To(requested.size));
        }
        Err(Refusal::NotSupported(message)) => {
            return give_up(env, input, &claim, &requested, (message, None)).await;
        }
        Err(Refusal::Failed(message, code)) => {
            return give_up(env, input, &claim, &requested, (message, code)).await;
        }
    }
    let message = format!(
        "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
        input.spec.name, env.config.node_name
    );
    tell(env, input, &claim, EventSeverity::Normal, "FileSystemResizeSuccessful", message);
    if !requested.already_told {
        let patched = patch(env, &claim, finished_patch(&claim, &requested.amount)).await;
        let what = if requested.follows { "pvc status failed:" } else { "PVC status failed :" };
        patched.map_err(|e| StepError {
            message: format!("mountVolume.NodeExpandVolume update {what} {e}"),
            ..e
        })?;
    }
    Ok(Grown::To(requested.size))
}

/// Records in the claim's status that the expansion failed, if the claim follows it.
async fn give_up(
    env: &Env,
    input: &MountInput,
    claim: &PersistentVolumeClaim,
    requested: &RequestedSize,
    (message, code): (String, Option<Code>),
) -> Result<Grown, NotGrown> {
    if requested.follows {
        let infeasible =
            code.is_some_and(is_infeasible) || (requested.overtaken && input.growth_given_up);
        let status = failed_patch(claim, &message, infeasible, env.clock.now());
        if let Err(err) = patch(env, claim, status).await {
            tracing::error!(volume = input.spec.name, %err,
                "could not record the failed expansion in the claim's status");
        }
    }
    if code == Some(Code::FailedPrecondition) {
        return Ok(Grown::Refused);
    }
    let error = StepError { message, outcome: Outcome::Uncertain };
    Err(NotGrown { error, given_up: requested.follows })
}

fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

enum Refusal {
    /// The driver cannot expand on the node.
    NotSupported(String),
    /// The driver is not registered.
    Missing(StepError),
    /// The attempt failed; with the gRPC code if the driver returned the error.
    Failed(String, Option<Code>),
}

impl From<StepError> for Refusal {
    fn from(error: StepError) -> Self {
        Self::Failed(error.message, None)
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let colon = if is_infeasible(error.code) { "" } else { ": " };
        let text = format!("Expander.NodeExpand failed to expand the volume {colon}{error}");
        Self::Failed(text, Some(error.code))
    }
}

async fn ask_driver(
    env: &Env,
    input: &MountInput,
    (size, known): (i64, i64),
) -> Result<(), Refusal> {
    match &input.spec.plugin {
        Plugin::Local => return grow_disk(env, input).await,
        Plugin::Flex(driver) | Plugin::FlexAttached(driver) => {
            let done = flex::expand(env, driver, input, (size, known)).await?;
            if done || input.spec.is_block() {
                return Ok(());
            }
            let target = flex::device_mount(env, driver, &input.spec.name);
            return Ok(host_tools::grow(&input.device_path, &target).await?);
        }
        _ => {}
    }
    let source = csi::mount::source_of(input)?;
    let driver = env
        .csi
        .get(&source.driver)
        .map(|d| d.open(&source.driver, env.csi.seconds.clone()).about(&input.spec))
        .ok_or_else(|| Refusal::Missing(StepError::transient(missing(&source.driver))))?;
    let expands = driver.can(Capability::ExpandVolume).await.map_err(|e| {
        let what = "Expander.NodeExpand failed to check if node supports expansion";
        Refusal::Failed(format!("{what} : {e}"), None)
    })?;
    if !expands {
        return Err(Refusal::NotSupported(format!(
            "NodeExpand is not supported by the CSI driver {}",
            source.driver
        )));
    }
    let refusal = "expander.NodeExpand failed to get NodeExpandSecretRef";
    let secrets = csi::source::named_secret(env, source.expand_secret.as_ref(), refusal).await?;
    let multi = driver.can(Capability::SingleNodeMultiWriter).await?;
    let link = env.paths.container_source(&input.uid, &input.spec);
    let (staging, path) = if source.block {
        let device = std::fs::canonicalize(&link).unwrap_or(link);
        (csi::block::staging(env, &input.spec.name), device)
    } else {
        (csi::mount::staging_path(env, &source.driver, &source.handle), link)
    };
    driver
        .expand(pb::NodeExpandVolumeRequest {
            volume_id: source.handle.clone(),
            volume_path: path.to_string_lossy().into_owned(),
            capacity_range: Some(pb::CapacityRange { required_bytes: size, limit_bytes: 0 }),
            staging_target_path: staging.to_string_lossy().into_owned(),
            volume_capability: Some(source.capability(multi, None, "")),
            secrets,
        })
        .await?;
    Ok(())
}

/// Expands a local disk's file system with the file system's tool; a folder or raw device needs nothing.
async fn grow_disk(env: &Env, input: &MountInput) -> Result<(), Refusal> {
    let Some(path) = local::local_path(&input.spec).filter(|_| !input.spec.is_block()) else {
        return Ok(());
    };
    let target = local::device_mount(env, &input.spec.name);
    let path = path.to_owned();
    if !local::is_disk(env, &input.spec).await? {
        return Ok(());
    }
    Ok(host_tools::grow(&path, &target).await?)
}

async fn patch(
    env: &Env,
    claim: &PersistentVolumeClaim,
    patch: serde_json::Value,
) -> Result<Arc<PersistentVolumeClaim>, StepError> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let Some(storage) = &env.storage else {
        return Err(StepError::transient("there is no API server"));
    };
    storage.patch_claim_status(namespace, name, patch).await.map_err(|e| {
        StepError::uncertain(format!("patchPVCStatus failed to patch PVC {name:?}: {e}"))
    })
}

fn tell(
    env: &Env,
    input: &MountInput,
    claim: &PersistentVolumeClaim,
    severity: EventSeverity,
    reason: &'static str,
    message: String,
) {
    env.emit(&input.pod, severity, reason, message.clone());
    let reference = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    };
    let target = EventTarget::Object(Box::new(reference));
    env.events.emit(NodeEvent { target, severity, reason, message });
}
