//! The runtime's calls as the pod tasks use them: "not found" is an answer where it is expected.

use cri::{CriError, ExecOutput, RuntimeClient};
use proto::cri_v1 as messages;
use std::collections::BTreeMap;
use std::time::Duration;

/// A failed call. Display is the full text with its gRPC frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct RuntimeFault {
    /// The full text.
    pub(crate) text: String,
    /// The runtime's own words.
    pub(crate) message: String,
    /// The runtime does not have the call.
    pub(crate) unsupported: bool,
}

impl From<CriError> for RuntimeFault {
    fn from(error: CriError) -> Self {
        let message = error.message();
        let unsupported = error.is_unimplemented()
            || (error.code() == Some(cri::Code::Unknown) && message.contains("not implemented"));
        Self { text: error.to_string(), message, unsupported }
    }
}

/// The runtime. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    client: RuntimeClient,
}

impl Runtime {
    pub(crate) fn new(client: RuntimeClient) -> Self {
        Self { client }
    }

    /// The runtime's events.
    pub(crate) fn events(&self) -> cri::EventStream {
        self.client.events()
    }

    /// Sandboxes with these labels.
    pub(crate) async fn list_sandboxes(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<messages::PodSandbox>, RuntimeFault> {
        let filter = messages::PodSandboxFilter { label_selector, ..Default::default() };
        Ok(self.client.list_pod_sandbox(Some(filter)).await?)
    }

    /// Containers with these labels.
    pub(crate) async fn list_containers(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<messages::Container>, RuntimeFault> {
        let filter = messages::ContainerFilter { label_selector, ..Default::default() };
        Ok(self.client.list_containers(Some(filter)).await?)
    }

    /// A sandbox; `None` if it is gone.
    pub(crate) async fn sandbox_status(
        &self,
        id: &str,
    ) -> Result<Option<messages::PodSandboxStatus>, RuntimeFault> {
        match self.client.pod_sandbox_status(id, false).await {
            Ok(answer) => Ok(answer.status),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A sandbox that was just made; `None` if the runtime says nothing of it.
    pub(crate) async fn new_sandbox_status(
        &self,
        id: &str,
    ) -> Result<Option<messages::PodSandboxStatus>, RuntimeFault> {
        Ok(self.client.pod_sandbox_status(id, false).await?.status)
    }

    /// A container; `None` if it is gone.
    pub(crate) async fn container_status(
        &self,
        id: &str,
    ) -> Result<Option<messages::ContainerStatus>, RuntimeFault> {
        match self.client.container_status(id, false).await {
            Ok(answer) => Ok(answer.status),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes and starts a sandbox.
    pub(crate) async fn run_sandbox(
        &self,
        config: messages::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, RuntimeFault> {
        Ok(self.client.run_pod_sandbox(config, handler).await?)
    }

    /// Stops a sandbox; one that is gone is stopped.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeFault> {
        gone_is_fine(self.client.stop_pod_sandbox(id).await)
    }

    /// Removes a sandbox; one that is gone is removed.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), RuntimeFault> {
        gone_is_fine(self.client.remove_pod_sandbox(id).await)
    }

    /// Makes a container.
    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: messages::ContainerConfig,
        sandbox_config: messages::PodSandboxConfig,
    ) -> Result<String, RuntimeFault> {
        Ok(self.client.create_container(sandbox, config, sandbox_config).await?)
    }

    /// Starts a container.
    pub(crate) async fn start_container(&self, id: &str) -> Result<(), RuntimeFault> {
        Ok(self.client.start_container(id).await?)
    }

    /// Stops a container within a grace period; one that is gone is stopped.
    pub(crate) async fn stop_container(&self, id: &str, seconds: i64) -> Result<(), RuntimeFault> {
        gone_is_fine(self.client.stop_container(id, seconds).await)
    }

    /// Removes a container; one that is gone is removed.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), RuntimeFault> {
        gone_is_fine(self.client.remove_container(id).await)
    }

    /// Changes a running container's resources.
    pub(crate) async fn update_container(
        &self,
        id: &str,
        resources: messages::LinuxContainerResources,
    ) -> Result<(), RuntimeFault> {
        Ok(self.client.update_container_resources(id, resources).await?)
    }

    /// Tells the runtime that a pod's resources changed.
    pub(crate) async fn update_sandbox(
        &self,
        request: messages::UpdatePodSandboxResourcesRequest,
    ) -> Result<(), RuntimeFault> {
        Ok(self.client.update_pod_sandbox_resources(request).await?)
    }

    /// Memory that a container uses now, if the runtime knows.
    pub(crate) async fn memory_usage(&self, id: &str) -> Option<u64> {
        let stats = self.client.container_stats(id).await.ok()??;
        Some(stats.memory?.usage_bytes?.value)
    }

    /// Runs a command in a container; without a limit it may take for ever.
    pub(crate) async fn exec(
        &self,
        id: &str,
        command: &[String],
        limit: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        self.client.exec_sync(id, command, limit).await
    }
}

fn gone_is_fine(result: Result<(), CriError>) -> Result<(), RuntimeFault> {
    match result {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
