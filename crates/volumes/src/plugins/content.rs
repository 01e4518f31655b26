//! configMap, secret, downwardAPI and projected volumes: fetch, then write all at once.

use super::MountInput;
use super::empty_dir::{self, EmptyDir, Medium};
use crate::atomic_writer;
use crate::env::{Env, Step, StepError};
use crate::ownership::{self, Owner};
use crate::pool::NORMAL;
use api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, KeyToPath, Pod, PodCertificateProjection,
    ProjectedVolumeSource, Secret, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use api::pod::PodExt;
use engine::volumes::{
    FileContent, Payload, Plugin, TrustQuery, common_user, config_map_files, downward_files,
    nested_mount_points, secret_files, trust_anchors,
};
use ports::{ObjectError, TokenRequest};
use std::path::Path;
use std::sync::Arc;
use sys::rooted_dir::Dir;

/// Upstream's error where trust bundles are unavailable, whatever the reason.
const NO_BUNDLES: &str = "ClusterTrustBundle projection is not supported in static kubelet mode";

pub(crate) async fn set_up(env: &Env, input: &MountInput) -> Result<(), StepError> {
    let volume = input
        .spec
        .as_inline()
        .ok_or_else(|| StepError::settled("the volume is not described in the pod"))?;
    // The disk is not touched before all content has been fetched.
    let payload = gather(env, &input.pod, volume, &input.step).await?;
    let plugin = input.spec.plugin.clone();
    let name = &input.spec.name;
    let medium = match plugin {
        Plugin::ConfigMap => Medium::Disk,
        _ => Medium::Memory(empty_dir::memory_options(env, &input.pod, None)),
    };
    let empty = EmptyDir {
        dir: env.paths.volume(&input.uid, &plugin, name),
        meta: env.paths.meta(&input.uid, &Plugin::EmptyDir, &format!("wrapped_{name}")),
        medium,
        owner: Owner::of(env, &input.pod),
        quota: env.quotas.wanted(&input.pod, &input.spec),
        proc: env.paths.proc().to_owned(),
    };
    let nested = nested_mount_points(&input.pod, name);
    let now = env.clock.now();
    let key = empty.dir.to_string_lossy().into_owned();
    let keep = input.is_remount() || input.reconstructed;
    let quotas = env.quotas.clone();
    input.step.enter("writing files");
    env.pool
        .run(&key, "write files", NORMAL, move || {
            empty.make()?;
            let result = write(&empty, &plugin, payload, &nested, now);
            if result.is_err() && !keep {
                empty_dir::remove(&quotas, &empty.proc, &empty.dir, &empty.meta)?;
            }
            result
        })
        .await?
}

fn write(
    empty: &EmptyDir,
    plugin: &Plugin,
    payload: Payload,
    nested: &[String],
    now: jiff::Timestamp,
) -> Result<(), StepError> {
    let volume = Dir::open(&empty.dir)?;
    for path in nested {
        volume.make_beneath(Path::new(path), 0o755).map_err(|e| {
            StepError::settled(format!(
                "unable to create nested volume mountpoints: {}",
                crate::env::chain(&e)
            ))
        })?;
    }
    let owner = || empty.owner.take(&empty.dir, true, plugin.name());
    atomic_writer::write(&empty.dir, payload, now, owner)?;
    Ok(())
}

async fn gather(
    env: &Env,
    pod: &Arc<Pod>,
    volume: &Volume,
    step: &Step,
) -> Result<Payload, StepError> {
    if let Some(source) = &volume.config_map {
        let optional = source.optional == Some(true);
        let map = config_map(env, pod, &source.name, optional, step).await?;
        return config_map_files(
            map.as_deref(),
            source.items.as_deref(),
            source.default_mode,
            optional,
        )
        .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &volume.secret {
        let optional = source.optional == Some(true);
        let name = source.secret_name.as_deref().unwrap_or_default();
        let secret = secret(env, pod, name, optional, step).await?;
        return secret_files(
            secret.as_deref(),
            source.items.as_deref(),
            source.default_mode,
            optional,
        )
        .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &volume.downward_api {
        return downward_files(
            pod,
            source.items.as_deref(),
            source.default_mode,
            &env.allocatable(),
        )
        .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &volume.projected {
        return projected(env, pod, &volume.name, source, step).await;
    }
    Err(StepError::settled("the volume has no content source"))
}

async fn config_map(
    env: &Env,
    pod: &Pod,
    name: &str,
    optional: bool,
    step: &Step,
) -> Result<Option<Arc<ConfigMap>>, StepError> {
    let namespace = pod.namespace_str();
    step.enter(format!("reading configmap {namespace}/{name}"));
    or_absent(env.objects.config_map(namespace, name).await, optional)
}

async fn secret(
    env: &Env,
    pod: &Pod,
    name: &str,
    optional: bool,
    step: &Step,
) -> Result<Option<Arc<Secret>>, StepError> {
    let namespace = pod.namespace_str();
    step.enter(format!("reading secret {namespace}/{name}"));
    or_absent(env.objects.secret(namespace, name).await, optional)
}

fn or_absent<T>(result: Result<T, ObjectError>, optional: bool) -> Result<Option<T>, StepError> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(ObjectError::NotFound(_)) if optional => Ok(None),
        Err(e) => Err(StepError::transient(e.to_string())),
    }
}

/// All sources in order; a later file of the same path wins; on any error nothing is written.
async fn projected(
    env: &Env,
    pod: &Arc<Pod>,
    name: &str,
    source: &ProjectedVolumeSource,
    step: &Step,
) -> Result<Payload, StepError> {
    let Some(mode) = source.default_mode else {
        return Err(StepError::settled("no defaultMode used, not even the default value for it"));
    };
    if env.config.standalone {
        return Err(StepError::settled(format!(
            "cannot setup projected volume {name} because kube client is not configured"
        )));
    }
    let mut payload = Payload::new();
    let mut errors: Vec<String> = Vec::new();
    for (index, item) in source.sources.iter().flatten().enumerate() {
        match project(env, pod, item, mode, (name, index), step).await {
            Ok(files) => payload.extend(files),
            Err(e) if errors.contains(&e.message) => {}
            Err(e) => errors.push(e.message),
        }
    }
    match errors.as_slice() {
        [] => Ok(payload),
        [one] => Err(StepError::transient(one.clone())),
        many => Err(StepError::transient(format!("[{}]", many.join(", ")))),
    }
}

async fn project(
    env: &Env,
    pod: &Arc<Pod>,
    item: &VolumeProjection,
    mode: i32,
    place: (&str, usize),
    step: &Step,
) -> Result<Payload, StepError> {
    let items = |list: &Option<Vec<KeyToPath>>| list.clone().unwrap_or_default();
    if let Some(source) = &item.secret {
        let optional = source.optional == Some(true);
        let object = secret(env, pod, &source.name, optional, step).await?;
        return secret_files(object.as_deref(), Some(&items(&source.items)), Some(mode), optional)
            .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &item.config_map {
        let optional = source.optional == Some(true);
        let object = config_map(env, pod, &source.name, optional, step).await?;
        return config_map_files(
            object.as_deref(),
            Some(&items(&source.items)),
            Some(mode),
            optional,
        )
        .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &item.downward_api {
        return downward_files(pod, source.items.as_deref(), Some(mode), &env.allocatable())
            .map_err(|e| StepError::transient(e.to_string()));
    }
    if let Some(source) = &item.service_account_token {
        return token(env, pod, source, mode, step).await;
    }
    if let Some(source) = &item.cluster_trust_bundle {
        return trust_bundle(env, pod, source, mode, step).await;
    }
    if let Some(source) = &item.pod_certificate {
        return certificate(env, pod, source, mode, place);
    }
    Ok(Payload::new())
}

/// A credential's file: readable by its owner only if the pod sets a common user or an `fsGroup`.
fn credential(pod: &Pod, bytes: Vec<u8>, default_mode: i32) -> FileContent {
    let user = common_user(pod).and_then(|u| u32::try_from(u).ok());
    let restricted = user.is_some() || ownership::fs_group(pod).is_some();
    let mode = if restricted { 0o600 } else { default_mode.unsigned_abs() & 0o7777 };
    FileContent { bytes, mode, uid: user }
}

/// The files of a certificate; `place` is the volume and the index of the source in it.
fn certificate(
    env: &Env,
    pod: &Pod,
    source: &PodCertificateProjection,
    mode: i32,
    place: (&str, usize),
) -> Result<Payload, StepError> {
    if !env.config.pod_certificates {
        return Err(StepError::settled("unimplemented"));
    }
    let (key, chain) = env.certificates.bundle(pod, place.0, place.1)?;
    let files = [
        (&source.credential_bundle_path, format!("{key}{chain}")),
        (&source.key_path, key),
        (&source.certificate_chain_path, chain),
    ];
    let mut payload = Payload::new();
    for (path, text) in files {
        if let Some(path) = path.as_ref().filter(|path| !path.is_empty()) {
            payload.insert(path.clone(), credential(pod, text.into_bytes(), mode));
        }
    }
    Ok(payload)
}

async fn trust_bundle(
    env: &Env,
    pod: &Pod,
    source: &ClusterTrustBundleProjection,
    mode: i32,
    step: &Step,
) -> Result<Payload, StepError> {
    let Some(storage) = env.storage.as_ref().filter(|_| env.config.cluster_trust_bundles) else {
        return Err(StepError::settled(NO_BUNDLES));
    };
    let query = match (&source.name, &source.signer_name) {
        (Some(name), _) => TrustQuery::Name(name),
        (None, Some(name)) => TrustQuery::Signer { name, labels: source.label_selector.as_ref() },
        (None, None) => {
            return Err(StepError::settled(
                "ClusterTrustBundle projection requires either name or signerName to be set",
            ));
        }
    };
    step.enter("reading cluster trust bundles");
    let all = storage.trust_bundles().await.map_err(|e| match e {
        ObjectError::NotFound(_) => StepError::transient(NO_BUNDLES),
        other => StepError::transient(other.to_string()),
    })?;
    let seed = pod.uid_str().bytes().map(u64::from).sum();
    let bytes = match trust_anchors(&all, &query, seed) {
        Some(text) => text.into_bytes(),
        None if source.optional == Some(true) => Vec::new(),
        None => return Err(StepError::transient(query.missing())),
    };
    Ok([(source.path.clone(), credential(pod, bytes, mode))].into())
}

async fn token(
    env: &Env,
    pod: &Arc<Pod>,
    source: &ServiceAccountTokenProjection,
    mode: i32,
    step: &Step,
) -> Result<Payload, StepError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let request = TokenRequest {
        namespace: text(&pod.metadata.namespace),
        service_account: pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.clone())
            .unwrap_or_default(),
        service_account_uid: String::new(),
        pod_name: text(&pod.metadata.name),
        pod_uid: text(&pod.metadata.uid),
        audiences: source.audience.clone().filter(|a| !a.is_empty()).into_iter().collect(),
        expiration_seconds: source.expiration_seconds.unwrap_or(3600),
    };
    step.enter(format!("requesting a token of service account {}", request.service_account));
    let issued =
        env.objects.token(&request).await.map_err(|e| StepError::transient(e.to_string()))?;
    let file = credential(pod, issued.token.into_bytes(), mode);
    Ok([(source.path.clone(), file)].into())
}
