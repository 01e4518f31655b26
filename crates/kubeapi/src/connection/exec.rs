//! Credentials from an exec plugin (`client.authentication.k8s.io`).
//!
//! Promises: the plugin runs for the first request, when its credential has expired, and after a
//! 401; never interactively. Its stderr is inherited. While it fails, requests fail, and the next
//! request runs it again. A client certificate it returns is installed in the shared identity.

use super::bearer::bearer_value;
use super::identity::ClientIdentity;
use super::kubeconfig::{ExecSettings, Kubeconfig};
use base64::Engine;
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tower::BoxError;

const PLUGIN_DEADLINE: Duration = Duration::from_secs(60);
/// Longer output is rejected.
const OUTPUT_LIMIT: u64 = 1 << 20;

/// Why a plugin returned no credential; the texts are client-go's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    #[error("exec plugin cannot support interactive mode: standard input is not a terminal")]
    Interactive,
    #[error("exec: executable {0} not found")]
    NotFound(String),
    #[error("exec: executable {command} failed with exit code {code}")]
    Failed { command: String, code: i32 },
    #[error("exec: {0}")]
    Run(String),
    #[error("exec: executable {0} did not end within {secs}s", secs = PLUGIN_DEADLINE.as_secs())]
    TimedOut(String),
    #[error("decoding stdout: {0}")]
    Output(String),
    #[error("exec plugin is configured to use API version {wanted}, plugin returned version {got}")]
    Version { wanted: String, got: String },
    #[error("exec plugin didn't return a status field")]
    NoStatus,
    #[error("exec plugin didn't return a token or cert/key pair")]
    Empty,
    #[error("exec plugin returned only certificate or key, not both")]
    HalfPair,
    #[error("failed parsing client key/certificate: {0}")]
    Pair(String),
}

/// The `ExecCredential` passed to the plugin.
#[derive(Debug, Serialize)]
struct Info<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    spec: Spec<'a>,
}

#[derive(Debug, Serialize)]
struct Spec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterInfo<'a>>,
    interactive: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterInfo<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    insecure_skip_tls_verify: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disable_compression: Option<bool>,
    config: Option<&'a serde_json::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Credential {
    kind: String,
    api_version: String,
    status: Option<CredentialStatus>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
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

/// The `ExecCredential` for the plugin, as client-go encodes it.
fn info(settings: &ExecSettings, kubeconfig: &Kubeconfig) -> String {
    let cluster = settings.provide_cluster_info.then(|| ClusterInfo {
        server: &kubeconfig.server,
        tls_server_name: kubeconfig.tls_server_name.as_deref(),
        insecure_skip_tls_verify: kubeconfig.insecure.then_some(true),
        certificate_authority_data: kubeconfig
            .authority_pem()
            .ok()
            .flatten()
            .map(|pem| base64::prelude::BASE64_STANDARD.encode(pem)),
        proxy_url: kubeconfig.proxy_url.as_deref(),
        disable_compression: kubeconfig.disable_compression.then_some(true),
        config: kubeconfig.exec_extension.as_ref(),
    });
    let info = Info {
        kind: "ExecCredential",
        api_version: &settings.api_version,
        spec: Spec { cluster, interactive: false },
    };
    let text = serde_json::to_string(&info).unwrap_or_default();
    format!("{text}\n")
}

impl ExecPlugin {
    pub(crate) fn new(
        settings: ExecSettings,
        kubeconfig: &Kubeconfig,
        identity: Arc<ClientIdentity>,
    ) -> Self {
        Self {
            info: info(&settings, kubeconfig),
            settings,
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
        self.refresh().await.map_err(|e| format!("getting credentials: {e}"))?;
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
        let expired = known.expires.is_some_and(|end| ports::SystemClock.now() > end);
        (known.valid && !expired).then(|| known.header.clone())
    }

    async fn refresh(&self) -> Result<(), ExecError> {
        if self.settings.interactive_mode == "Always" {
            return Err(ExecError::Interactive);
        }
        let status = read(&self.run().await?, &self.settings.api_version)?;
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let token = given(&status.token);
        match (given(&status.client_certificate_data), given(&status.client_key_data)) {
            (Some(certificate), Some(key)) => self
                .identity
                .install_pem(certificate.as_bytes(), key.as_bytes())
                .map_err(|e| ExecError::Pair(e.to_string()))?,
            (None, None) if token.is_none() => return Err(ExecError::Empty),
            (None, None) => {}
            _ => return Err(ExecError::HalfPair),
        }
        if let Ok(mut known) = self.known.lock() {
            *known = Known {
                header: token.as_deref().and_then(bearer_value),
                expires: status.expiration_timestamp,
                valid: true,
            };
        }
        Ok(())
    }

    async fn run(&self) -> Result<Vec<u8>, ExecError> {
        let command = self.settings.command.clone();
        let failed = |error: std::io::Error| ExecError::Run(units::errno::go_text(&error));
        let mut child = tokio::process::Command::new(&command)
            .args(&self.settings.args)
            .envs(self.settings.env.iter().map(|(k, v)| (k, v)))
            .env("KUBERNETES_EXEC_INFO", &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => ExecError::NotFound(command.clone()),
                _ => failed(error),
            })?;
        let work = async {
            let mut output = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout.take(OUTPUT_LIMIT).read_to_end(&mut output).await?;
            }
            Ok::<_, std::io::Error>((child.wait().await?, output))
        };
        let (status, output) = tokio::time::timeout(PLUGIN_DEADLINE, work)
            .await
            .map_err(|_| ExecError::TimedOut(command.clone()))?
            .map_err(failed)?;
        match status.success() {
            true => Ok(output),
            // Without an exit code it was ended by a signal.
            false => Err(ExecError::Failed { command, code: status.code().unwrap_or(-1) }),
        }
    }
}

/// The plugin's credential, if it has the requested API version.
fn read(output: &[u8], wanted: &str) -> Result<CredentialStatus, ExecError> {
    let bad = |why: String| ExecError::Output(why);
    let value = units::yaml::read_either(output).map_err(|e| bad(e.to_string()))?;
    let credential: Credential = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
    let missing = |what| {
        let text = String::from_utf8_lossy(output);
        Err(bad(format!("Object '{what}' is missing in '{}'", text.trim_end())))
    };
    if credential.kind.is_empty() {
        return missing("Kind");
    }
    if credential.api_version.is_empty() {
        return missing("apiVersion");
    }
    if credential.api_version != wanted {
        let (wanted, got) = (wanted.to_owned(), credential.api_version);
        return Err(ExecError::Version { wanted, got });
    }
    credential.status.ok_or(ExecError::NoStatus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn kubeconfig(cluster: &str, exec: &str) -> Kubeconfig {
        let text = format!(
            "current-context: c
clusters: [{{name: c, cluster: {{server: 'https://a', {cluster}}}}}]
users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: x, \
             interactiveMode: Never, {exec}}}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
"
        );
        Kubeconfig::parse(&text, Path::new("/")).unwrap()
    }

    // As a plugin of the Go kubelet receives it.
    #[test]
    fn a_plugin_is_told_what_client_go_tells() {
        let passed = |cluster: &str, exec: &str| {
            let kubeconfig = kubeconfig(cluster, exec);
            info(kubeconfig.exec.as_ref().unwrap(), &kubeconfig)
        };
        let head = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1""#;
        assert_eq!(passed("", ""), format!("{head},\"spec\":{{\"interactive\":false}}}}\n"));
        let cluster = r#"{"server":"https://a","config":null}"#;
        assert_eq!(
            passed("", "provideClusterInfo: true"),
            format!("{head},\"spec\":{{\"cluster\":{cluster},\"interactive\":false}}}}\n")
        );
        let more = "insecure-skip-tls-verify: true, proxy-url: 'http://p', tls-server-name: name, \
                    disable-compression: true, extensions: [{name: \
                    client.authentication.k8s.io/exec, extension: {a: [1]}}]";
        let passed = passed(more, "provideClusterInfo: true");
        let cluster = "{\"server\":\"https://a\",\"tls-server-name\":\"name\",\
                       \"insecure-skip-tls-verify\":true,\"proxy-url\":\"http://p\",\
                       \"disable-compression\":true,\"config\":{\"a\":[1]}}";
        assert!(passed.contains(cluster), "{passed}");
    }

    #[test]
    fn what_is_no_credential_is_told_apart() {
        let fault = |text: &str| {
            read(text.as_bytes(), "client.authentication.k8s.io/v1").unwrap_err().to_string()
        };
        let kind = "kind: ExecCredential\napiVersion: client.authentication.k8s.io";
        assert_eq!(fault("{\"a\":1}"), "decoding stdout: Object 'Kind' is missing in '{\"a\":1}'");
        assert_eq!(fault(&format!("{kind}/v1")), "exec plugin didn't return a status field");
        assert_eq!(
            fault(&format!("{kind}/v1beta1\nstatus: {{token: t}}")),
            "exec plugin is configured to use API version client.authentication.k8s.io/v1, plugin \
             returned version client.authentication.k8s.io/v1beta1"
        );
    }
}
