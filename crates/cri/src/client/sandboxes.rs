//! Calls about pod sandboxes.

use proto::cri_v1::{
    ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxStatusRequest,
    PodSandboxStatusResponse, RemovePodSandboxRequest, RunPodSandboxRequest, StopPodSandboxRequest,
    StreamPodSandboxesRequest, UpdatePodSandboxResourcesRequest,
};
use telemetry::go_text::quote;

use super::{RuntimeClient, gather, request, verified};
use crate::call::{Call, Service};
use crate::error::CriError;
use crate::verify;

impl RuntimeClient {
    /// Creates and starts a sandbox; returns its id. The deadline is twice the ordinary one.
    pub async fn run_pod_sandbox(
        &self,
        config: PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String, CriError> {
        let deadline = Some(self.timeout().saturating_mul(2));
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let runtime_handler = runtime_handler.to_owned();
        let message = RunPodSandboxRequest { config: Some(config), runtime_handler };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.run_pod_sandbox(request(message, deadline)).await });
        let id = self.invoke(Call::RunPodSandbox, deadline, attempt).await?.pod_sandbox_id;
        let verdict = match id.is_empty() {
            true => Err(format!("PodSandboxId is not set for sandbox {}", quote(&name))),
            false => Ok(()),
        };
        verified(Call::RunPodSandbox, id, verdict)
    }

    /// Stops a sandbox and everything in it. Idempotent.
    pub async fn stop_pod_sandbox(&self, sandbox: &str) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = StopPodSandboxRequest { pod_sandbox_id: sandbox.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.stop_pod_sandbox(request(message, deadline)).await });
        self.invoke(Call::StopPodSandbox, deadline, attempt).await.map(drop)
    }

    /// Removes a sandbox and everything in it. Idempotent.
    pub async fn remove_pod_sandbox(&self, sandbox: &str) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = RemovePodSandboxRequest { pod_sandbox_id: sandbox.to_owned() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.remove_pod_sandbox(request(message, deadline)).await });
        self.invoke(Call::RemovePodSandbox, deadline, attempt).await.map(drop)
    }

    /// The state of a sandbox.
    pub async fn pod_sandbox_status(
        &self,
        sandbox: &str,
        verbose: bool,
    ) -> Result<PodSandboxStatusResponse, CriError> {
        let deadline = Some(self.timeout());
        let message = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.pod_sandbox_status(request(message, deadline)).await });
        let answer = self.invoke(Call::PodSandboxStatus, deadline, attempt).await?;
        let verdict = answer.status.as_ref().map_or(Ok(()), verify::sandbox_status);
        verified(Call::PodSandboxStatus, answer, verdict)
    }

    /// The sandboxes that match; all without a filter.
    pub async fn list_pod_sandbox(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let streamed = self.stream_pod_sandboxes(filter.clone());
        self.list(Service::Runtime, streamed, self.list_pod_sandbox_plain(filter)).await
    }

    /// The same, from the streamed list.
    pub async fn stream_pod_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamPodSandboxesRequest { filter };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_pod_sandboxes(request(message, deadline)).await;
            gather(opened, |part| part.pod_sandboxes).await
        });
        self.invoke(Call::StreamPodSandboxes, deadline, attempt).await
    }

    async fn list_pod_sandbox_plain(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let deadline = Some(self.timeout());
        let message = ListPodSandboxRequest { filter };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.list_pod_sandbox(request(message, deadline)).await });
        Ok(self.invoke(Call::ListPodSandbox, deadline, attempt).await?.items)
    }

    /// Informs the runtime that a pod's resources changed.
    pub async fn update_pod_sandbox_resources(
        &self,
        message: UpdatePodSandboxResourcesRequest,
    ) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            service.update_pod_sandbox_resources(request(message, deadline)).await
        });
        self.invoke(Call::UpdatePodSandboxResources, deadline, attempt).await.map(drop)
    }
}
