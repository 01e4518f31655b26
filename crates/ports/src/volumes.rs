//! Volumes, as pod workers use them. The volume subsystem follows the [`crate::PodsSnapshot`] itself; a
//! worker only waits.

use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Why volumes are not ready. Display is what `FailedMount` shows after its prefix.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// The wait ended with these volumes missing; names the blocking step.
    #[error("{0}")]
    NotReady(String),
    /// The wait timed out: no event is emitted for it.
    #[error("{0}")]
    TimedOut(String),
    /// The node cannot attach more volumes: the pod must be rejected.
    #[error("{0}")]
    AttachLimit(String),
    /// A path or content could not be prepared for a container.
    #[error("{0}")]
    Prepare(String),
}

/// One volume of a pod, ready for containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    /// Where it is on the host; a device for block volumes.
    pub host_path: PathBuf,
    /// The volume itself is read-only, whatever the container's mount says.
    pub read_only: bool,
    /// The runtime should relabel it for SELinux.
    pub selinux_relabel: bool,
    /// It is a raw block device.
    pub block: bool,
    /// hostPath volumes need no `subPath` bind for containers without one, nor relabelling.
    pub host_owned: bool,
    /// Supplemental group of the volume (`pv.beta.kubernetes.io/gid`).
    pub supplemental_gid: Option<i64>,
}

/// All volumes of one pod by volume name.
pub type PodMounts = BTreeMap<String, MountedVolume>;

/// A `subPath` of a volume wanted in a container.
#[derive(Debug, Clone)]
pub struct SubPathRequest {
    /// The pod.
    pub pod_uid: PodUid,
    /// Volume name in the pod.
    pub volume_name: String,
    /// Where the volume is.
    pub volume_path: PathBuf,
    /// The expanded `subPath`.
    pub sub_path: String,
    /// The container's name.
    pub container_name: String,
    /// Index of the mount in the container's list.
    pub mount_index: usize,
}

/// What node status reports about volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// `status.volumesInUse`, sorted; `None` until the volumes found on disk were checked against
    /// the node object (the API's value is kept until then).
    pub in_use: Option<Vec<String>>,
    /// Why storage is not ready yet, e.g. `CSINode is not yet initialized`.
    pub not_ready: Option<String>,
    /// Mounts and plugins that do not answer, each with the step and since when.
    pub quarantined: Vec<String>,
}

/// Usage of one volume of a pod; unknown values are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume's name in the pod spec.
    pub name: String,
    /// Namespace and name of its claim.
    pub claim: Option<(String, String)>,
    /// It is on the node's disk and counts as ephemeral storage of the pod.
    pub ephemeral: bool,
    /// Size in bytes.
    pub capacity: Option<u64>,
    /// Bytes still available.
    pub available: Option<u64>,
    /// Bytes in use.
    pub used: Option<u64>,
    /// Number of inodes.
    pub inodes: Option<u64>,
    /// Free inodes.
    pub inodes_free: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
    /// The health that the driver reports: whether it is abnormal, and its message.
    pub health: Option<(bool, String)>,
}

/// Usage of volumes, for statistics and eviction.
#[async_trait]
pub trait VolumeUsages: Send + Sync + std::fmt::Debug {
    /// The mounted volumes of a pod with their usage, at most a minute old. A volume that does not
    /// answer is left out.
    async fn usages(&self, uid: &PodUid) -> Arc<Vec<VolumeUsage>>;
}

/// Interface of the volume subsystem.
#[async_trait]
pub trait Volumes: Send + Sync + std::fmt::Debug {
    /// Waits until every volume of the pod is mounted; an error after upstream's timeout. Dropping the
    /// future is safe.
    async fn wait_ready(&self, pod: &Arc<Pod>) -> Result<PodMounts, VolumeError>;
    /// Waits until no volume of the pod is mounted.
    async fn wait_released(&self, pod: &Arc<Pod>) -> Result<(), VolumeError>;
    /// Whether any volume of the pod may still be mounted.
    fn in_use(&self, uid: &PodUid) -> bool;
    /// Makes a `subPath` available safely; returns the path to mount.
    async fn bind_sub_path(&self, request: &SubPathRequest) -> Result<PathBuf, VolumeError>;
    /// Removes the `subPath` binds of a pod's container, or of the whole pod.
    async fn clean_sub_paths(
        &self,
        uid: &PodUid,
        container: Option<&str>,
    ) -> Result<(), VolumeError>;
}
