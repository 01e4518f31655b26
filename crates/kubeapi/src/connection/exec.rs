//! Credentials from an exec plugin (`client.authentication.k8s.io`).
//!
//! Promises: the plugin runs for the first request, when its credential has expired, and after a 401;
//! never interactively. While it fails, requests do, and the next one tries again. A client
//! certificate it returns goes to the shared identity.

use super::bearer::bearer_value;
use super::identity::ClientIdentity;
use super::kubeconfig::{ExecSettings, Kubeconfig};
use base64::Engine;
use http::HeaderValue;
use serde::Deserialize;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tower::BoxError;

const PLUGIN_DEADLINE: Duration = Duration::from_secs(60);
/// Credentials are renewed this long before their end.
const LEEWAY_SECONDS: i64 = 10;
/// More output than this is not a credential.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// Why a plugin gave no credential.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    #[error("{command} did not start: {text}")]
    Start { command: String, text: String },
    #[error("{command} failed with {status}: {text}")]
    Failed { command: String, status: String, text: String },
    #[error("{0} did not end within {secs}s", secs = PLUGIN_DEADLINE.as_secs())]
    TimedOut(String),
    #[error("output is not an ExecCredential: {0}")]
    Output(String),
}

#[derive(Debug, Deserialize)]
struct Credential {
    status: Option<CredentialStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<jiff::Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

#[derive(Debug, Default)]
struct Known {
    header: Option<HeaderValue>,
    expires: Option<jiff::Timestamp>,
    valid: bool,
}

#[derive(Debug)]
pub(crate) struct ExecPlugin {
    settings: ExecSettings,
    info: String,
    identity: Arc<ClientIdentity>,
    known: Mutex<Known>,
    running: tokio::sync::Semaphore,
}

impl ExecPlugin {
    pub(crate) fn new(
        settings: ExecSettings,
        kubeconfig: &Kubeconfig,
        identity: Arc<ClientIdentity>,
    ) -> Self {
        let mut spec = serde_json::json!({ "interactive": false });
        if settings.provide_cluster_info {
            let authority = kubeconfig.authority_pem().ok().flatten();
            spec["cluster"] = serde_json::json!({
                "server": kubeconfig.server,
                "tls-server-name": kubeconfig.tls_server_name,
                "insecure-skip-tls-verify": kubeconfig.insecure,
                "proxy-url": kubeconfig.proxy_url,
                "certificate-authority-data":
                    authority.map(|pem| base64::prelude::BASE64_STANDARD.encode(pem)),
            });
        }
        let info = serde_json::json!({
            "apiVersion": settings.api_version, "kind": "ExecCredential", "spec": spec,
        });
        Self {
            settings,
            info: info.to_string(),
            identity,
            known: Mutex::default(),
            running: tokio::sync::Semaphore::new(1),
        }
    }

    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, BoxError> {
        if let Some(header) = self.cached() {
            return Ok(header);
        }
        let _one_at_a_time = self.running.acquire().await?;
        if let Some(header) = self.cached() {
            return Ok(header);
        }
        self.refresh().await.map_err(|e| format!("exec plugin: {e}"))?;
        Ok(self.cached().flatten())
    }

    pub(crate) fn expire(&self) {
        if let Ok(mut known) = self.known.lock() {
            known.valid = false;
        }
    }

    fn cached(&self) -> Option<Option<HeaderValue>> {
        use ports::Clock;
        let known = self.known.lock().ok()?;
        let now = ports::SystemClock.now().as_second();
        let expired = known.expires.is_some_and(|t| t.as_second() - LEEWAY_SECONDS <= now);
        (known.valid && !expired).then(|| known.header.clone())
    }

    async fn refresh(&self) -> Result<(), ExecError> {
        let output = self.run().await?;
        let credential: Credential =
            serde_json::from_slice(&output).map_err(|e| ExecError::Output(e.to_string()))?;
        let status = credential.status.ok_or_else(|| ExecError::Output("no status".into()))?;
        if let (Some(certificate), Some(key)) =
            (&status.client_certificate_data, &status.client_key_data)
        {
            self.identity
                .install_pem(certificate.as_bytes(), key.as_bytes())
                .map_err(|e| ExecError::Output(e.to_string()))?;
        } else if status.token.is_none() {
            return Err(ExecError::Output("neither token nor client certificate".into()));
        }
        if let Ok(mut known) = self.known.lock() {
            *known = Known {
                header: status.token.as_deref().and_then(bearer_value),
                expires: status.expiration_timestamp,
                valid: true,
            };
        }
        Ok(())
    }

    async fn run(&self) -> Result<Vec<u8>, ExecError> {
        let command = self.settings.command.clone();
        let start = |text: String| ExecError::Start { command: command.clone(), text };
        let mut child = tokio::process::Command::new(&command)
            .args(&self.settings.args)
            .envs(self.settings.env.iter().map(|(k, v)| (k, v)))
            .env("KUBERNETES_EXEC_INFO", &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| start(e.to_string()))?;
        let work = async {
            let (mut output, mut errors) = (Vec::new(), Vec::new());
            let stdout = child.stdout.take();
            let stderr = child.stderr.take();
            let read_output = async {
                match stdout {
                    Some(s) => s.take(OUTPUT_LIMIT).read_to_end(&mut output).await.map(|_| ()),
                    None => Ok(()),
                }
            };
            let read_errors = async {
                match stderr {
                    Some(s) => s.take(OUTPUT_LIMIT).read_to_end(&mut errors).await.map(|_| ()),
                    None => Ok(()),
                }
            };
            let (a, b) = futures::future::join(read_output, read_errors).await;
            a.and(b)?;
            let status = child.wait().await?;
            Ok::<_, std::io::Error>((status, output, errors))
        };
        let (status, output, errors) = tokio::time::timeout(PLUGIN_DEADLINE, work)
            .await
            .map_err(|_| ExecError::TimedOut(command.clone()))?
            .map_err(|e| start(e.to_string()))?;
        if !status.success() {
            let text = String::from_utf8_lossy(&errors).trim().to_owned();
            return Err(ExecError::Failed { command, status: status.to_string(), text });
        }
        Ok(output)
    }
}
