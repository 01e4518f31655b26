//! Calls about the runtime as a whole.

use proto::cri_v1::{
    RuntimeConfig, RuntimeConfigRequest, RuntimeConfigResponse, StatusRequest, StatusResponse,
    UpdateRuntimeConfigRequest, VersionRequest, VersionResponse,
};

use super::{RuntimeClient, request, verified};
use crate::call::Call;
use crate::error::CriError;
use crate::verify;

impl RuntimeClient {
    /// Name and versions of the runtime; `api_version` is the kubelet's (`0.1.0`).
    pub async fn version(&self, api_version: &str) -> Result<VersionResponse, CriError> {
        let answer = self.ask_version(api_version).await?;
        let verdict = verify::version(&answer);
        verified(Call::Version, answer, verdict)
    }

    /// Whether the runtime responds at all.
    pub(super) async fn ping(&self) -> Result<(), CriError> {
        self.ask_version("").await.map(drop)
    }

    async fn ask_version(&self, api_version: &str) -> Result<VersionResponse, CriError> {
        let deadline = Some(self.timeout());
        let message = VersionRequest { version: api_version.to_owned() };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move { service.version(request(message, deadline)).await });
        self.invoke(Call::Version, deadline, attempt).await
    }

    /// Conditions, handlers and features of the runtime.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(
                async move { service.status(request(StatusRequest { verbose }, deadline)).await },
            );
        let answer = self.invoke(Call::Status, deadline, attempt).await?;
        let verdict = verify::runtime_status(&answer);
        verified(Call::Status, answer, verdict)
    }

    /// The runtime's cgroup driver.
    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move {
            service.runtime_config(request(RuntimeConfigRequest {}, deadline)).await
        });
        self.invoke(Call::RuntimeConfig, deadline, attempt).await
    }

    /// Sends the node's configuration (the pod CIDR) to the runtime.
    pub async fn update_runtime_config(&self, config: RuntimeConfig) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = UpdateRuntimeConfigRequest { runtime_config: Some(config) };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(
                async move { service.update_runtime_config(request(message, deadline)).await },
            );
        self.invoke(Call::UpdateRuntimeConfig, deadline, attempt).await.map(drop)
    }
}
