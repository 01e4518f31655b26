//! The runtime's calls about logs.

use async_trait::async_trait;
use cri::RuntimeClient;
use proto::cri_v1::ContainerState;
use std::path::PathBuf;

/// Calls about container logs. An error is the text the Go kubelet shows.
#[async_trait]
pub trait LogCalls: Send + Sync + std::fmt::Debug {
    /// Ids of running containers.
    async fn running(&self) -> Result<Vec<String>, String>;
    /// Where a container's log is; `None` when it has none.
    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, String>;
    /// Makes the runtime open the log's path anew.
    async fn reopen(&self, id: &str) -> Result<(), String>;
}

#[async_trait]
impl LogCalls for RuntimeClient {
    async fn running(&self) -> Result<Vec<String>, String> {
        let all = self.list_containers(None).await.map_err(|e| e.to_string())?;
        let running = |c: &proto::cri_v1::Container| c.state() == ContainerState::ContainerRunning;
        Ok(all.into_iter().filter(running).map(|c| c.id).collect())
    }

    async fn log_path(&self, id: &str) -> Result<Option<PathBuf>, String> {
        let answer = self.container_status(id, false).await.map_err(|e| e.to_string())?;
        let path = answer.status.map(|s| s.log_path).filter(|p| !p.is_empty());
        Ok(path.map(PathBuf::from))
    }

    async fn reopen(&self, id: &str) -> Result<(), String> {
        self.reopen_container_log(id).await.map_err(|e| e.to_string())
    }
}
