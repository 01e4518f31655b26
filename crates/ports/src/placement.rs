//! Exclusive CPUs, NUMA memory, devices and dynamic resources, as admission and container
//! creation use them.

use api::core::v1::{Container, Pod, ResourceStatus};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod that cannot be placed: reason and message of its rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementRejection {
    /// E.g. `TopologyAffinityError`.
    pub reason: String,
    /// Upstream's message.
    pub message: String,
}

/// Why a pod was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPlaced {
    /// It is rejected.
    Refused(PlacementRejection),
    /// A plugin does not answer (the text says which): the pod is admitted again once [`Placement::settled`] has
    /// returned, and other pods are admitted first.
    Waits(String),
}

impl From<PlacementRejection> for NotPlaced {
    fn from(refusal: PlacementRejection) -> Self {
        Self::Refused(refusal)
    }
}

/// The pods that hold resources here, besides the one being admitted.
#[derive(Debug, Clone, Copy)]
pub struct ActivePods<'a> {
    /// The other pods.
    pub others: &'a [Arc<Pod>],
    /// All sources are ready: a pod that is not among them is gone.
    pub complete: bool,
}

/// Why a container's [`ContainerExtras`] could not be made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct PlacementError(pub String);

/// A device node for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMapping {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// cgroup permissions such as `rwm`.
    pub permissions: String,
}

/// A mount that a plugin wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraMount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Mounted read-only.
    pub read_only: bool,
}

/// What placement adds to a container's CRI configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerExtras {
    /// Environment, in order.
    pub envs: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<ExtraMount>,
    /// Device nodes.
    pub devices: Vec<DeviceMapping>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// CDI device names.
    pub cdi_devices: Vec<String>,
    /// Exclusive or shared CPUs (`0-1,3`), empty if unset.
    pub cpuset_cpus: String,
    /// NUMA nodes for memory, empty if unset.
    pub cpuset_mems: String,
}

/// Interface of CPU, memory, topology, device and DRA placement.
#[async_trait]
pub trait Placement: Send + Sync + std::fmt::Debug {
    /// Allocates for a pod at admission (upstream: topology manager `Admit`). A pod that waits keeps what it has been
    /// allocated so far.
    async fn admit(&self, pod: &Arc<Pod>, active: ActivePods<'_>) -> Result<(), NotPlaced>;
    /// A missing plugin that a new pod should wait for before admission, for display; `None` to admit it at once, as
    /// upstream.
    fn awaited_plugin(&self, _pod: &Pod) -> Option<String> {
        None
    }
    /// Waits until the pod's plugins are registered and idle, or the wait for them has timed out.
    async fn settled(&self, _pod: &Pod) {}
    /// The pod is no longer being admitted: abandons calls to plugins for it.
    fn abandon(&self, _uid: &str) {}
    /// Prepares dynamic resources before the sandbox is made.
    async fn prepare(&self, pod: &Arc<Pod>) -> Result<(), PlacementError>;
    /// What to add to this container's configuration.
    async fn container_extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
    ) -> Result<ContainerExtras, PlacementError>;
    /// The container was created under this id (upstream: `PreStartContainer`).
    async fn container_created(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        container_id: &str,
    ) -> Result<(), PlacementError>;
    /// The container with this id is gone.
    fn container_removed(&self, container_id: &str);
    /// Amounts of plugin resources that this pod holds: admission counts them as the node's even while their plugin is
    /// gone (upstream: `UpdatePluginResources`).
    fn owed(&self, _uid: &str) -> BTreeMap<String, i64> {
        BTreeMap::new()
    }
    /// Health of devices and claims by container name, for the pod's status.
    fn health(&self, _pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        BTreeMap::new()
    }
    /// Containers of a pod without CFS quota, because they have exclusive CPUs.
    fn unthrottled(&self, _pod: &Pod) -> BTreeSet<String> {
        BTreeSet::new()
    }
    /// Releases what a finished pod held.
    async fn release(&self, pod: &Arc<Pod>) -> Result<(), PlacementError>;
}
