//! No pod cgroups (`cgroupsPerQOS: false`): containers get the runtime's default parent.

use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use ports::{CgroupError, CgroupValues, PodCgroups};

/// No tree: every pod's cgroup counts as existing, and nothing is ever made or removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPodCgroups;

#[async_trait]
impl PodCgroups for NoPodCgroups {
    async fn exists(&self, _pod: &Pod) -> bool {
        true
    }

    async fn ensure(&self, _pod: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn resize(&self, _pod: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn values(&self, _pod: &Pod) -> Option<CgroupValues> {
        None
    }

    async fn memory_usage(&self, _pod: &Pod) -> Option<u64> {
        None
    }

    async fn remove(&self, _uid: &PodUid) -> Result<(), CgroupError> {
        Ok(())
    }

    async fn all(&self) -> Vec<PodUid> {
        Vec::new()
    }

    fn parent(&self, _pod: &Pod) -> String {
        String::new()
    }
}
