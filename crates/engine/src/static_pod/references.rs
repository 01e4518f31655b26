//! References to API objects, which a static pod must not have (upstream: `HasAPIObjectReference`).

use api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume, VolumeProjection};

/// The API object that the pod refers to, in upstream's words.
pub fn api_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if has_secret(spec) {
        return Some("secrets");
    }
    if has_config_map(spec) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(of_volume)
}

/// What a static pod may not use even where API references are allowed, in upstream's words.
pub(super) fn never_allowed(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let projected = spec.volumes.iter().flatten().filter_map(|v| v.projected.as_ref());
    let mut sources = projected.flat_map(|p| p.sources.iter().flatten());
    if sources.any(|s| s.cluster_trust_bundle.is_some()) {
        return Some("ClusterTrustBundle projected volume sources");
    }
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    claims.then_some("ResourceClaims")
}

fn environment(spec: &PodSpec) -> (Vec<&EnvVar>, Vec<&EnvFromSource>) {
    let full = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut variables: Vec<&EnvVar> = Vec::new();
    let mut sources: Vec<&EnvFromSource> = Vec::new();
    for container in full {
        variables.extend(container.env.iter().flatten());
        sources.extend(container.env_from.iter().flatten());
    }
    (variables, sources)
}

fn has_secret(spec: &PodSpec) -> bool {
    let (variables, sources) = environment(spec);
    spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty())
        || variables
            .iter()
            .any(|v| v.value_from.as_ref().is_some_and(|f| f.secret_key_ref.is_some()))
        || sources.iter().any(|s| s.secret_ref.is_some())
        || spec.volumes.iter().flatten().any(volume_names_secret)
}

fn volume_names_secret(volume: &Volume) -> bool {
    let projected = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
    volume.secret.is_some()
        || volume.azure_file.is_some()
        || volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.cinder.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.scale_io.is_some()
        || volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.csi.as_ref().is_some_and(|v| v.node_publish_secret_ref.is_some())
        || projected.into_iter().flatten().any(|s| s.secret.is_some())
}

fn has_config_map(spec: &PodSpec) -> bool {
    let (variables, sources) = environment(spec);
    let projected = |volume: &Volume| {
        let sources = volume.projected.as_ref().and_then(|p| p.sources.clone());
        sources.into_iter().flatten().any(|s| s.config_map.is_some())
    };
    variables.iter().any(|v| v.value_from.as_ref().is_some_and(|f| f.config_map_key_ref.is_some()))
        || sources.iter().any(|s| s.config_map_ref.is_some())
        || spec.volumes.iter().flatten().any(|v| v.config_map.is_some() || projected(v))
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints (via glusterFS volumes)");
    }
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    volume.projected.as_ref()?.sources.as_ref()?.iter().find_map(of_projection)
}

fn of_projection(projection: &VolumeProjection) -> Option<&'static str> {
    if projection.service_account_token.is_some() {
        return Some("serviceaccounts (via projected volumes)");
    }
    if projection.cluster_trust_bundle.is_some() {
        return Some("clustertrustbundles");
    }
    projection.pod_certificate.as_ref().map(|_| "podcertificates")
}
