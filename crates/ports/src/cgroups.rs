//! The pod level of the cgroup tree, as workers use it.

use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;

/// An error about a pod's cgroup; the text is shown in events.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CgroupError {
    /// The reason, in words an operator can act on.
    pub message: String,
}

/// The present limits in the files of a pod's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupValues {
    /// CPU period in microseconds.
    pub cpu_period: i64,
    /// CPU quota in microseconds; -1 is none.
    pub cpu_quota: i64,
    /// CPU shares (those of the weight on version 2).
    pub cpu_shares: i64,
    /// Memory limit in bytes: without one a very large number on version 1, -1 on version 2.
    pub memory: i64,
}

/// Pod cgroups: made before the first container, gone before the pod's API object.
#[async_trait]
pub trait PodCgroups: Send + Sync + std::fmt::Debug {
    /// Whether the pod's cgroup exists in every controller it needs.
    async fn exists(&self, pod: &Pod) -> bool;
    /// Creates or updates the cgroup with the limits of the (allocated) pod.
    async fn ensure(&self, pod: &Pod) -> Result<(), CgroupError>;
    /// Applies changed CPU or memory limits of a running pod.
    async fn resize(&self, pod: &Pod) -> Result<(), CgroupError>;
    /// The limits in force, if they can be read.
    async fn values(&self, pod: &Pod) -> Option<CgroupValues>;
    /// Current memory use of the pod in bytes, if it can be read.
    async fn memory_usage(&self, pod: &Pod) -> Option<u64>;
    /// The number of OOM kills in the pod's cgroup, where the kernel counts them (cgroup version 2).
    async fn oom_kills(&self, _uid: &PodUid) -> u64 {
        0
    }
    /// Whether the kernel kills all of a container when it runs out of memory, rather than one process; `None` if
    /// that cannot be read.
    async fn oom_group(&self, _pod: &Pod, _container_id: &str) -> Option<bool> {
        None
    }
    /// Gives the processes in the cgroup of a pod that is gone the smallest CPU share, until it can be removed.
    async fn starve(&self, _uid: &PodUid) -> Result<(), CgroupError> {
        Ok(())
    }
    /// Kills the processes left in the pod's cgroup and removes it. Succeeds if it does not exist.
    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError>;
    /// UIDs of all pods that have a cgroup, whoever made it.
    async fn all(&self) -> Vec<PodUid> {
        Vec::new()
    }
    /// The value of `LinuxPodSandboxConfig.cgroup_parent` in the form of the active driver.
    fn parent(&self, pod: &Pod) -> String;
}
