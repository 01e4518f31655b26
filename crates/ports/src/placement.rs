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

/// Why a pod has no place yet, or none at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPlaced {
    /// It is refused.
    Refused(PlacementRejection),
    /// Somebody does not answer, in words: it is judged again once [`Placement::settled`] has come back, and others go
    /// first meanwhile.
    Waits(String),
}

impl From<PlacementRejection> for NotPlaced {
    fn from(refusal: PlacementRejection) -> Self {
        Self::Refused(refusal)
    }
}

/// The pods that hold resources here, beside the one that is judged.
#[derive(Debug, Clone, Copy)]
pub struct ActivePods<'a> {
    /// The others.
    pub others: &'a [Arc<Pod>],
    /// Every source has spoken: whoever is not among them is gone.
    pub complete: bool,
}

/// Why a container's extras could not be made.
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

/// CPU, memory, topology, device and DRA placement behind one front.
#[async_trait]
pub trait Placement: Send + Sync + std::fmt::Debug {
    /// Allocates for a pod at admission (upstream: topology manager `Admit`). What a pod that waits has got is its own.
    async fn admit(&self, pod: &Arc<Pod>, active: ActivePods<'_>) -> Result<(), NotPlaced>;
    /// What a new pod had better wait for before it is judged, in words; `None` to judge it at once, as upstream.
    fn late(&self, _pod: &Pod) -> Option<String> {
        None
    }
    /// Waits until nothing of the pod is late, or no longer worth waiting for.
    async fn settled(&self, _pod: &Pod) {}
    /// Nobody waits for the pod any more: what is asked for it is given up.
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
    /// Numbers of exclusive resources that the node must be counted to have for this pod, because it holds some of
    /// them already (upstream: `UpdatePluginResources`).
    fn owed(&self, _uid: &str) -> BTreeMap<String, i64> {
        BTreeMap::new()
    }
    /// Health of devices and claims by container name, for the pod's status.
    fn health(&self, _pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        BTreeMap::new()
    }
    /// Containers of a pod that no CPU quota may slow down because they have CPUs of their own.
    fn unthrottled(&self, _pod: &Pod) -> BTreeSet<String> {
        BTreeSet::new()
    }
    /// Releases what a finished pod held.
    async fn release(&self, pod: &Arc<Pod>) -> Result<(), PlacementError>;
}
