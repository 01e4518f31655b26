//! The eviction loop (kubelet: `eviction.managerImpl`).
//!
//! ```text
//!   every 10 s, on a kernel alarm, and right after an eviction:
//!   node's stats ─▶ engine::eviction round ─▶ conditions ─▶ node status, admission
//!                        │
//!                        ├─ storage limits exceeded ─▶ those pods are evicted
//!                        └─ thresholds to act on ─▶ reclaim ─▶ node's stats ─▶ pods' stats ─▶ one pod is evicted
//! ```
//!
//! Pod usage is read only for pods with storage limits and when one has to be evicted: a node
//! without pressure costs a handful of files every 10 s.
//!
//! Owns: since when each threshold has been met, and the pressure conditions published to others.
//! Promises: at most one pod per round is evicted for the node's sake; a critical pod never; the
//! decisions are made by `engine::eviction`.

mod alarm;
mod metrics;
mod observe;
#[cfg(test)]
mod tests;

pub use alarm::AlarmPlaces;
pub use metrics::EvictionMetrics;

use crate::active::wanted_pods;
use alarm::Alarms;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use api::stats::Summary;
use engine::admission::Pressure;
use engine::eviction::threshold::derive_container_fs;
use engine::eviction::{
    Cause, EvictionState, FsLayout, GracePolicy, KernelMemory, Observations, Place, PodUsages,
    Reclaim as Step, Threshold, account, eviction_text, limit_status, local, may_be_evicted,
    measured, pressure_status, rank, reclaim_steps,
};
use engine::pod::life::StatusOverride;
use ports::{
    Clock, EventSeverity, EventTarget, Events, KillRequest, NodeEvent, PodLife, Pods,
    PressureCondition, Reclaim, Stats, StatsScope, StorageLayout,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(10);
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);
const REASON: &str = "Evicted";

/// Settings of the loop.
#[derive(Debug, Clone)]
pub struct EvictionConfig {
    /// The configured thresholds.
    pub thresholds: Vec<Threshold>,
    /// How long a condition outlives its cause (`evictionPressureTransitionPeriod`).
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`.
    pub grace: GracePolicy,
    /// Whether pods' own storage limits are enforced.
    pub local_storage: bool,
    /// Whether images and writable layers may be on two disks (gate KubeletSeparateDiskGC).
    pub may_be_split: bool,
    /// The cgroups for which memory notifications are registered; `None` for none.
    pub alarms: Option<AlarmPlaces>,
    /// The files with the kernel's own available memory; `None` uses capacity less working set, as
    /// upstream.
    pub kernel_memory: Option<KernelMemoryPlaces>,
}

/// The files with the kernel's own available memory.
#[derive(Debug, Clone)]
pub struct KernelMemoryPlaces {
    /// `/proc/meminfo`.
    pub meminfo: PathBuf,
    /// `memory.stat` of the pods' cgroup, if pods have one.
    pub pods_stat: Option<PathBuf>,
}

/// Dependencies of the loop.
#[derive(Debug)]
pub struct EvictionParts {
    /// Resource usage.
    pub stats: Arc<dyn Stats>,
    /// The pods, and how they are killed.
    pub pods: Arc<dyn Pods>,
    /// Reclaims resources before a pod is evicted.
    pub reclaim: Arc<dyn Reclaim>,
    /// Where events go.
    pub events: Arc<dyn Events>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: EvictionMetrics,
    /// Where pressure is published.
    pub pressure: watch::Sender<Vec<PressureCondition>>,
}

/// The eviction loop.
#[derive(Debug)]
pub struct Eviction {
    config: EvictionConfig,
    parts: EvictionParts,
    state: EvictionState,
    layout: Option<FsLayout>,
    alarms: Alarms,
}

/// The stats read in one round.
#[derive(Debug, Clone, Copy)]
struct Readings<'a> {
    observed: &'a Observations,
    by_working_set: &'a Observations,
}

/// The result of one round.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    /// Nothing was evicted.
    Quiet,
    /// These pods were evicted.
    Evicted(Vec<PodUid>),
}

impl Eviction {
    /// Ready to run.
    pub fn new(config: EvictionConfig, parts: EvictionParts) -> Self {
        let alarms = Alarms::new(config.alarms.clone());
        Self { config, parts, state: EvictionState::default(), layout: None, alarms }
    }

    /// Runs until cancelled; ends at once when there are no thresholds.
    pub async fn run(mut self, cancel: CancellationToken) {
        if self.config.thresholds.is_empty() && !self.config.local_storage {
            return;
        }
        tracing::info!("Eviction manager: starting control loop");
        loop {
            let work = async {
                match self.round().await {
                    Done::Evicted(pods) => self.wait_cleaned(&pods).await,
                    Done::Quiet => tokio::select! {
                        // Cancel-safe: a timer.
                        () = tokio::time::sleep(PERIOD) => {}
                        // Cancel-safe: a count that was not read stays.
                        () = self.alarms.rung() => {
                            tracing::info!("eviction manager: memory eviction threshold crossed");
                        }
                    },
                }
            };
            tokio::select! {
                // Cancel-safe: a token.
                () = cancel.cancelled() => return,
                // Dropped only at the end of the process; a pod being killed is killed.
                () = work => {}
            }
        }
    }

    async fn round(&mut self) -> Done {
        let thresholds = self.config.thresholds.clone();
        let layout = match self.layout().await {
            Ok(layout) => layout,
            Err(error) => {
                tracing::error!(err = error, "Eviction manager: failed to synchronize");
                return Done::Quiet;
            }
        };
        let active = wanted_pods(&*self.parts.pods);
        let limited = self.config.local_storage && active.iter().any(|p| local::is_limited(p));
        let scope = if limited { StatsScope::Fresh } else { StatsScope::Node };
        let Some(summary) = self.summary(scope).await else { return Done::Quiet };
        self.alarms.follow(&self.config.thresholds, &summary);
        let by_working_set = observe::observations(&summary);
        let observed = self.measured(by_working_set.clone()).await;
        let now = self.parts.clock.now();
        let round = self.state.round(&thresholds, &observed, self.config.transition, now);
        self.publish(&round.conditions);
        if limited {
            let usages = observe::usages(&summary);
            let gone = self.enforce_limits(&active, &usages, layout).await;
            if !gone.is_empty() {
                return Done::Evicted(gone);
            }
        }
        let Some(first) = round.act.first().copied() else { return Done::Quiet };
        self.parts.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "EvictionThresholdMet",
            message: format!("Attempting to reclaim {}", first.signal.resource()),
        });
        if self.reclaimed(&first, layout).await {
            tracing::info!(
                resourceName = first.signal.resource(),
                "Eviction manager: able to reduce resource pressure without evicting pods."
            );
            return Done::Quiet;
        }
        let summary = if limited { Some(summary) } else { self.summary(StatsScope::Fresh).await };
        let Some(usages) = summary.map(|summary| observe::usages(&summary)) else {
            return Done::Quiet;
        };
        let readings = Readings { observed: &observed, by_working_set: &by_working_set };
        self.evict_one(&round.act, layout, &active, &usages, readings).await
    }

    /// The observations, with the kernel's own memory values if configured.
    async fn measured(&self, mut observed: Observations) -> Observations {
        let Some(places) = self.config.kernel_memory.clone() else { return observed };
        let read = sys::blocking::run(move || {
            let meminfo = sys::fs::read_to_string(&places.meminfo)?;
            let stat = places.pods_stat.map(sys::fs::read_to_string).transpose()?;
            Ok::<_, sys::fs::FsError>(KernelMemory::parse(&meminfo, &stat.unwrap_or_default()))
        });
        match read.await {
            Ok(Ok(Some(kernel))) => kernel.apply(&mut observed, self.parts.clock.now()),
            unread => tracing::error!(
                err = ?unread,
                "Eviction manager: failed to read the kernel's available memory, using the working set"
            ),
        }
        observed
    }

    async fn summary(&self, scope: StatsScope) -> Option<Arc<Summary>> {
        let summary = self.parts.stats.summary(scope).await;
        summary
            .inspect_err(|error| {
                tracing::error!(err = %error, "Eviction manager: failed to get summary stats");
            })
            .ok()
    }

    async fn layout(&mut self) -> Result<FsLayout, String> {
        if let Some(layout) = self.layout {
            return Ok(layout);
        }
        let found = self.parts.stats.layout().await.map_err(|error| {
            format!("eviction manager: failed to get HasDedicatedImageFs: {error}")
        })?;
        let layout = match found {
            StorageLayout::Split if !self.config.may_be_split => {
                let fault =
                    "KubeletSeparateDiskGC is turned off but we still have a split filesystem";
                return Err(fault.to_owned());
            }
            StorageLayout::One => FsLayout::One,
            StorageLayout::DedicatedImages => FsLayout::DedicatedImages,
            StorageLayout::Split => FsLayout::Split,
        };
        let (thresholds, ignored) = derive_container_fs(&self.config.thresholds, layout);
        for signal in ignored {
            tracing::error!(
                signal = signal.as_str(),
                "eviction manager: found conflicting containerfs eviction. Ignoring."
            );
        }
        self.config.thresholds = thresholds;
        self.layout = Some(layout);
        Ok(layout)
    }

    fn publish(&self, conditions: &[Pressure]) {
        let conditions: Vec<PressureCondition> = conditions
            .iter()
            .map(|pressure| match pressure {
                Pressure::Memory => PressureCondition::Memory,
                Pressure::Disk => PressureCondition::Disk,
                Pressure::Pid => PressureCondition::Pid,
            })
            .collect();
        self.parts.pressure.send_if_modified(|known| {
            let changed = *known != conditions;
            *known = conditions;
            changed
        });
    }

    async fn enforce_limits(
        &self,
        pods: &[Arc<Pod>],
        usages: &PodUsages,
        layout: FsLayout,
    ) -> Vec<PodUid> {
        let mut gone = Vec::new();
        for pod in pods {
            let uid = pod.uid();
            let Some(usage) = usages.get(&uid) else { continue };
            let Some(exceeded) = local::exceeded(pod, usage, layout) else { continue };
            let status = limit_status(&exceeded.message);
            if self.evict(pod, 1, status, BTreeMap::new()).await {
                self.parts.metrics.evictions.inc(&[exceeded.signal]);
                gone.push(uid);
            }
        }
        gone
    }

    /// Reclaims node-level resources; returns whether that was enough for every threshold.
    async fn reclaimed(&self, first: &Threshold, layout: FsLayout) -> bool {
        let steps = reclaim_steps(first.signal, layout);
        for step in steps {
            let done = match step {
                Step::DeadContainers => self.parts.reclaim.dead_containers().await,
                Step::UnusedImages => self.parts.reclaim.unused_images().await,
            };
            if let Err(error) = done {
                tracing::info!(
                    err = error,
                    resourceName = first.signal.resource(),
                    "Eviction manager: unexpected error when attempting to reduce resource pressure"
                );
            }
        }
        if steps.is_empty() {
            return false;
        }
        match self.parts.stats.summary(StatsScope::Node).await {
            Ok(summary) => {
                let observed = self.measured(observe::observations(&summary)).await;
                EvictionState::is_relieved(&self.config.thresholds, &observed)
            }
            Err(error) => {
                tracing::error!(err = %error, "Eviction manager: failed to get summary stats after resource reclaim");
                false
            }
        }
    }

    async fn evict_one(
        &self,
        act: &[Threshold],
        layout: FsLayout,
        active: &[Arc<Pod>],
        usages: &PodUsages,
        readings: Readings<'_>,
    ) -> Done {
        let Readings { observed, by_working_set } = readings;
        let Some(first) = act.first() else { return Done::Quiet };
        tracing::info!(
            resourceName = first.signal.resource(),
            "Eviction manager: must evict pod(s) to reclaim"
        );
        if active.is_empty() {
            tracing::error!(
                "Eviction manager: eviction thresholds have been met, but no pods are active to evict"
            );
            return Done::Quiet;
        }
        let pods: Vec<&Pod> = active.iter().map(Arc::as_ref).collect();
        let order = rank::rank(first.signal, layout, &pods, usages);
        let now = self.parts.clock.now();
        for threshold in act {
            if let Some(at) = observed.get(&threshold.signal).and_then(|o| o.at) {
                let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
                self.parts
                    .metrics
                    .stats_age
                    .observe(&[threshold.signal.as_str()], age.as_secs_f64());
            }
        }
        let of = order.len();
        let cause = Cause { threshold: first, observed, layout };
        for (at, pod) in order.into_iter().filter_map(|index| active.get(index)).enumerate() {
            let uid = pod.uid();
            let usage = usages.get(&uid);
            let mut text = eviction_text(pod, usage, act, observed);
            text.message.extend(measured(first.signal, observed, by_working_set));
            let why = account(pod, usage, cause, Place { at: at + 1, of });
            let name = pod.name_str();
            tracing::info!(pod = name, podUID = %uid, why, "Eviction manager: pod is next in the order");
            let grace = self.config.grace.seconds(first, pod).unwrap_or(1);
            let status = pressure_status(pod, &text.message);
            if self.evict(pod, grace, status, text.annotations).await {
                self.parts.metrics.evictions.inc(&[first.signal.as_str()]);
                return Done::Evicted(vec![uid]);
            }
        }
        tracing::info!("Eviction manager: unable to evict any pods from the node");
        Done::Quiet
    }

    /// Evicts a pod. A pod that does not end in time counts as evicted too; a critical one is never
    /// evicted.
    async fn evict(
        &self,
        pod: &Arc<Pod>,
        grace_seconds: i64,
        status: StatusOverride,
        annotations: BTreeMap<String, String>,
    ) -> bool {
        let name = pod.name_str();
        if !may_be_evicted(pod) {
            tracing::error!(pod = name, "Eviction manager: cannot evict a critical pod");
            return false;
        }
        let event = NodeEvent {
            target: EventTarget::Pod { pod: Arc::clone(pod), field_path: None },
            severity: EventSeverity::Warning,
            reason: REASON,
            message: status.message.clone(),
        };
        self.parts.events.emit_annotated(event, annotations);
        let request = KillRequest {
            evict: true,
            grace_seconds: Some(grace_seconds),
            reason: status.reason,
            message: status.message,
            condition: status.condition,
        };
        match self.parts.pods.kill(&pod.uid(), request).await {
            Ok(()) => tracing::info!(pod = name, "Eviction manager: pod is evicted successfully"),
            Err(error) => {
                tracing::error!(err = error, pod = name, "Eviction manager: pod failed to evict");
            }
        }
        true
    }

    /// Waits until the pods are cleaned up, so that the next round sees what they freed.
    async fn wait_cleaned(&self, gone: &[PodUid]) {
        let mut pods = self.parts.pods.watch();
        let finished = pods.wait_for(|snapshot| {
            gone.iter().all(|uid| {
                snapshot.pods.get(uid).is_none_or(|entry| entry.life == PodLife::Finished)
            })
        });
        if tokio::time::timeout(CLEANUP_LIMIT, finished).await.is_err() {
            tracing::info!("Eviction manager: timed out waiting for pods to be cleaned up");
        }
    }
}
