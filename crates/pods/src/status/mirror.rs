//! Mirror pods: the API's image of a static pod.
//!
//! Promises: errors never fail a sync; a mirror that is not ours is replaced, one that fits is left
//! alone; standalone mode does nothing.

use crate::sources::merge::{ANNOTATION_HASH, ANNOTATION_MIRROR, annotation};
use api::core::v1::Pod;
use api::ids::PodUid;
use api::machinery::apis::meta::v1::OwnerReference;
use ports::{NodeViews, PodApi, PodApiError};
use std::sync::Arc;

/// Writes mirror pods.
#[derive(Debug, Clone)]
pub(crate) struct Mirrors {
    api: Option<Arc<dyn PodApi>>,
    node: NodeViews,
}

impl Mirrors {
    pub(crate) fn new(api: Option<Arc<dyn PodApi>>, node: NodeViews) -> Self {
        Self { api, node }
    }

    /// Brings the API's mirror in line with the static pod.
    pub(crate) async fn reconcile(&self, pod: &Arc<Pod>, mirror: Option<&Arc<Pod>>) {
        let Some(api) = &self.api else { return };
        if let Some(mirror) = mirror {
            if mirror.metadata.deletion_timestamp.is_none() && is_mirror_of(mirror, pod) {
                return;
            }
            if !self.delete(mirror).await {
                return;
            }
        }
        let Some(owner) = self.owner() else { return };
        let mut new = mirror_pod(pod);
        new.metadata.owner_references = Some(vec![owner]);
        match api.create(&new).await {
            Ok(_) => tracing::info!(pod = %crate::shared::format_name(pod), "created mirror pod"),
            Err(PodApiError::Conflict(reason)) => {
                tracing::debug!(pod = %crate::shared::format_name(pod), err = reason, "mirror pod exists");
            }
            Err(error) => {
                tracing::error!(pod = %crate::shared::format_name(pod), err = %error, "cannot create mirror pod");
            }
        }
    }

    /// Deletes a mirror; says whether it is gone.
    pub(crate) async fn delete(&self, mirror: &Pod) -> bool {
        let Some(api) = &self.api else { return false };
        let meta = &mirror.metadata;
        let uid = PodUid::from(meta.uid.as_deref().unwrap_or_default());
        let name = meta.name.as_deref().unwrap_or_default();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        match api.delete_now(namespace, name, &uid).await {
            Ok(()) => true,
            Err(PodApiError::NotFound(_) | PodApiError::Conflict(_)) => false,
            Err(error) => {
                tracing::error!(pod = %crate::shared::format_name(mirror), err = %error, "cannot delete mirror pod");
                false
            }
        }
    }

    /// The node as owner; `None` while it is unknown or being deleted.
    fn owner(&self) -> Option<OwnerReference> {
        let view = self.node.borrow();
        let node = view.node.as_ref()?;
        let meta = &node.metadata;
        if meta.deletion_timestamp.is_some() {
            return None;
        }
        Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: meta.name.clone()?,
            uid: meta.uid.clone().filter(|uid| !uid.is_empty())?,
            controller: Some(true),
            ..OwnerReference::default()
        })
    }
}

fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.name == pod.metadata.name
        && mirror.metadata.namespace == pod.metadata.namespace
        && annotation(mirror, ANNOTATION_MIRROR) == annotation(pod, ANNOTATION_HASH)
}

fn mirror_pod(pod: &Pod) -> Pod {
    let mut mirror = pod.clone();
    let hash = annotation(pod, ANNOTATION_HASH).unwrap_or_default().to_owned();
    mirror.metadata.uid = None;
    mirror.metadata.resource_version = None;
    mirror.metadata.annotations.get_or_insert_default().insert(ANNOTATION_MIRROR.to_owned(), hash);
    mirror
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_carries_the_hash_of_its_static_pod() {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        pod.metadata.name = Some("etcd-n".into());
        pod.metadata.annotations = Some([(ANNOTATION_HASH.to_owned(), "u".to_owned())].into());
        let mirror = mirror_pod(&pod);
        assert!(is_mirror_of(&mirror, &pod));
        let mut changed = pod.clone();
        changed.metadata.annotations = Some([(ANNOTATION_HASH.to_owned(), "v".to_owned())].into());
        assert!(!is_mirror_of(&mirror, &changed));
    }
}
