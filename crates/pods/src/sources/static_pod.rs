//! From a manifest to a pod of this node.

use api::core::v1::{Container, Pod, PodSpec, PodStatus, Toleration};
use units::hash::fnv1a_128;

/// Where the manifest was read; part of the pod's identity.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StaticOrigin<'a> {
    /// A file.
    File(&'a str),
    /// A URL.
    Url(&'a str),
}

/// What preparation depends on.
#[derive(Debug, Clone)]
pub(crate) struct StaticSettings {
    /// This node.
    pub(crate) node_name: String,
    /// Refuse references to API objects.
    pub(crate) refuse_api_references: bool,
}

/// Why a manifest is not usable as a static pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StaticPodError {
    /// It refers to an object of the API.
    #[error("static pods may not reference {0}")]
    ApiReference(&'static str),
    /// It has no containers.
    #[error("spec.containers: Required value")]
    NoContainers,
}

/// Fills in defaults, identity and place.
pub(crate) fn prepare(
    mut pod: Pod,
    origin: &StaticOrigin<'_>,
    settings: &StaticSettings,
) -> Result<Pod, StaticPodError> {
    let spec = pod.spec.get_or_insert_default();
    if spec.containers.is_empty() {
        return Err(StaticPodError::NoContainers);
    }
    default_spec(spec);
    if settings.refuse_api_references
        && let Some(what) = api_reference(spec)
    {
        return Err(StaticPodError::ApiReference(what));
    }
    let meta = &mut pod.metadata;
    if meta.uid.as_deref().unwrap_or_default().is_empty() {
        let content = serde_json::to_string(&pod).unwrap_or_default();
        let place = match origin {
            StaticOrigin::File(path) => format!("host:{}file:{path}", settings.node_name),
            StaticOrigin::Url(url) => format!("url:{url}"),
        };
        let hash = fnv1a_128(format!("{content}{place}").as_bytes());
        pod.metadata.uid = Some(format!("{hash:032x}"));
    }
    let meta = &mut pod.metadata;
    let node = settings.node_name.to_lowercase();
    meta.name = Some(format!("{}-{node}", meta.name.as_deref().unwrap_or_default()));
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".to_owned());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(settings.node_name.clone());
    if matches!(origin, StaticOrigin::File(_)) {
        let tolerations = spec.tolerations.get_or_insert_default();
        let all = Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&all) {
            tolerations.push(all);
        }
    }
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    set_uid(&mut pod, &uid);
    Ok(pod)
}

/// Gives the pod a UID; its hash annotation is the same text.
pub(crate) fn set_uid(pod: &mut Pod, uid: &str) {
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata
        .annotations
        .get_or_insert_default()
        .insert(super::merge::ANNOTATION_HASH.to_owned(), uid.to_owned());
}

fn default_spec(spec: &mut PodSpec) {
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".to_owned());
    let host_network = spec.host_network.unwrap_or_default();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        default_container(container, host_network);
    }
}

fn default_container(container: &mut Container, host_network: bool) {
    let text = |field: &mut Option<String>, value: &str| {
        if field.as_deref().unwrap_or_default().is_empty() {
            *field = Some(value.to_owned());
        }
    };
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    let image = container.image.as_deref().unwrap_or_default();
    let tagless = image.rsplit('/').next().is_none_or(|last| !last.contains([':', '@']));
    let policy = if tagless || image.ends_with(":latest") { "Always" } else { "IfNotPresent" };
    text(&mut container.image_pull_policy, policy);
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        if host_network {
            port.host_port.get_or_insert(port.container_port);
        }
    }
    if let Some(resources) = &mut container.resources
        && let Some(limits) = resources.limits.clone()
    {
        let requests = resources.requests.get_or_insert_default();
        for (name, amount) in limits {
            requests.entry(name).or_insert(amount);
        }
    }
}

fn api_reference(spec: &PodSpec) -> Option<&'static str> {
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|s| !s.is_empty()) {
        return Some("secrets");
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        for variable in container.env.iter().flatten() {
            let from = variable.value_from.as_ref();
            if from.is_some_and(|f| f.config_map_key_ref.is_some()) {
                return Some("configmaps");
            }
            if from.is_some_and(|f| f.secret_key_ref.is_some()) {
                return Some("secrets");
            }
        }
        for source in container.env_from.iter().flatten() {
            if source.config_map_ref.is_some() {
                return Some("configmaps");
            }
            if source.secret_ref.is_some() {
                return Some("secrets");
            }
        }
    }
    spec.volumes.iter().flatten().find_map(|volume| {
        if volume.config_map.is_some() {
            Some("configmaps")
        } else if volume.secret.is_some() || volume.azure_file.is_some() {
            Some("secrets")
        } else if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
            Some("persistentvolumeclaims")
        } else if volume.csi.is_some() {
            Some("csidrivers")
        } else if volume.glusterfs.is_some() {
            Some("endpoints")
        } else {
            let sources = volume.projected.as_ref()?.sources.as_ref()?;
            sources.iter().find_map(|s| {
                if s.config_map.is_some() {
                    Some("configmaps")
                } else if s.secret.is_some() {
                    Some("secrets")
                } else if s.service_account_token.is_some() {
                    Some("serviceaccounts")
                } else if s.cluster_trust_bundle.is_some() {
                    Some("clustertrustbundles")
                } else {
                    s.pod_certificate.as_ref().map(|_| "podcertificaterequests")
                }
            })
        }
    })
}
