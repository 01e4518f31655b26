//! From a manifest to a pod of this node, and its mirror in the API.
//!
//! Owns: the API's defaults and validation for pods that no API server saw, their identity, and when a mirror pod is
//! still theirs.
//!
//! Promises: the same manifest in the same place is the same pod (UID) across restarts, and the one that the Go
//! kubelet makes of it. A manifest that an API server would refuse is refused.

mod defaults;
mod identity;
mod references;
#[cfg(test)]
mod tests;
mod validate;

pub use defaults::set_defaults;
pub use references::api_reference;
pub use validate::{Fault, Rules, faults};

use crate::pod::{MIRROR_ANNOTATION, is_static};
use api::core::v1::{Pod, Toleration};
use api::machinery::apis::meta::v1::OwnerReference;
use identity::uid_of;

/// Annotation with a static pod's identity; a mirror repeats it.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

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
    /// It refers to what no static pod may have, whatever else is allowed.
    #[error("static pods may not use {0}")]
    NeverAllowed(&'static str),
    /// An API server would refuse it.
    #[error("invalid pod: [{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))]
    Invalid(Vec<Fault>),
}

/// Fills in defaults, identity and place, and validates the result.
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
    // What else the manifest says about its status stays, as of a pod that was dumped to a file.
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

/// What the pod refers to although a static pod may not.
fn refusal(
    pod: &Pod,
    origin: &StaticOrigin<'_>,
    settings: &StaticSettings,
) -> Option<StaticPodError> {
    if settings.refuse_api_references {
        return api_reference(pod).map(|what| StaticPodError::ApiReference(what.to_owned()));
    }
    // Without the rule lists are not looked at, and of single pods only this.
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
    let Some(mirror) = mirror else { return MirrorPlan { delete: None, create: is_static(pod) } };
    let fits = mirror.metadata.deletion_timestamp.is_none() && is_mirror_of(mirror, pod);
    if fits {
        return MirrorPlan { delete: None, create: false };
    }
    MirrorPlan { delete: mirror.metadata.uid.clone(), create: is_static(pod) }
}

/// Whether a mirror shows this version of a static pod.
pub fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let shown = mirror.metadata.annotations.as_ref().and_then(|a| a.get(MIRROR_ANNOTATION));
    mirror.metadata.name == pod.metadata.name
        && mirror.metadata.namespace == pod.metadata.namespace
        && shown.map(String::as_str) == hash(pod)
}

fn hash(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(HASH_ANNOTATION).map(String::as_str)
}
