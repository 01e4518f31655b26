//! Mirror pods: the API's image of a static pod.
//!
//! Promises: errors never fail a sync; a mirror that is not ours is replaced, one that fits is left
//! alone; standalone mode does nothing.

use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::static_pod::{mirror_of, mirror_plan};
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
        let plan = mirror_plan(pod, mirror.map(Arc::as_ref));
        if plan.delete.is_some()
            && let Some(mirror) = mirror
            && !self.delete(mirror).await
        {
            return;
        }
        if !plan.create {
            return;
        }
        let Some(mut new) = self.new_mirror(pod) else { return };
        new.metadata.uid = None;
        new.metadata.resource_version = None;
        match api.create(&new).await {
            Ok(_) => tracing::info!(pod = %pod.key(), "created mirror pod"),
            Err(PodApiError::Conflict(reason)) => {
                tracing::debug!(pod = %pod.key(), err = reason, "mirror pod exists");
            }
            Err(error) => {
                tracing::error!(pod = %pod.key(), err = %error, "cannot create mirror pod");
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
                tracing::error!(pod = %mirror.key(), err = %error, "cannot delete mirror pod");
                false
            }
        }
    }

    /// The mirror to create; `None` while the node is unknown or being deleted.
    fn new_mirror(&self, pod: &Pod) -> Option<Pod> {
        let view = self.node.borrow();
        let meta = &view.node.as_ref()?.metadata;
        if meta.deletion_timestamp.is_some() {
            return None;
        }
        let uid = meta.uid.as_deref().filter(|uid| !uid.is_empty())?;
        mirror_of(pod, meta.name.as_deref()?, uid)
    }
}
