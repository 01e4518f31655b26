//! Checks the runtime's health every 5 s (and every 100 ms until it is first ready).
//!
//! Upstream: `Kubelet.updateRuntimeUp` and `runtimeState`.

use async_trait::async_trait;
use cri::api::{Image, NetworkConfig, RuntimeConfig, StatusResponse, VersionResponse};
use engine::node::{RuntimeFacts, RuntimeHandlerFacts};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(5);
const EAGER_PERIOD: Duration = Duration::from_millis(100);
/// The longest duration of the 100 ms period.
const EAGER_TIME: Duration = Duration::from_secs(120);
/// A status older than this means that the runtime is down.
const SILENCE: Duration = Duration::from_secs(30);
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// The runtime calls that the node needs. Errors are texts for the log.
#[async_trait]
pub trait RuntimeProbe: Send + Sync + std::fmt::Debug {
    /// Conditions, handlers and features.
    async fn status(&self) -> Result<StatusResponse, String>;
    /// Name and version.
    async fn version(&self) -> Result<VersionResponse, String>;
    /// All images.
    async fn images(&self) -> Result<Vec<Image>, String>;
    /// Sends the node's pod CIDRs, joined by commas, to the runtime.
    async fn set_pod_cidr(&self, cidr: &str) -> Result<(), String>;
}

#[async_trait]
impl RuntimeProbe for cri::RuntimeClient {
    async fn status(&self) -> Result<StatusResponse, String> {
        cri::RuntimeClient::status(self, false).await.map_err(|e| e.to_string())
    }

    async fn version(&self) -> Result<VersionResponse, String> {
        cri::RuntimeClient::version(self, "0.1.0").await.map_err(|e| e.to_string())
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        self.list_images(None).await.map_err(|e| e.to_string())
    }

    async fn set_pod_cidr(&self, cidr: &str) -> Result<(), String> {
        let network_config = Some(NetworkConfig { pod_cidr: cidr.to_owned() });
        self.update_runtime_config(RuntimeConfig { network_config })
            .await
            .map_err(|e| e.to_string())
    }
}

/// Sends the configured pod CIDR to the runtime, if there is one; returns the one that the runtime
/// has. It is the only one without an API server; with one, the node's own replaces it. As
/// upstream, it is tried once (`NewMainKubelet`).
pub(crate) async fn send_configured_cidr(runtime: &dyn RuntimeProbe, cidr: String) -> String {
    if cidr.is_empty() {
        return cidr;
    }
    match runtime.set_pod_cidr(&cidr).await {
        Ok(()) => {
            tracing::info!(originalPodCIDR = "", newPodCIDR = cidr, "Updating Pod CIDR");
            cidr
        }
        Err(err) => {
            tracing::error!(err, "Pod CIDR update failed");
            String::new()
        }
    }
}

/// The runtime as last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// Whether it was queried at least once, successfully or not.
    pub asked: bool,
    /// When it was last ready.
    pub ready_at: Option<Instant>,
    /// Whether the last query succeeded.
    pub answers: bool,
    /// Why it is not ready, though it responds.
    pub error: Option<String>,
    /// Why its network is not ready.
    pub network_error: Option<String>,
    /// Its name and version, once known.
    pub version: Option<(String, String)>,
    /// Its handlers, from the last status that was ready.
    pub handlers: Vec<RuntimeHandlerFacts>,
    /// Whether it supports `supplementalGroupsPolicy`, if it reports features.
    pub supplemental_groups_policy: Option<bool>,
    /// Whether it supports user namespaces together with the host's network.
    pub user_namespaces_host_network: bool,
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            asked: false,
            ready_at: None,
            answers: false,
            error: None,
            network_error: Some("network state unknown".into()),
            version: None,
            handlers: Vec::new(),
            supplemental_groups_policy: None,
            user_namespaces_host_network: false,
        }
    }
}

impl RuntimeHealth {
    /// The runtime facts for the node's status at this time.
    pub fn facts(&self, fault: Option<&str>, now: Instant) -> RuntimeFacts {
        let mut errors = Vec::new();
        match self.ready_at {
            None => {
                errors.push("container runtime status check may not have completed yet".into());
            }
            Some(at) if at + SILENCE < now => errors.push("container runtime is down".into()),
            Some(_) => {}
        }
        errors.extend(fault.map(str::to_owned));
        errors.extend(self.error.clone());
        let (name, version) = self.version.clone().unzip();
        RuntimeFacts {
            name: name.unwrap_or_default(),
            version: version.filter(|_| self.answers),
            handlers: self.handlers.clone(),
            supplemental_groups_policy: self.supplemental_groups_policy,
            was_ready: self.ready_at.is_some(),
            errors,
            network_error: self.network_error.clone(),
        }
    }

    /// Whether a node with this health (and no other problem) would be ready.
    pub fn is_ready(&self) -> bool {
        self.ready_at.is_some() && self.error.is_none() && self.network_error.is_none()
    }

    /// Evaluates a status response.
    fn evaluate(&mut self, status: StatusResponse, now: Instant) {
        self.answers = true;
        let conditions = status.status.map(|s| s.conditions).unwrap_or_default();
        let unmet = |name: &str| match conditions.iter().find(|c| c.r#type == name) {
            Some(c) if c.status => None,
            Some(c) => Some(format!("{name}=false reason:{} message:{}", c.reason, c.message)),
            None => Some("<nil>".to_owned()),
        };
        self.network_error = unmet("NetworkReady")
            .map(|text| format!("container runtime network not ready: {text}"));
        self.error =
            unmet("RuntimeReady").map(|text| format!("container runtime not ready: {text}"));
        if self.error.is_some() {
            return;
        }
        self.ready_at = Some(now);
        let handler = |h: cri::api::RuntimeHandler| {
            let features = h.features.unwrap_or_default();
            RuntimeHandlerFacts {
                name: h.name,
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            }
        };
        self.handlers = status.runtime_handlers.into_iter().map(handler).collect();
        self.handlers.sort_by(|a, b| a.name.cmp(&b.name));
        self.supplemental_groups_policy =
            status.features.as_ref().map(|f| f.supplemental_groups_policy);
        self.user_namespaces_host_network =
            status.features.as_ref().is_some_and(|f| f.user_namespaces_host_network);
    }

    /// Whether others would see a difference (a later response with the same content is none).
    fn differs(&self, other: &Self) -> bool {
        let same_time = Self { ready_at: other.ready_at.or(self.ready_at), ..self.clone() };
        self.ready_at.is_some() != other.ready_at.is_some() || same_time != *other
    }
}

/// Queries until cancelled; `out` is woken only when something other than the time has changed.
pub(crate) async fn watch_runtime(
    runtime: Arc<dyn RuntimeProbe>,
    out: watch::Sender<RuntimeHealth>,
    cancel: CancellationToken,
) {
    let mut health = RuntimeHealth::default();
    let eager_until = Instant::now() + EAGER_TIME;
    loop {
        let before = health.clone();
        ask(&*runtime, &mut health).await;
        health.asked = true;
        let changed = health.differs(&before);
        out.send_if_modified(|published| {
            published.clone_from(&health);
            changed
        });
        let eager = !health.is_ready() && Instant::now() < eager_until;
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe: a fresh sleep each round.
            () = tokio::time::sleep(if eager { EAGER_PERIOD } else { PERIOD }) => {}
        }
    }
}

async fn ask(runtime: &dyn RuntimeProbe, health: &mut RuntimeHealth) {
    let answer = tokio::time::timeout(CALL_DEADLINE, runtime.status()).await;
    match answer.unwrap_or_else(|_| Err("no answer in time".into())) {
        Ok(status) => health.evaluate(status, Instant::now()),
        Err(err) => {
            if health.answers {
                tracing::error!(err, "Container runtime sanity check failed");
            }
            health.answers = false;
            return;
        }
    }
    if let Ok(Ok(version)) = tokio::time::timeout(CALL_DEADLINE, runtime.version()).await {
        health.version = Some((version.runtime_name, version.runtime_version));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::api::{RuntimeCondition, RuntimeStatus};

    fn status(ready: bool, network: bool) -> StatusResponse {
        let condition = |name: &str, status: bool| RuntimeCondition {
            r#type: name.into(),
            status,
            reason: if status { String::new() } else { "Bad".into() },
            message: if status { String::new() } else { "it broke".into() },
        };
        let conditions = vec![condition("RuntimeReady", ready), condition("NetworkReady", network)];
        StatusResponse { status: Some(RuntimeStatus { conditions }), ..StatusResponse::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_use_upstreams_words() {
        let mut health = RuntimeHealth::default();
        let facts = health.facts(None, Instant::now());
        assert_eq!(facts.errors, ["container runtime status check may not have completed yet"]);
        assert_eq!(facts.network_error.as_deref(), Some("network state unknown"));
        health.evaluate(status(true, false), Instant::now());
        let facts = health.facts(Some("PLEG is not healthy: x"), Instant::now());
        assert_eq!(facts.errors, ["PLEG is not healthy: x"]);
        assert_eq!(
            facts.network_error.as_deref(),
            Some(
                "container runtime network not ready: NetworkReady=false reason:Bad \
                 message:it broke"
            )
        );
        health.evaluate(status(false, true), Instant::now());
        assert_eq!(
            health.facts(None, Instant::now()).errors,
            ["container runtime not ready: RuntimeReady=false reason:Bad message:it broke"]
        );
        tokio::time::advance(Duration::from_secs(31)).await;
        let errors = health.facts(None, Instant::now()).errors;
        assert_eq!(errors.first().map(String::as_str), Some("container runtime is down"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_answer_of_the_same_kind_is_no_change() {
        let mut health = RuntimeHealth::default();
        health.evaluate(status(true, true), Instant::now());
        let before = health.clone();
        tokio::time::advance(Duration::from_secs(5)).await;
        health.evaluate(status(true, true), Instant::now());
        assert!(!health.differs(&before));
        health.evaluate(status(true, false), Instant::now());
        assert!(health.differs(&before));
    }
}
