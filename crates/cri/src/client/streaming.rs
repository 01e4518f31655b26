//! Calls that run a command or open a byte stream.

use std::time::Duration;

use proto::cri_v1::{AttachRequest, ExecRequest, ExecSyncRequest, PortForwardRequest};

use super::{RuntimeClient, request, verified};
use crate::call::Call;
use crate::error::CriError;

/// How a command in a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// Its exit code.
    pub exit_code: i32,
    /// Its stdout, possibly truncated by the runtime.
    pub stdout: Vec<u8>,
    /// Its stderr, likewise.
    pub stderr: Vec<u8>,
}

impl ExecOutput {
    /// The text of a command's failure; none if it succeeded.
    pub fn failure(&self, command: &[String]) -> Option<String> {
        if self.exit_code == 0 {
            return None;
        }
        let (command, code) = (command.join(" "), self.exit_code);
        let stderr = String::from_utf8_lossy(&self.stderr);
        Some(format!("command '{command}' exited with {code}: {stderr}"))
    }
}

impl RuntimeClient {
    /// Runs a command to completion. The runtime kills it after `timeout`; without one there is no
    /// deadline at all.
    pub async fn exec_sync(
        &self,
        container: &str,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        let timeout = timeout.filter(|timeout| !timeout.is_zero());
        let deadline = timeout.map(|timeout| self.timeout().saturating_add(timeout));
        let seconds = timeout.map_or(0, |timeout| timeout.as_secs());
        let message = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move { service.exec_sync(request(message, deadline)).await });
        match self.invoke(Call::ExecSync, deadline, attempt).await {
            Ok(done) => Ok(ExecOutput {
                exit_code: done.exit_code,
                stdout: done.stdout,
                stderr: done.stderr,
            }),
            Err(err) if err.is_deadline() => Err(CriError::CommandTimedOut {
                command: command.join(" "),
                after: timeout.unwrap_or_default(),
            }),
            Err(err) => Err(err),
        }
    }

    /// The URL for the streams of a command.
    pub async fn exec(&self, message: ExecRequest) -> Result<String, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move { service.exec(request(message, deadline)).await });
        let url = self.invoke(Call::Exec, deadline, attempt).await?.url;
        with_url(Call::Exec, url)
    }

    /// The URL for the streams of a running container.
    pub async fn attach(&self, message: AttachRequest) -> Result<String, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.runtime_service();
        let attempt = Box::pin(async move { service.attach(request(message, deadline)).await });
        let url = self.invoke(Call::Attach, deadline, attempt).await?.url;
        with_url(Call::Attach, url)
    }

    /// The URL for the forwarded ports of a sandbox.
    pub async fn port_forward(&self, sandbox: &str, ports: &[i32]) -> Result<String, CriError> {
        let deadline = Some(self.timeout());
        let message =
            PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port: ports.to_vec() };
        let mut service = self.runtime_service();
        let attempt =
            Box::pin(async move { service.port_forward(request(message, deadline)).await });
        let url = self.invoke(Call::PortForward, deadline, attempt).await?.url;
        with_url(Call::PortForward, url)
    }
}

fn with_url(call: Call, url: String) -> Result<String, CriError> {
    let verdict = if url.is_empty() { Err("URL is not set".to_owned()) } else { Ok(()) };
    verified(call, url, verdict)
}
