//! Resolves a pod's volumes to specs: looks up claims and collects errors in upstream's words.

use crate::env::Env;
use crate::plugins::{Treatment, flex, treatment};
use api::core::v1::{Pod, Volume};
use api::ids::VolumeName;
use api::pod::PodExt;
use engine::volumes::{
    DesiredVolume, Plugin, VolumeLabel, VolumeSpec, VolumeUse, check_claim, check_mode,
    check_volume, ephemeral_claim_name, migrated_inline, migrated_persistent, used_volumes,
    volume_label, widest_mode,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// New errors are dropped once a pod has this many.
const MAX_ERRORS: usize = 10;

/// The resolved volumes of a pod, and errors for the others.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    pub(crate) volumes: BTreeMap<VolumeName, DesiredVolume>,
    pub(crate) errors: BTreeSet<String>,
}

/// Resolves every volume that some container uses.
pub(crate) async fn resolve(env: &Env, pod: &Pod) -> Resolved {
    let mut resolved = Resolved::default();
    let uid = pod.uid();
    let used = used_volumes(pod);
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some(usage) = used.get(&volume.name) else { continue };
        let found = match resolve_volume(env, pod, volume, usage).await {
            Ok((spec, treatment, size)) => label_of(env, pod, volume, &spec, treatment)
                .map(|label| (spec, treatment, size, label)),
            Err(e) => Err(e),
        };
        match found {
            Ok((spec, treatment, size, label)) => {
                let entry = resolved.volumes.entry(spec.unique_name(&uid)).or_insert_with(|| {
                    DesiredVolume {
                        spec: Arc::new(spec),
                        names: BTreeSet::new(),
                        attachable: treatment.attachable,
                        refresh: treatment.refresh,
                        size,
                        label,
                    }
                });
                entry.names.insert(volume.name.clone());
            }
            Err(e) if resolved.errors.len() <= MAX_ERRORS => {
                resolved.errors.insert(e);
            }
            Err(_) => {}
        }
    }
    resolved
}

/// The SELinux label of a pod's volume. Containers with different labels are an error only for volumes that
/// are mounted with a label.
fn label_of(
    env: &Env,
    pod: &Pod,
    volume: &Volume,
    spec: &VolumeSpec,
    treatment: Treatment,
) -> Result<VolumeLabel, String> {
    let Some(labelling) = &env.config.labelling else { return Ok(VolumeLabel::default()) };
    match volume_label(labelling, pod, &volume.name, spec, treatment.labels) {
        Ok(label) => Ok(label),
        Err(e) if labelling.covers(spec) => {
            env.metrics.pod_labels_differ.with(&[widest_mode(spec)]).add(1.0);
            Err(e.to_string())
        }
        Err(_) => {
            env.metrics.pod_labels_would_differ.with(&[widest_mode(spec)]).add(1.0);
            Ok(VolumeLabel::default())
        }
    }
}

async fn resolve_volume(
    env: &Env,
    pod: &Pod,
    volume: &Volume,
    usage: &VolumeUse,
) -> Result<(VolumeSpec, Treatment, Option<i64>), String> {
    let claim = volume.persistent_volume_claim.as_ref();
    let ephemeral = volume.ephemeral.is_some();
    if claim.is_none() && !ephemeral {
        let namespace = pod.namespace_str();
        let spec = match migrated_inline(volume, namespace) {
            Some(moved) => VolumeSpec::persistent(Arc::new(moved), Arc::default(), false)
                .map(|spec| VolumeSpec { migrated: true, ..spec }),
            None => VolumeSpec::inline(volume),
        };
        let spec = spec.ok_or_else(|| no_plugin(&volume.name))?;
        let spec = with_driver(env, spec).await?;
        check_mode(&volume.name, false, usage).map_err(|e| e.to_string())?;
        let treatment = treatment(env, &spec).await.map_err(|e| e.to_string())?;
        return Ok((spec, treatment, None));
    }
    let namespace = pod.namespace_str();
    let name = match claim {
        Some(claim) => claim.claim_name.clone(),
        None => ephemeral_claim_name(pod, &volume.name),
    };
    let read_only = claim.is_some_and(|c| c.read_only == Some(true));
    let context = |e: String| format!("error processing PVC {namespace}/{name}: {e}");
    let object = env
        .objects
        .claim(namespace, &name)
        .await
        .map_err(|e| context(format!("failed to fetch PVC from API server: {e}")))?;
    let owner = ephemeral.then_some(pod);
    let pv_name = match check_claim(&object, owner) {
        Ok(pv_name) => pv_name.to_owned(),
        Err(e @ engine::volumes::ClaimError::NotOwner { .. }) => return Err(e.to_string()),
        Err(e) => return Err(context(e.to_string())),
    };
    let persistent = env
        .objects
        .volume(&pv_name)
        .await
        .map_err(|e| context(format!("failed to fetch PV {pv_name} from API server: {e}")))?;
    check_volume(&persistent, &object).map_err(|e| context(e.to_string()))?;
    let moved = migrated_persistent(&persistent);
    let migrated = moved.is_some();
    let persistent = moved.map_or(persistent, Arc::new);
    let size = capacity(persistent.spec.as_ref().and_then(|s| s.capacity.as_ref()));
    let spec =
        VolumeSpec::persistent(persistent, object, read_only).ok_or_else(|| no_plugin(&pv_name))?;
    let spec = with_driver(env, VolumeSpec { migrated, ..spec }).await?;
    check_mode(&volume.name, spec.is_block(), usage).map_err(|e| e.to_string())?;
    let treatment = treatment(env, &spec).await.map_err(|e| e.to_string())?;
    Ok((spec, treatment, size.filter(|_| !read_only)))
}

/// Requires a flexvolume driver's executable to exist and to have answered `init`, which also says whether the
/// driver attaches.
async fn with_driver(env: &Env, spec: VolumeSpec) -> Result<VolumeSpec, String> {
    let Plugin::Flex(driver) = &spec.plugin else { return Ok(spec) };
    let known = flex::driver(env, driver).await.ok_or_else(|| no_plugin(&spec.name))?;
    if !known.attaches {
        return Ok(spec);
    }
    // Only an error of `getvolumename` matters: as upstream, the unique name is made of the spec's name.
    let name = &spec.name;
    flex::ask_name(env, driver, &spec).await.map_err(|e| {
        format!(
            "failed to GetUniqueVolumeNameFromSpec for volumeSpec {name:?} using volume plugin {driver:?} err=failed to GetVolumeName from volumePlugin for volumeSpec {name:?} err={e}"
        )
    })?;
    let plugin = Plugin::FlexAttached(driver.clone());
    Ok(VolumeSpec { plugin, ..spec })
}

fn no_plugin(spec: &str) -> String {
    format!("failed to get Plugin from volumeSpec for volume {spec:?} err=no volume plugin matched")
}

/// `storage` of a resource list in bytes.
pub(crate) fn capacity(
    list: Option<&BTreeMap<String, api::machinery::api::resource::Quantity>>,
) -> Option<i64> {
    let quantity: units::Quantity = list?.get("storage")?.0.parse().ok()?;
    Some(quantity.value())
}
