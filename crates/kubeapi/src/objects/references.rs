//! Which secrets and config maps a pod names (upstream: `podutil.VisitPod…Names`).

use api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume};
use std::collections::BTreeSet;

/// Names of secrets in the pod's namespace.
pub(crate) fn secrets(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let mut names = BTreeSet::new();
    names.extend(spec.image_pull_secrets.iter().flatten().map(|r| r.name.clone()));
    visit_env(spec, |env, from| {
        let by_key = env
            .iter()
            .filter_map(|e| e.value_from.as_ref()?.secret_key_ref.as_ref().map(|r| r.name.clone()));
        names.extend(by_key);
        names.extend(from.iter().filter_map(|f| Some(f.secret_ref.as_ref()?.name.clone())));
    });
    for volume in spec.volumes.iter().flatten() {
        names.extend(volume_secrets(volume));
    }
    names.remove("");
    names
}

/// Names of config maps in the pod's namespace.
pub(crate) fn config_maps(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let mut names = BTreeSet::new();
    visit_env(spec, |env, from| {
        let by_key = env.iter().filter_map(|e| {
            e.value_from.as_ref()?.config_map_key_ref.as_ref().map(|r| r.name.clone())
        });
        names.extend(by_key);
        names.extend(from.iter().filter_map(|f| Some(f.config_map_ref.as_ref()?.name.clone())));
    });
    for volume in spec.volumes.iter().flatten() {
        names.extend(volume.config_map.as_ref().map(|c| c.name.clone()));
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        names.extend(sources.filter_map(|s| Some(s.config_map.as_ref()?.name.clone())));
    }
    names.remove("");
    names
}

fn visit_env(spec: &PodSpec, mut visit: impl FnMut(&[EnvVar], &[EnvFromSource])) {
    let slices = |env: &Option<Vec<EnvVar>>, from: &Option<Vec<EnvFromSource>>| {
        (env.clone().unwrap_or_default(), from.clone().unwrap_or_default())
    };
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let (env, from) = slices(&container.env, &container.env_from);
        visit(&env, &from);
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        let (env, from) = slices(&container.env, &container.env_from);
        visit(&env, &from);
    }
}

fn volume_secrets(volume: &Volume) -> Vec<String> {
    let local = |r: Option<&api::core::v1::LocalObjectReference>| r.map(|r| r.name.clone());
    let mut names: Vec<Option<String>> = vec![
        volume.secret.as_ref().and_then(|s| s.secret_name.clone()),
        volume.azure_file.as_ref().map(|v| v.secret_name.clone()),
        local(volume.cephfs.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.cinder.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.flex_volume.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.rbd.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.scale_io.as_ref().map(|v| &v.secret_ref)),
        local(volume.iscsi.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.storageos.as_ref().and_then(|v| v.secret_ref.as_ref())),
        local(volume.csi.as_ref().and_then(|v| v.node_publish_secret_ref.as_ref())),
    ];
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    names.extend(sources.map(|s| s.secret.as_ref().map(|r| r.name.clone())));
    names.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_references_in_every_place() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {
                "imagePullSecrets": [{"name": "pull"}],
                "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "from"}}]}],
                "containers": [{"name": "c", "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]}],
                "volumes": [
                    {"name": "s", "secret": {"secretName": "vol"}},
                    {"name": "c", "configMap": {"name": "cmvol"}},
                    {"name": "p", "projected": {"sources": [
                        {"secret": {"name": "proj"}}, {"configMap": {"name": "cmproj"}}]}},
                    {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}}]
            }
        }))
        .unwrap();
        let found = Vec::from_iter(secrets(&pod));
        assert_eq!(found, ["csi", "from", "key", "proj", "pull", "vol"]);
        assert_eq!(Vec::from_iter(config_maps(&pod)), ["cm", "cmproj", "cmvol"]);
    }
}
