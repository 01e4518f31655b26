//! Staging and publishing raw block volumes.
//!
//! ```text
//!  plugins/kubernetes.io/csi/volumeDevices/staging/<name>
//!  plugins/kubernetes.io/csi/volumeDevices/publish/<name>/<pod>
//!  plugins/kubernetes.io/csi/volumeDevices/<name>/{dev,data/vol_data.json}
//! ```

use super::PREFIX;
use super::data::{VolumeNotes, remove_unfinished};
use super::mount::{in_pool, source_of};
use super::source::{self, Source, attachment_name};
use crate::env::{Env, Step, StepError};
use crate::paths::Paths;
use crate::plugins::{MountInput, UnmountInput};
use api::storage::v1::CSIDriver;
use engine::volumes::{DeviceState, Outcome, VolumeSpec};
use proto::csi_v1 as csi;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use std::collections::BTreeMap;
use std::path::PathBuf;
use sys::removal::{Contents, remove_tree};

fn top(env: &Env) -> PathBuf {
    all_devices(&env.paths)
}

/// The folder of all devices.
pub(crate) fn all_devices(paths: &Paths) -> PathBuf {
    paths.plugin("kubernetes.io/csi").join("volumeDevices")
}

/// Where the device is staged.
pub(crate) fn staging(env: &Env, name: &str) -> PathBuf {
    top(env).join("staging").join(name)
}

fn publish_dir(env: &Env, name: &str) -> PathBuf {
    top(env).join("publish").join(name)
}

/// Where the device is bound for each pod.
pub(crate) fn global_map(env: &Env, name: &str) -> PathBuf {
    top(env).join(name).join("dev")
}

fn notes_dir(env: &Env, name: &str) -> PathBuf {
    top(env).join(name).join("data")
}

/// Writes `vol_data.json`, which undoing needs; called before anything else is done.
async fn save_notes(env: &Env, input: &MountInput, source: &Source) -> Result<(), StepError> {
    let (name, node) = (&input.spec.name, &env.config.node_name);
    let notes = VolumeNotes(
        [
            ("specVolID", name.clone()),
            ("volumeHandle", source.handle.clone()),
            ("driverName", source.driver.clone()),
            ("nodeName", node.clone()),
            ("attachmentID", attachment_name(&source.handle, &source.driver, node)),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into(),
    );
    let dir = notes_dir(env, name);
    let key = dir.clone();
    in_pool(env, &key, "save volume data", move || {
        sys::fs::create_dir_all(&dir, 0o750)?;
        notes.save(&dir)
    })
    .await
}

/// The attachment's publish context; `caller` is the step named in the error.
async fn publish_context(
    env: &Env,
    source: &Source,
    object: Option<&CSIDriver>,
    caller: &str,
) -> Result<BTreeMap<String, String>, StepError> {
    let id = attachment_name(&source.handle, &source.driver, &env.config.node_name);
    source::publish_context(env, source, object).await.map_err(|e| {
        StepError::transient(format!(
            "{PREFIX}blockMapper.{caller} failed to get volume attachment [id={id}]: {e}"
        ))
    })
}

/// Stages the device on the node.
pub(crate) async fn set_up_device(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let source = source_of(input)?;
    save_notes(env, input, &source).await?;
    let staged = stage(env, input, &source).await;
    // The volume is not recorded as mounted after a final error, nor after a transient one if it was not before.
    let forgotten = staged.as_ref().is_err_and(|e| match e.outcome {
        Outcome::Final => true,
        Outcome::Transient => input.device == DeviceState::NotMounted,
        _ => false,
    });
    match staged {
        // Folders that could not be removed must be recorded, so that they are cleaned up later.
        Err(failed) if forgotten && remove_folders(env, &input.spec.name).await.is_err() => {
            Err(StepError { outcome: Outcome::Uncertain, ..failed })
        }
        staged => staged,
    }
}

async fn stage(env: &Env, input: &MountInput, source: &Source) -> Result<(), StepError> {
    let object = source::driver_object(env, &source.driver).await?;
    let context = publish_context(env, source, object.as_deref(), "SetupDevice").await?;
    let driver =
        env.csi.open(&source.driver, "blockMapper.SetUpDevice failed to get CSI client")?;
    let driver = driver.about(&input.spec);
    let stages = driver.can(Capability::StageUnstageVolume).await.map_err(|e| {
        StepError::settled(format!(
            "{PREFIX}blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: {e}"
        ))
    })?;
    if !stages {
        return Ok(());
    }
    let secrets = source::named_secret(
        env,
        source.stage_secret.as_ref(),
        &format!("{PREFIX}failed to get NodeStageSecretRef"),
    )
    .await?;
    let path = staging(env, &input.spec.name);
    let made = path.clone();
    in_pool(env, &path, "make staging directory", move || {
        Ok(sys::fs::create_dir_all(&made, 0o750)?)
    })
    .await?;
    let multi = driver.can(Capability::SingleNodeMultiWriter).await?;
    input.step.enter(format!("NodeStageVolume of driver {}", source.driver));
    driver
        .stage(csi::NodeStageVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: context,
            staging_target_path: path.to_string_lossy().into_owned(),
            volume_capability: Some(source.capability(multi, None, "")),
            secrets,
            volume_context: source.attributes.clone(),
        })
        .await?;
    Ok(())
}

/// Publishes the device to the pod; returns the path that the driver filled.
pub(crate) async fn map_pod_device(env: &Env, input: &MountInput) -> Result<PathBuf, StepError> {
    let source = source_of(input)?;
    let object = source::driver_object(env, &source.driver).await?;
    let object = object.as_deref();
    let context = publish_context(env, &source, object, "MapPodDevice").await?;
    let driver =
        env.csi.open(&source.driver, "blockMapper.MapPodDevice failed to get CSI client")?;
    let driver = driver.about(&input.spec);
    let mut attributes = source.attributes.clone();
    if object.is_some_and(|d| d.spec.pod_info_on_mount == Some(true)) {
        attributes.extend(source::pod_info(&input.pod, false));
    }
    let secrets = source::named_secret(
        env,
        source.publish_secret.as_ref(),
        &format!("{PREFIX}blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef"),
    )
    .await?;
    let dir = publish_dir(env, &input.spec.name);
    let path = dir.join(&input.uid);
    in_pool(env, &path, "make publish directory", move || {
        Ok(sys::fs::create_dir_all(&dir, 0o750)?)
    })
    .await?;
    let multi = driver.can(Capability::SingleNodeMultiWriter).await?;
    input.step.enter(format!("NodePublishVolume of driver {}", source.driver));
    driver
        .publish(csi::NodePublishVolumeRequest {
            volume_id: source.handle.clone(),
            publish_context: context,
            staging_target_path: staging(env, &input.spec.name).to_string_lossy().into_owned(),
            target_path: path.to_string_lossy().into_owned(),
            volume_capability: Some(source.capability(multi, None, "")),
            readonly: source.read_only,
            secrets,
            volume_context: attributes,
        })
        .await?;
    Ok(path)
}

async fn notes(env: &Env, name: &str) -> Result<Option<VolumeNotes>, StepError> {
    let dir = notes_dir(env, name);
    let key = dir.clone();
    in_pool(env, &key, "read volume data", move || VolumeNotes::load(&dir)).await
}

/// Takes the device from the pod.
pub(crate) async fn unmap_pod_device(env: &Env, input: &UnmountInput) -> Result<(), StepError> {
    let Some(notes) = notes(env, &input.spec.name).await? else { return Ok(()) };
    let driver =
        env.csi.open(notes.driver(), "blockMapper.UnmapPodDevice failed to get CSI client")?;
    input.step.enter(format!("NodeUnpublishVolume of driver {}", notes.driver()));
    let path = publish_dir(env, &input.spec.name).join(&input.uid);
    driver.unpublish(notes.handle(), &path).await.map_err(|e| {
        StepError::uncertain(format!("{PREFIX}blockMapper.unpublishVolumeForBlock failed: {e}"))
    })
}

/// Unstages the device and removes every folder of it.
pub(crate) async fn tear_down_device(
    env: &Env,
    spec: &VolumeSpec,
    step: &Step,
) -> Result<(), StepError> {
    let name = &spec.name;
    let Some(notes) = notes(env, name).await? else {
        // `vol_data.json` was never written, or everything it describes is undone.
        let (paths, name) = (env.paths.clone(), name.clone());
        let key = staging(env, &name);
        let remove = move || remove_unused(&paths, &name);
        return in_pool(env, &key, "remove block directories", remove).await;
    };
    let driver =
        env.csi.open(notes.driver(), "blockMapper.TearDownDevice failed to get CSI client")?;
    let path = staging(env, name);
    let looked = path.clone();
    let staged = in_pool(env, &path, "stat", move || Ok(sys::fs::try_exists(&looked)?)).await?;
    if staged {
        step.enter(format!("NodeUnstageVolume of driver {}", notes.driver()));
        let stages = driver.can(Capability::StageUnstageVolume).await.map_err(|e| {
            StepError::uncertain(format!(
                "{PREFIX}blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: {e}"
            ))
        })?;
        if stages {
            driver.unstage(notes.handle(), &path).await.map_err(|e| {
                StepError::uncertain(format!(
                    "{PREFIX}blockMapper.unstageVolumeForBlock failed: {e}"
                ))
            })?;
        }
    }
    remove_folders(env, name).await
}

/// Removes every folder of a device that nobody uses (upstream: `cleanupOrphanDeviceFiles`).
async fn remove_folders(env: &Env, name: &str) -> Result<(), StepError> {
    let (publish, staging) = (publish_dir(env, name), staging(env, name));
    let (all, proc) = (top(env).join(name), env.paths.proc().to_owned());
    let key = staging.clone();
    in_pool(env, &key, "remove block directories", move || {
        remove_tree(&proc, &publish, Contents::DirsOnly)?;
        remove_tree(&proc, &staging, Contents::Everything)?;
        // `vol_data.json` is removed last: until then the volume can be reconstructed.
        remove_tree(&proc, &all, Contents::Everything)?;
        Ok(())
    })
    .await
}

/// Removes the folders of a device without `vol_data.json`: it was never staged, or all else is undone.
pub(crate) fn remove_unused(paths: &Paths, name: &str) -> Result<(), StepError> {
    let devices = all_devices(paths);
    let own = devices.join(name);
    remove_unfinished(&own.join("data"))?;
    for folder in [devices.join("publish").join(name), devices.join("staging").join(name), own] {
        remove_tree(paths.proc(), &folder, Contents::DirsOnly)?;
    }
    Ok(())
}
