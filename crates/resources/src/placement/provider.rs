//! [`Provider`]: the interface of the managers of exclusive resources.

use api::core::v1::{Container, Pod, ResourceStatus};
use api::ids::PodUid;
use async_trait::async_trait;
use engine::topology::{Hint, ResourceHints};
use ports::{ContainerExtras, PlacementError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why an allocation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The pod is refused with this reason and message.
    #[error("{message}")]
    Refused {
        /// E.g. `SMTAlignmentError`.
        reason: &'static str,
        /// Upstream's message.
        message: String,
    },
    /// A plugin has not answered yet: the pod is to be admitted again when none is busy.
    #[error("waits for {0}")]
    Waits(String),
    /// Anything else: `UnexpectedAdmissionError` with this cause.
    #[error("{0}")]
    Failed(String),
}

/// One kind of exclusive resource (upstream: `HintProvider` and the container life cycle hooks). Default methods do
/// nothing. Within one admission calls are sequential; extras and life cycle calls come from pod workers at any time.
#[async_trait]
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// Releases what other pods than these hold; called before each admission once all sources are ready.
    async fn forget_all_but(&self, _active: &BTreeSet<PodUid>) {}

    /// A missing plugin that a new pod should wait for before anything is allocated, for display.
    fn awaited_plugin(&self, _pod: &Pod) -> Option<String> {
        None
    }

    /// Waits until the pod's plugins are registered and idle, or the wait for them has timed out.
    async fn settled(&self, _pod: &Pod) {}

    /// A running call to a plugin that must end before the pod can be admitted, for display.
    fn busy(&self, _pod: &Pod) -> Option<String> {
        None
    }

    /// The pod is no longer being admitted: abandons calls for it.
    fn abandon(&self, _uid: &str) {}

    /// Where this container's request could be satisfied.
    async fn hints(&self, _pod: &Arc<Pod>, _container: &Container) -> ResourceHints {
        ResourceHints::new()
    }

    /// Where the whole pod's request could be satisfied.
    async fn pod_hints(&self, _pod: &Arc<Pod>) -> ResourceHints {
        ResourceHints::new()
    }

    /// Allocates for a container; what it holds already is kept.
    async fn allocate(
        &self,
        _pod: &Arc<Pod>,
        _container: &Container,
        _affinity: Hint,
    ) -> Result<(), AllocateError> {
        Ok(())
    }

    /// Allocates for a pod with pod-level resources (gate PodLevelResourceManagers).
    async fn allocate_pod(&self, _pod: &Arc<Pod>, _affinity: Hint) -> Result<(), AllocateError> {
        Ok(())
    }

    /// Prepares before the sandbox is made.
    async fn prepare(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }

    /// Adds to a container's configuration.
    async fn extras(
        &self,
        _pod: &Arc<Pod>,
        _container: &Container,
        _extras: &mut ContainerExtras,
    ) -> Result<(), PlacementError> {
        Ok(())
    }

    /// The container was created under this id and is about to start.
    async fn created(
        &self,
        _pod: &Arc<Pod>,
        _container: &Container,
        _id: &str,
    ) -> Result<(), PlacementError> {
        Ok(())
    }

    /// The container with this id is gone.
    fn removed(&self, _id: &str) {}

    /// Amounts the pod holds, by resource: admission counts them as the node's even while their plugin is gone.
    fn owed(&self, _uid: &str) -> BTreeMap<String, i64> {
        BTreeMap::new()
    }

    /// Health of the devices of the pod's containers, by container name.
    fn health(&self, _pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        BTreeMap::new()
    }

    /// Releases what a finished pod held.
    async fn release(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }
}
