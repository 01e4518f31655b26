//! The node's lease, renewed every quarter of its duration (upstream: `lease.controller`).
//!
//! ```text
//!   known ──renew (PUT)──▶ known
//!     └──5 tries fail──▶ unknown ──GET, else CREATE (200 ms … 7 s apart)──▶ known
//! ```

use jiff::Timestamp;
use kubeapi::{ApiError, LeaseApi, NodeApi, Refusal};
use ports::Clock;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// Settings of the lease.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// `nodeLeaseDurationSeconds`.
    pub duration_seconds: i32,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self { duration_seconds: 40 }
    }
}

impl LeaseConfig {
    fn renew_interval(&self) -> Duration {
        let seconds = u64::try_from(self.duration_seconds).unwrap_or_default();
        Duration::from_millis(seconds * 250)
    }
}

/// Renews the node's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    api: LeaseApi,
    node: NodeApi,
    clock: Arc<dyn Clock>,
    config: LeaseConfig,
    latest: Option<Value>,
}

impl Lease {
    /// The node's API is used once, for the owner reference.
    pub(crate) fn new(
        api: LeaseApi,
        node: NodeApi,
        clock: Arc<dyn Clock>,
        config: LeaseConfig,
    ) -> Self {
        Self { api, node, clock, config, latest: None }
    }

    /// Runs until cancelled. The lease is never deleted.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let round = async {
                self.renew().await;
                tokio::time::sleep(self.config.renew_interval().mul_f64(1.0 + 0.04 * jitter()))
                    .await;
            };
            tokio::select! {
                // Cancel-safe: a token has no state to lose.
                () = cancel.cancelled() => return,
                // Dropped only at the end of the process; an interrupted renewal does no harm.
                () = round => {}
            }
        }
    }

    async fn renew(&mut self) {
        if let Some(latest) = self.latest.clone()
            && self.update(latest).await
        {
            return;
        }
        let (lease, created) = self.ensure().await;
        self.latest = lease.clone();
        if let (Some(lease), false) = (lease, created) {
            self.update(lease).await;
        }
    }

    /// Up to five attempts; returns whether one succeeded.
    async fn update(&mut self, mut base: Value) -> bool {
        for attempt in 0..TRIES {
            let Some(lease) = self.filled(Some(base.clone())).await else { continue };
            match self.api.replace(&lease).await {
                Ok(stored) => {
                    self.latest = Some(stored);
                    return true;
                }
                Err(err) => {
                    tracing::error!(err = %err, "Failed to update lease");
                    if err.refusal() == Some(Refusal::Conflict) {
                        if let Ok(fresh) = self.api.get().await {
                            base = fresh;
                        }
                        continue;
                    }
                    if attempt > 0 {
                        self.api.redial();
                    }
                }
            }
        }
        tracing::error!("Failed to update lease, gave up after five tries");
        false
    }

    /// The lease and whether it was just created; `None` if its owner is not known yet.
    async fn ensure(&mut self) -> (Option<Value>, bool) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.get_or_create().await {
                Ok(outcome) => return outcome,
                Err(err) => {
                    tracing::error!(err = %err, interval = ?pause,
                        "Failed to ensure lease exists, will retry");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn get_or_create(&mut self) -> Result<(Option<Value>, bool), ApiError> {
        match self.api.get().await {
            Ok(lease) => Ok((Some(lease), false)),
            Err(err) if err.is_not_found() => {
                let Some(lease) = self.filled(None).await else { return Ok((None, false)) };
                Ok((Some(self.api.create(&lease).await?), true))
            }
            Err(err) => Err(err),
        }
    }

    /// The lease to send; `None` if the owner could not be read.
    async fn filled(&self, base: Option<Value>) -> Option<Value> {
        let name = self.api.name();
        let mut lease = base.unwrap_or_else(|| new_lease(name));
        renewed(&mut lease, self.config.duration_seconds, self.clock.now());
        let owners = lease.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        if owners.is_none_or(Vec::is_empty) {
            match self.node.get().await {
                Ok(node) => {
                    let uid = node.metadata.uid.unwrap_or_default();
                    lease["metadata"]["ownerReferences"] =
                        json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
                }
                Err(err) => {
                    let text = "Failed to get node when trying to set owner ref to the node lease";
                    tracing::error!(node = name, err = %err, "{text}");
                    return None;
                }
            }
        }
        Some(lease)
    }
}

fn new_lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name},
    })
}

fn renewed(lease: &mut Value, duration_seconds: i32, now: Timestamp) {
    lease["spec"]["leaseDurationSeconds"] = duration_seconds.into();
    lease["spec"]["renewTime"] = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string().into();
}

/// A number in `[0, 1)` that differs between nodes and calls.
pub(crate) fn jitter() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish() >> 40;
    f64::from(u32::try_from(bits).unwrap_or_default()) / f64::from(1_u32 << 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_changes_time_and_duration_and_keeps_the_rest() {
        let mut lease = new_lease("node1");
        lease["spec"]["strange"] = json!("kept");
        renewed(&mut lease, 40, "2026-01-02T03:04:05.123456789Z".parse().unwrap());
        assert_eq!(
            lease["spec"],
            json!({
                "holderIdentity": "node1",
                "leaseDurationSeconds": 40,
                "renewTime": "2026-01-02T03:04:05.123456Z",
                "strange": "kept",
            })
        );
    }

    #[test]
    fn renews_every_quarter_of_the_duration() {
        assert_eq!(LeaseConfig::default().renew_interval(), Duration::from_secs(10));
    }
}
