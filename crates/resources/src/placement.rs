//! One interface to exclusive CPUs, NUMA memory, devices and dynamic resources.
//!
//! Owns: the order in which providers are asked, the merge of their hints and the message of a refusal (upstream:
//! `topologymanager` scopes, `admission.GetPodAdmitResult`). Deliberately absent: the providers' allocations and
//! their state files; each has its own module.
//!
//! ```text
//! admit:  hints of every provider ─▶ engine::topology::Policy::merge ─▶ allocate, provider by provider
//!         (scope container: once per container; scope pod: once; policy none: allocate only)
//! ```

mod provider;

pub use provider::{AllocateError, Provider};

use crate::cpus::Cpus;
use crate::metrics::PlacementMetrics;
use api::core::v1::{Container, Pod, ResourceStatus};
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use engine::resources::pod_level_set;
use engine::topology::{Hint, Policy, PolicyKind, ResourceHints};
use ports::{
    ActivePods, ContainerExtras, NotPlaced, Placement, PlacementError, PlacementRejection,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

const AFFINITY: &str = "TopologyAffinityError";

/// The topology manager scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each container by itself.
    Container,
    /// The pod as a whole.
    Pod,
}

/// Topology manager settings.
#[derive(Debug, Clone)]
pub struct PlacementConfig {
    /// Merges hints.
    pub policy: Policy,
    /// Whether hints are merged per container or per pod.
    pub scope: Scope,
    /// Gate PodLevelResourceManagers.
    pub pod_level: bool,
    /// The CPU manager whose exclusive CPUs lift the CFS quota (gate DisableCPUQuotaWithExclusiveCPUs).
    pub lifts_quota: Option<Cpus>,
}

/// The providers in the order in which they are asked.
#[derive(Debug)]
pub struct Placed {
    config: PlacementConfig,
    providers: Vec<Arc<dyn Provider>>,
    metrics: PlacementMetrics,
}

impl Placed {
    /// With these providers.
    pub fn new(
        config: PlacementConfig,
        providers: Vec<Arc<dyn Provider>>,
        metrics: PlacementMetrics,
    ) -> Self {
        if config.policy.kind() != PolicyKind::None {
            metrics.show_alignment(&["numa_node"]);
        }
        Self { config, providers, metrics }
    }

    async fn judge(&self, pod: &Arc<Pod>) -> Result<(), NotPlaced> {
        match (self.config.policy.kind(), self.config.scope) {
            (PolicyKind::None, _) => {
                for container in pod.all_containers() {
                    self.allocate(pod, container, Hint::default()).await.map_err(rejection)?;
                }
                Ok(())
            }
            (_, Scope::Container) => self.judge_containers(pod).await,
            (_, Scope::Pod) => self.judge_pod(pod).await,
        }
    }

    async fn judge_containers(&self, pod: &Arc<Pod>) -> Result<(), NotPlaced> {
        for container in pod.all_containers() {
            let mut hints = Vec::with_capacity(self.providers.len());
            for provider in &self.providers {
                hints.push(provider.hints(pod, container).await);
            }
            let Some(best) = self.merge(pod, &hints) else {
                self.aligned(Scope::Container, false);
                self.metrics.topology_errors.inc(&[]);
                return Err(self.not_aligned(pod).into());
            };
            self.allocate(pod, container, best).await.map_err(|error| self.counted(error))?;
            self.aligned(Scope::Container, true);
        }
        Ok(())
    }

    async fn judge_pod(&self, pod: &Arc<Pod>) -> Result<(), NotPlaced> {
        let mut hints = Vec::with_capacity(self.providers.len());
        for provider in &self.providers {
            hints.push(provider.pod_hints(pod).await);
        }
        let Some(best) = self.merge(pod, &hints) else {
            self.aligned(Scope::Pod, false);
            self.metrics.topology_errors.inc(&[]);
            return Err(self.not_aligned(pod).into());
        };
        self.allocate_whole(pod, best).await.map_err(|error| self.counted(error))?;
        self.aligned(Scope::Pod, true);
        Ok(())
    }

    async fn allocate_whole(&self, pod: &Arc<Pod>, best: Hint) -> Result<(), AllocateError> {
        if self.config.pod_level && pod_level_set(pod) {
            for provider in &self.providers {
                provider.allocate_pod(pod, best).await?;
            }
            return Ok(());
        }
        for container in pod.all_containers() {
            self.allocate(pod, container, best).await?;
        }
        Ok(())
    }

    async fn allocate(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        for provider in &self.providers {
            provider.allocate(pod, container, affinity).await?;
        }
        Ok(())
    }

    /// Converts a failed allocation, and counts it unless it may still succeed.
    fn counted(&self, error: AllocateError) -> NotPlaced {
        if !matches!(error, AllocateError::Waits(_)) {
            self.metrics.topology_errors.inc(&[]);
        }
        rejection(error)
    }

    /// The best hint, if the policy admits it.
    fn merge(&self, pod: &Pod, hints: &[ResourceHints]) -> Option<Hint> {
        let (best, admitted) = self.config.policy.merge(hints);
        tracing::debug!(?best, admitted, pod = pod.metadata.name, "Best TopologyHint");
        admitted.then_some(best)
    }

    fn not_aligned(&self, pod: &Pod) -> PlacementRejection {
        let message = if !self.config.pod_level || !pod_level_set(pod) {
            "Resources cannot be allocated with Topology locality"
        } else if self.config.scope == Scope::Pod {
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
        } else {
            "Pod Scope pod with pod-level resources failed admission with a container-level topology \
             manager"
        };
        PlacementRejection { reason: AFFINITY.to_owned(), message: message.to_owned() }
    }

    /// Counts alignment to one NUMA node, which only the strictest policy guarantees.
    fn aligned(&self, scope: Scope, done: bool) {
        if self.config.policy.kind() != PolicyKind::SingleNumaNode {
            return;
        }
        let scope = if scope == Scope::Pod { "pod" } else { "container" };
        let counted = if done { &self.metrics.aligned } else { &self.metrics.not_aligned };
        counted.inc(&[scope, "numa_node"]);
    }
}

fn rejection(error: AllocateError) -> NotPlaced {
    let (reason, message) = match error {
        AllocateError::Waits(what) => return NotPlaced::Waits(what),
        AllocateError::Refused { reason, message } => (reason, message),
        AllocateError::Failed(cause) => (
            "UnexpectedAdmissionError",
            format!("Allocate failed due to {cause}, which is unexpected"),
        ),
    };
    PlacementRejection { reason: reason.to_owned(), message }.into()
}

#[async_trait]
impl Placement for Placed {
    async fn admit(&self, pod: &Arc<Pod>, active: ActivePods<'_>) -> Result<(), NotPlaced> {
        let began = Instant::now();
        if active.complete {
            let uid = |pod: &Arc<Pod>| pod.uid();
            let uids: BTreeSet<PodUid> = active.others.iter().chain([pod]).map(uid).collect();
            for provider in &self.providers {
                provider.forget_all_but(&uids).await;
            }
        }
        // Checked before anything is decided: a running allocation may take what hints would offer.
        if let Some(what) = self.providers.iter().find_map(|provider| provider.busy(pod)) {
            return Err(NotPlaced::Waits(what));
        }
        self.metrics.topology_requests.inc(&[]);
        let judged = self.judge(pod).await;
        #[expect(clippy::cast_precision_loss, reason = "an admission takes few milliseconds")]
        let took = began.elapsed().as_millis() as f64;
        self.metrics.topology_duration.observe(&[], took);
        judged
    }

    fn awaited_plugin(&self, pod: &Pod) -> Option<String> {
        self.providers.iter().find_map(|provider| provider.awaited_plugin(pod))
    }

    async fn settled(&self, pod: &Pod) {
        for provider in &self.providers {
            provider.settled(pod).await;
        }
    }

    fn abandon(&self, uid: &str) {
        self.providers.iter().for_each(|provider| provider.abandon(uid));
    }

    async fn prepare(&self, pod: &Arc<Pod>) -> Result<(), PlacementError> {
        for provider in &self.providers {
            provider.prepare(pod).await?;
        }
        Ok(())
    }

    async fn container_extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
    ) -> Result<ContainerExtras, PlacementError> {
        let mut extras = ContainerExtras::default();
        for provider in &self.providers {
            provider.extras(pod, container, &mut extras).await?;
        }
        Ok(extras)
    }

    async fn container_created(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        container_id: &str,
    ) -> Result<(), PlacementError> {
        for provider in &self.providers {
            provider.created(pod, container, container_id).await?;
        }
        Ok(())
    }

    fn container_removed(&self, container_id: &str) {
        self.providers.iter().for_each(|provider| provider.removed(container_id));
    }

    fn owed(&self, uid: &str) -> BTreeMap<String, i64> {
        self.providers.iter().flat_map(|provider| provider.owed(uid)).collect()
    }

    fn health(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        let mut all: BTreeMap<String, Vec<ResourceStatus>> = BTreeMap::new();
        for (container, list) in self.providers.iter().flat_map(|provider| provider.health(pod)) {
            all.entry(container).or_default().extend(list);
        }
        all
    }

    fn unthrottled(&self, pod: &Pod) -> BTreeSet<String> {
        self.config.lifts_quota.as_ref().map(|cpus| cpus.exclusive_of(pod)).unwrap_or_default()
    }

    async fn release(&self, pod: &Arc<Pod>) -> Result<(), PlacementError> {
        for provider in &self.providers {
            provider.release(pod).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
