//! Whoever holds something that containers can have for themselves.

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
    /// Somebody has not answered yet: the pod is to be judged again when nothing is busy.
    #[error("waits for {0}")]
    Waits(String),
    /// Anything else: `UnexpectedAdmissionError` with this cause.
    #[error("{0}")]
    Failed(String),
}

/// One kind of exclusive resource (upstream: `HintProvider` and the container life cycle hooks). What a provider
/// leaves out does nothing. Within one admission calls come one after another; extras and life cycle calls come from
/// pod workers at any time.
#[async_trait]
pub trait Provider: Send + Sync + std::fmt::Debug {
    /// Releases what pods hold that are not among these; told before each admission once every source has spoken.
    async fn forget_all_but(&self, _active: &BTreeSet<PodUid>) {}

    /// What a new pod had better wait for before anything is allocated, in words.
    fn late(&self, _pod: &Pod) -> Option<String> {
        None
    }

    /// Waits until nothing of the pod is late, or no longer worth waiting for.
    async fn settled(&self, _pod: &Pod) {}

    /// Who must answer somebody before the pod can be judged, in words.
    fn busy(&self, _pod: &Pod) -> Option<String> {
        None
    }

    /// Nobody waits for the pod any more.
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

    /// Allocates for a pod whose own resources count (gate PodLevelResourceManagers).
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

    /// Numbers that the node must be counted to have for this pod, by resource.
    fn owed(&self, _uid: &str) -> BTreeMap<String, i64> {
        BTreeMap::new()
    }

    /// Health of what the pod's containers have, by container name.
    fn health(&self, _pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        BTreeMap::new()
    }

    /// Releases what a finished pod held.
    async fn release(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }
}
