//! Staging and publishing filesystem volumes, and undoing both.

use super::data::{VolumeNotes, remove_mount_dir};
use super::source::{self, Source, attachment_name, sha256};
use super::{PREFIX, client::Driver};
use crate::env::{Env, Step, StepError};
use crate::ownership;
use crate::plugins::{MountInput, UnmountInput};
use crate::pool::NORMAL;
use api::storage::v1::CSIDriver;
use engine::volumes::{Outcome, Plugin, VolumeSpec};
use proto::csi_v1 as csi;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use std::path::{Path, PathBuf};

/// Where a volume is staged.
pub(crate) fn staging_path(env: &Env, driver: &str, handle: &str) -> PathBuf {
    env.paths.plugin("kubernetes.io/csi").join(driver).join(sha256(handle)).join("globalmount")
}

pub(crate) fn source_of(input: &MountInput) -> Result<Source, StepError> {
    Source::of(&input.spec, &input.pod).ok_or_else(|| {
        StepError::settled(format!("{PREFIX}volume source not found in volume.Spec"))
    })
}

/// The SELinux label to mount with; empty if the driver does not support it.
fn label<'a>(input: &'a MountInput, driver: Option<&CSIDriver>) -> &'a str {
    if source::takes_labels(driver) { &input.label } else { "" }
}

/// Checks once whether the volume is attached; the caller retries (upstream: `WaitForAttach`).
pub(crate) async fn check_attached(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let source = source_of(input)?;
    input.step.enter(format!("reading CSIDriver {}", source.driver));
    let driver = source::driver_object(env, &source.driver).await?;
    if source.ephemeral || !source::attach_required(driver.as_deref()) {
        return Ok(());
    }
    let Some(storage) = &env.storage else { return Ok(()) };
    let (handle, name) =
        (&source.handle, attachment_name(&source.handle, &source.driver, &env.config.node_name));
    input.step.enter(format!("reading VolumeAttachment {name}"));
    let attachment = storage.volume_attachment(&name).await.map_err(|e| {
        StepError::transient(format!(
            "volume {handle} has GET error for volume attachment {name}: {e}"
        ))
    })?;
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(StepError::transient("volume attachment is being deleted"));
    }
    let status = attachment.status.as_ref();
    if status.is_some_and(|s| s.attached) {
        return Ok(());
    }
    let message = status
        .and_then(|s| s.attach_error.as_ref())
        .and_then(|e| e.message.clone())
        .unwrap_or_else(|| format!("volume {handle} is not attached for volume attachment {name}"));
    Err(StepError::transient(message))
}

/// Stages the volume on the node.
pub(crate) async fn mount_device(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let source = source_of(input)?;
    let driver =
        env.csi.open(&source.driver, "attacher.MountDevice failed to create newCsiDriverClient")?;
    let driver = driver.about(&input.spec);
    input.step.enter(format!("asking driver {} for its capabilities", source.driver));
    let stages = driver.can(Capability::StageUnstageVolume).await?;
    let object = source::driver_object(env, &source.driver).await?;
    let context = source::publish_context(env, &source, object.as_deref()).await?;
    let secret_ref = source.stage_secret.as_ref().filter(|_| stages);
    let secrets = source::secret(env, secret_ref, "NodeStageSecretRef").await?;
    let path = staging_path(env, &source.driver, &source.handle);
    let made = path.clone();
    let make_path = in_pool(env, &path, "make staging directory", move || {
        Ok(sys::fs::create_dir_all(&made, 0o750)?)
    });
    if !stages {
        return make_path.await;
    }
    let group = driver.can(Capability::VolumeMountGroup).await.map_err(|e| {
        StepError::transient(format!(
            "{PREFIX}attacher.MountDevice failed to determine if the node service has VOLUME_MOUNT_GROUP capability: {e}"
        ))
    })?;
    let multi = driver.can(Capability::SingleNodeMultiWriter).await?;
    // Made only now, when nothing but the staging itself can fail: a folder without `vol_data.json` would be
    // left behind.
    make_path.await?;
    let mut notes = VolumeNotes(
        [("volumeHandle", &source.handle), ("driverName", &source.driver)]
            .map(|(k, v)| (k.to_owned(), v.clone()))
            .into(),
    );
    let label = label(input, object.as_deref());
    notes.set_label(label);
    save_notes(env, &path, notes).await?;
    let gid = ownership::fs_group(&input.pod).filter(|_| group);
    input.step.enter(format!("NodeStageVolume of driver {}", source.driver));
    let staged = driver
        .stage(csi::NodeStageVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: context,
            staging_target_path: path.to_string_lossy().into_owned(),
            volume_capability: Some(source.capability(multi, gid, label)),
            secrets,
            volume_context: source.attributes.clone(),
        })
        .await;
    match staged {
        // A mount that could not be removed must be recorded, so that it is cleaned up later.
        Err(e) if e.is_final() && !clean_after(env, &path).await => {
            Err(StepError { outcome: Outcome::Uncertain, ..e.into() })
        }
        staged => Ok(staged?),
    }
}

/// Publishes the volume to the pod.
pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let source = source_of(input)?;
    let driver = env.csi.open(&source.driver, "mounter.SetUpAt failed to get CSI client")?;
    let driver = driver.about(&input.spec);
    input.step.enter(format!("reading CSIDriver {}", source.driver));
    let object = source::driver_object(env, &source.driver).await?;
    let object = object.as_deref();
    source.check_lifecycle(object)?;
    let sets_group = source.kubelet_sets_group(object)?;
    let mut staging = String::new();
    let mut context = std::collections::BTreeMap::new();
    if !source.ephemeral {
        input.step.enter(format!("asking driver {} for its capabilities", source.driver));
        let stages = driver.can(Capability::StageUnstageVolume).await.map_err(|e| StepError {
            message: format!(
                "{PREFIX}mounter.SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability: {e}"
            ),
            outcome: Outcome::Final,
        })?;
        if stages {
            let path = staging_path(env, &source.driver, &source.handle);
            staging = path.to_string_lossy().into_owned();
        }
        context = source::publish_context(env, &source, object).await.map_err(|e| {
            StepError::transient(format!(
                "{PREFIX}mounter.SetUpAt failed to fetch publishContext: {e}"
            ))
        })?;
    }
    let mut secrets =
        source::secret(env, source.publish_secret.as_ref(), "NodePublishSecretRef").await?;
    let mut attributes = source.attributes.clone();
    if object.is_some_and(|d| d.spec.pod_info_on_mount == Some(true)) {
        attributes.extend(source::pod_info(&input.pod, source.ephemeral));
    }
    if let Some(tokens) = source::tokens(env, input, object).await? {
        let in_secrets =
            object.is_some_and(|d| d.spec.service_account_token_in_secrets == Some(true));
        let place = if in_secrets { &mut secrets } else { &mut attributes };
        place.insert(source::TOKENS.to_owned(), tokens);
    }
    let group = driver.can(Capability::VolumeMountGroup).await.map_err(|e| {
        StepError::transient(format!(
            "{PREFIX}mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability: {e}"
        ))
    })?;
    let multi = driver.can(Capability::SingleNodeMultiWriter).await?;
    let path = env.paths.container_source(&input.uid, &input.spec);
    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
    in_pool(env, &path, "make volume directory", move || {
        Ok(sys::fs::create_dir_all(&parent, 0o750)?)
    })
    .await?;
    let node = &env.config.node_name;
    let mode = if source.ephemeral { "Ephemeral" } else { "Persistent" };
    let mut notes = VolumeNotes(
        [
            ("specVolID", input.spec.name.clone()),
            ("volumeHandle", source.handle.clone()),
            ("driverName", source.driver.clone()),
            ("nodeName", node.clone()),
            ("volumeLifecycleMode", mode.to_owned()),
            ("attachmentID", attachment_name(&source.handle, &source.driver, node)),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
    );
    let label = label(input, object);
    notes.set_label(label);
    save_notes(env, &path, notes).await?;
    let gid = ownership::fs_group(&input.pod).filter(|_| group);
    input.step.enter(format!("NodePublishVolume of driver {}", source.driver));
    let published = driver
        .publish(csi::NodePublishVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: context,
            staging_target_path: staging,
            target_path: path.to_string_lossy().into_owned(),
            volume_capability: Some(source.capability(multi, gid, label)),
            readonly: source.read_only,
            secrets,
            volume_context: attributes,
        })
        .await;
    if let Err(e) = published {
        // A running pod uses the present mount: it stays, whatever the driver answered.
        if e.is_final() && !input.reconstructed && !input.is_remount() {
            clean_after(env, &path).await;
        }
        return Err(e.into());
    }
    if !group && sets_group {
        ownership::apply(env, input, path, source.read_only).await.map_err(|e| {
            StepError::uncertain(format!("applyFSGroup failed for vol {}: {e}", source.handle))
        })?;
    }
    Ok(())
}

/// Takes the volume from the pod.
pub(crate) async fn tear_down(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    let dir = env.paths.volume(&input.uid, &Plugin::Csi, &input.spec.name);
    let path = dir.join("mount");
    let Some(notes) = load_notes(env, &dir).await? else {
        // Nothing was published yet; a mount without `vol_data.json` is an error for the operator.
        let (mount, shown) = (path.clone(), dir.display().to_string());
        return in_pool(env, &path, "remove mount directory", move || {
            match sys::mount::is_mount_point(&mount) {
                Ok(true) => Err(StepError::uncertain(format!(
                    "{PREFIX}unmounter failed to load volume data file [{shown}]: no such file or directory"
                ))),
                _ => remove_mount_dir(&mount),
            }
        })
        .await;
    };
    let driver = env.csi.open(notes.driver(), "Unmounter.TearDownAt failed to get CSI client")?;
    input.step.enter(format!("NodeUnpublishVolume of driver {}", notes.driver()));
    driver
        .unpublish(notes.handle(), &path)
        .await
        .map_err(|e| StepError::uncertain(format!("{PREFIX}Unmounter.TearDownAt failed: {e}")))?;
    let shown = path.display().to_string();
    remove(env, &path).await.map_err(|e| {
        StepError::uncertain(format!(
            "{PREFIX}Unmounter.TearDownAt failed to clean mount dir [{shown}]: {e}"
        ))
    })
}

/// Unstages the volume.
pub(crate) async fn unmount_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let Some((driver_name, handle)) = storage_id(spec) else { return Ok(()) };
    let path = staging_path(env, &driver_name, &handle);
    let dir = path.parent().map(Path::to_owned).unwrap_or_default();
    // Without `vol_data.json` nothing is staged, or the driver has no staging; a folder may exist.
    let Some(notes) = load_notes(env, &dir).await? else { return remove(env, &path).await };
    let driver = env
        .csi
        .open(notes.driver(), "attacher.UnmountDevice failed to create newCsiDriverClient")?;
    step.enter(format!("NodeUnstageVolume of driver {}", notes.driver()));
    unstage(&driver, &notes, &path).await?;
    remove(env, &path).await.map_err(|e| {
        StepError::uncertain(format!(
            "{PREFIX}failed to clean up global mount {}: {e}",
            dir.display()
        ))
    })
}

async fn unstage(driver: &Driver, notes: &VolumeNotes, path: &Path) -> Result<(), StepError> {
    let stages = driver.can(Capability::StageUnstageVolume).await.map_err(|e| {
        StepError::uncertain(format!(
            "{PREFIX}attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set: {e}"
        ))
    })?;
    if stages {
        driver.unstage(notes.handle(), path).await.map_err(|e| {
            StepError::uncertain(format!("{PREFIX}attacher.UnmountDevice failed: {e}"))
        })?;
    }
    Ok(())
}

/// Driver and handle of a persistent volume, also of one found on disk.
pub(crate) fn storage_id(spec: &VolumeSpec) -> Option<(String, String)> {
    if let Some(pv) = spec.as_persistent() {
        let csi = pv.spec.as_ref()?.csi.as_ref()?;
        return Some((csi.driver.clone(), csi.volume_handle.clone()));
    }
    match &spec.source {
        engine::volumes::SpecSource::Found { volume_id: Some(id), .. } => {
            id.split_once('^').map(|(driver, handle)| (driver.to_owned(), handle.to_owned()))
        }
        _ => None,
    }
}

pub(crate) async fn in_pool<T: Send + 'static>(
    env: &Env,
    path: &Path,
    step: &'static str,
    work: impl FnOnce() -> Result<T, StepError> + Send + 'static,
) -> Result<T, StepError> {
    env.pool.run(&path.to_string_lossy(), step, NORMAL, work).await?
}

async fn save_notes(env: &Env, mount: &Path, notes: VolumeNotes) -> Result<(), StepError> {
    let mount_dir = mount.to_owned();
    in_pool(env, mount, "save volume data", move || {
        let dir = mount_dir.parent().unwrap_or(&mount_dir);
        let saved = notes.save(dir);
        if saved.is_err() {
            remove_mount_dir(&mount_dir)?;
        }
        saved
    })
    .await
}

pub(crate) async fn load_notes(env: &Env, dir: &Path) -> Result<Option<VolumeNotes>, StepError> {
    let from = dir.to_owned();
    in_pool(env, dir, "read volume data", move || VolumeNotes::load(&from)).await
}

async fn remove(env: &Env, mount: &Path) -> Result<(), StepError> {
    let path = mount.to_owned();
    in_pool(env, mount, "remove mount directory", move || remove_mount_dir(&path)).await
}

/// Removes what a failed mount left; returns whether that succeeded.
async fn clean_after(env: &Env, mount: &Path) -> bool {
    let removed = remove(env, mount).await;
    if let Err(e) = &removed {
        tracing::warn!(path = %mount.display(), err = %e, "could not remove a failed mount");
    }
    removed.is_ok()
}
