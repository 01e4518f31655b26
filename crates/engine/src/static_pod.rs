//! From a manifest to a pod of this node, and its mirror in the API.
//!
//! Owns: the API's defaults and validation for pods that do not come from an API server, their identity, and when a
//! mirror pod still matches.
//!
//! Promises: the same manifest from the same origin is the same pod (UID) across restarts, and the same as the Go
//! kubelet's. A manifest that an API server would reject is rejected.

mod defaults;
mod identity;
mod references;
#[cfg(test)]
mod tests;
mod validate;

pub use defaults::set_defaults;
pub use references::api_reference;
pub use validate::{Fault, Rules, faults};

use api::core::v1::{Pod, Toleration};
use api::machinery::apis::meta::v1::OwnerReference;
use api::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, PodExt};
use identity::uid_of;

/// Where the manifest was read; part of the pod's identity.
#[derive(Debug, Clone, Copy)]
pub enum StaticOrigin<'a> {
    /// A file.
    File(&'a str),
    /// A URL.
    Url(&'a str),
    /// A URL with a whole list of pods.
    UrlList(&'a str),
}

/// What preparation depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSettings {
    /// This node.
    pub node_name: String,
    /// Refuse references to API objects (gate PreventStaticPodAPIReferences).
    pub refuse_api_references: bool,
    /// Rules of validation that gates switch.
    pub rules: Rules,
}

/// Why a manifest is not usable as a static pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StaticPodError {
    /// It has no name.
    #[error("invalid pod: name is needed for the pod")]
    NoName,
    /// It refers to an object of the API.
    #[error("static pods may not reference {0}")]
    ApiReference(String),
    /// It uses something that no static pod may use, whatever the gates.
    #[error("static pods may not use {0}")]
    NeverAllowed(&'static str),
    /// An API server would refuse it.
    #[error("invalid pod: [{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))]
    Invalid(Vec<Fault>),
}

/// Fills in defaults, identity and node name, and validates the result.
pub fn prepare(
    mut pod: Pod,
    origin: &StaticOrigin<'_>,
    settings: &StaticSettings,
) -> Result<Pod, StaticPodError> {
    let given = pod.metadata.name.clone().unwrap_or_default();
    if given.is_empty() {
        return Err(StaticPodError::NoName);
    }
    set_defaults(&mut pod);
    let uid = match pod.metadata.uid.clone().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid,
        None => uid_of(&pod, origin, &settings.node_name),
    };
    let meta = &mut pod.metadata;
    meta.name = Some(format!("{given}-{}", settings.node_name.to_lowercase()));
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".to_owned());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(settings.node_name.clone());
    if matches!(origin, StaticOrigin::File(_)) {
        tolerate_everything(spec.tolerations.get_or_insert_default());
    }
    // The rest of a status in the manifest stays, e.g. from a pod that was dumped to a file.
    pod.status.get_or_insert_default().phase = Some("Pending".to_owned());
    set_uid(&mut pod, &uid);
    let found = faults(&pod, &settings.rules);
    if !found.is_empty() {
        return Err(StaticPodError::Invalid(found));
    }
    match refusal(&pod, origin, settings) {
        Some(refusal) => Err(refusal),
        None => Ok(pod),
    }
}

/// The reference of the pod that a static pod may not have.
fn refusal(
    pod: &Pod,
    origin: &StaticOrigin<'_>,
    settings: &StaticSettings,
) -> Option<StaticPodError> {
    if settings.refuse_api_references {
        return api_reference(pod).map(|what| StaticPodError::ApiReference(what.to_owned()));
    }
    // Without the gate, lists are not checked, and single pods only for this.
    if matches!(origin, StaticOrigin::UrlList(_)) {
        return None;
    }
    references::never_allowed(pod).map(StaticPodError::NeverAllowed)
}

/// Gives the pod a UID; its hash annotation is the same text.
pub fn set_uid(pod: &mut Pod, uid: &str) {
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata
        .annotations
        .get_or_insert_default()
        .insert(HASH_ANNOTATION.to_owned(), uid.to_owned());
}

fn tolerate_everything(tolerations: &mut Vec<Toleration>) {
    let all = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    if !tolerations.contains(&all) {
        tolerations.push(all);
    }
}

/// The mirror pod of a static pod, to be created in the API; `None` without a hash.
pub fn mirror_of(pod: &Pod, node_name: &str, node_uid: &str) -> Option<Pod> {
    let hash = hash(pod)?.to_owned();
    let mut mirror = pod.clone();
    let meta = &mut mirror.metadata;
    meta.annotations.get_or_insert_default().insert(MIRROR_ANNOTATION.to_owned(), hash);
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node_name.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    Some(mirror)
}

/// What to do about a static pod's mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorPlan {
    /// Delete the present one first, with this UID as precondition.
    pub delete: Option<String>,
    /// Create a new one (after the deletion succeeded, if there is one).
    pub create: bool,
}

/// Compares a static pod with its mirror, if the API has one.
pub fn mirror_plan(pod: &Pod, mirror: Option<&Pod>) -> MirrorPlan {
    let Some(mirror) = mirror else { return MirrorPlan { delete: None, create: pod.is_static() } };
    let fits = mirror.metadata.deletion_timestamp.is_none() && is_mirror_of(mirror, pod);
    if fits {
        return MirrorPlan { delete: None, create: false };
    }
    MirrorPlan { delete: mirror.metadata.uid.clone(), create: pod.is_static() }
}

/// Whether a mirror shows this version of a static pod.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.name == pod.metadata.name
        && mirror.metadata.namespace == pod.metadata.namespace
        && mirror.annotation(MIRROR_ANNOTATION) == hash(pod)
}

fn hash(pod: &Pod) -> Option<&str> {
    pod.annotation(HASH_ANNOTATION)
}
