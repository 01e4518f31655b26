//! Calls about containers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::cri_v1::{
    CheckpointContainerRequest, Container, ContainerConfig, ContainerFilter,
    ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    LinuxContainerResources, ListContainersRequest, PodSandboxConfig, RemoveContainerRequest,
    ReopenContainerLogRequest, StartContainerRequest, StopContainerRequest,
    StreamContainersRequest, UpdateContainerResourcesRequest,
};
use telemetry::go_text::quote;

use super::{LONGEST_DEADLINE, RuntimeClient, gather, request, verified};
use crate::call::{Call, Service};
use crate::error::CriError;
use crate::verify;

impl RuntimeClient {
    /// Creates a container in a sandbox; returns its id.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        let deadline = Some(self.timeout());
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let message = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.create_container(request(message, deadline)).await });
        let id = self.invoke(Call::CreateContainer, deadline, attempt).await?.container_id;
        let verdict = match id.is_empty() {
            true => Err(format!("ContainerId is not set for container {}", quote(&name))),
            false => Ok(()),
        };
        verified(Call::CreateContainer, id, verdict)
    }

    /// Starts a created container.
    pub async fn start_container(&self, container: &str) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = StartContainerRequest { container_id: container.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.start_container(request(message, deadline)).await });
        self.invoke(Call::StartContainer, deadline, attempt).await.map(drop)
    }

    /// Stops a container: its stop signal, and after `grace_seconds` SIGKILL. The deadline is that
    /// much longer than an ordinary call's.
    pub async fn stop_container(
        &self,
        container: &str,
        grace_seconds: i64,
    ) -> Result<(), CriError> {
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let deadline = Some(self.timeout().saturating_add(grace).min(LONGEST_DEADLINE));
        let message =
            StopContainerRequest { container_id: container.to_owned(), timeout: grace_seconds };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.stop_container(request(message, deadline)).await });
        self.invoke(Call::StopContainer, deadline, attempt).await.map(drop)
    }

    /// Removes a container, by force if it runs. Idempotent.
    pub async fn remove_container(&self, container: &str) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = RemoveContainerRequest { container_id: container.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.remove_container(request(message, deadline)).await });
        self.invoke(Call::RemoveContainer, deadline, attempt).await.map(drop)
    }

    /// The containers that match; all without a filter.
    pub async fn list_containers(
        &self,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let streamed = self.stream_containers(filter.clone());
        self.list(Service::Runtime, streamed, self.list_containers_plain(filter)).await
    }

    /// The same, from the streamed list.
    pub async fn stream_containers(
        &self,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamContainersRequest { filter };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_containers(request(message, deadline)).await;
            gather(opened, |part| part.containers).await
        });
        self.invoke(Call::StreamContainers, deadline, attempt).await
    }

    async fn list_containers_plain(
        &self,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let deadline = Some(self.timeout());
        let message = ListContainersRequest { filter };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.list_containers(request(message, deadline)).await });
        Ok(self.invoke(Call::ListContainers, deadline, attempt).await?.containers)
    }

    /// The state of a container.
    pub async fn container_status(
        &self,
        container: &str,
        verbose: bool,
    ) -> Result<ContainerStatusResponse, CriError> {
        let deadline = Some(self.timeout());
        let message = ContainerStatusRequest { container_id: container.to_owned(), verbose };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.container_status(request(message, deadline)).await });
        let answer = self.invoke(Call::ContainerStatus, deadline, attempt).await?;
        let verdict = answer.status.as_ref().map_or(Ok(()), verify::container_status);
        verified(Call::ContainerStatus, answer, verdict)
    }

    /// Changes the resources of a running container.
    pub async fn update_container_resources(
        &self,
        container: &str,
        resources: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = UpdateContainerResourcesRequest {
            container_id: container.to_owned(),
            linux: Some(resources),
            ..Default::default()
        };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            service.update_container_resources(request(message, deadline)).await
        });
        let updated = self.invoke(Call::UpdateContainerResources, deadline, attempt).await;
        self.inner.resource_updates.fetch_add(1, Ordering::Release);
        updated.map(drop)
    }

    /// A count that grows with every attempt to change a container's resources. A cache of
    /// resources is valid while it stays the same.
    pub fn resource_updates(&self) -> u64 {
        self.inner.resource_updates.load(Ordering::Acquire)
    }

    /// Makes the runtime reopen a container's log file, after a rotation.
    pub async fn reopen_container_log(&self, container: &str) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = ReopenContainerLogRequest { container_id: container.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.reopen_container_log(request(message, deadline)).await });
        self.invoke(Call::ReopenContainerLog, deadline, attempt).await.map(drop)
    }

    /// Writes a checkpoint of a container to a file. The given timeout counts only if it is longer
    /// than that of an ordinary call.
    pub async fn checkpoint_container(
        &self,
        container: &str,
        location: &str,
        timeout_seconds: i64,
    ) -> Result<(), CriError> {
        let Ok(requested) = u64::try_from(timeout_seconds) else {
            let problem = "CheckpointContainer requires the timeout value to be > 0".to_owned();
            return Err(CriError::BadRequest { call: Call::CheckpointContainer, problem });
        };
        let limit = self.timeout().max(Duration::from_secs(requested));
        let message = CheckpointContainerRequest {
            container_id: container.to_owned(),
            location: location.to_owned(),
            timeout: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(
                async move { service.checkpoint_container(request(message, Some(limit))).await },
            );
        self.invoke(Call::CheckpointContainer, Some(limit), attempt).await.map(drop)
    }
}
