//! CPUs of containers: exclusive ones for those that ask for whole CPUs, the rest shared by all others.
//!
//! Owns: the CPU assignments and `cpu_manager_state` (upstream: `cpumanager`). Decisions are in `engine::cpus`.
//!
//! Promises: the file is written before an allocation is returned; a change and its file are one atomic step for
//! other callers. Running containers follow the shared CPUs within one reconcile period (`reconcile`).

mod reconcile;

pub use reconcile::ContainerCpus;

use crate::metrics::PlacementMetrics;
use crate::placement::{AllocateError, Provider};
use crate::state_file::{StateError, StateFile};
use api::core::v1::{Container, Pod};
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use engine::cpus::checkpoint::{self, KnownContainers};
use engine::cpus::{Allocation, CpuRefusal, CpuSetup, CpuState, PodAllocation, StaticCpus};
use engine::resources::pod_level_set;
use engine::topology::{Entries, Hint, ResourceHints};
use ports::{ContainerExtras, PlacementError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use units::CpuSet;

/// The CPU manager policy.
#[derive(Debug, Clone)]
pub enum CpuPolicy {
    /// All containers share all CPUs.
    None,
    /// Whole CPUs are exclusive.
    Static(Box<CpuSetup>),
}

/// The CPU manager; cheap to clone.
#[derive(Debug, Clone)]
pub struct Cpus {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: StateFile,
    entries: Entries,
    held: Mutex<Held>,
    /// The CPUs last set at the runtime, by pod UID and container name.
    applied: Mutex<BTreeMap<(String, String), CpuSet>>,
    /// Pods with an allocation that no snapshot has contained yet: the present one may be older than the
    /// allocation.
    fresh: Mutex<BTreeSet<PodUid>>,
    metrics: PlacementMetrics,
}

#[derive(Debug)]
enum Held {
    /// The policy `none` changes nothing; the shared CPUs of an existing file apply.
    None(CpuState),
    Static(Box<StaticCpus>),
}

impl Held {
    fn state(&self) -> &CpuState {
        match self {
            Self::None(state) => state,
            Self::Static(cpus) => cpus.state(),
        }
    }

    fn policy(&self) -> &'static str {
        match self {
            Self::None(_) => "none",
            Self::Static(_) => "static",
        }
    }
}

impl Cpus {
    /// Whether the policy accepts this setup; nothing is read or written.
    pub fn check(setup: CpuSetup) -> Result<(), StateError> {
        StaticCpus::new(setup).map(drop).map_err(|e| StateError::Policy(e.0))
    }

    /// Restores the state file in `dir`, or starts empty; `known` are the containers that run already.
    pub fn start(
        policy: CpuPolicy,
        (dir, entries): (&Path, Entries),
        known: &KnownContainers,
        metrics: PlacementMetrics,
    ) -> Result<Self, StateError> {
        let file = StateFile::new(dir, "cpu");
        let mut held = match policy {
            CpuPolicy::None => Held::None(CpuState::default()),
            CpuPolicy::Static(setup) => {
                let fault = |e: engine::cpus::CpuFault| StateError::Policy(e.0);
                Held::Static(Box::new(StaticCpus::new(*setup).map_err(fault)?))
            }
        };
        let remembered = match file.read()? {
            Some(text) => {
                let decoded = checkpoint::decode(&text, held.policy(), known, entries);
                Some(decoded.map_err(|fault| file.unusable(fault.0))?)
            }
            None => None,
        };
        let restored = remembered.clone().unwrap_or_default();
        match &mut held {
            Held::None(state) => *state = restored,
            Held::Static(cpus) => cpus.restore(restored).map_err(|e| file.unfit(e.0))?,
        }
        // The file is written only if it differs.
        if remembered.as_ref() != Some(held.state()) {
            file.write(&checkpoint::encode(held.policy(), held.state(), entries));
        }
        if let Held::Static(cpus) = &held {
            metrics.aligned.with(&["container", "physical_cpu"]).add(0.0);
            metrics.not_aligned.with(&["container", "physical_cpu"]).add(0.0);
            metrics.aligned.with(&["container", "uncore_cache"]).add(0.0);
            show(&metrics, cpus, &CpuState::default());
        }
        let inner = Inner {
            file,
            entries,
            held: Mutex::new(held),
            applied: Mutex::default(),
            fresh: Mutex::default(),
            metrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A container's exclusive CPUs.
    pub fn own(&self, uid: &str, container: &str) -> CpuSet {
        self.inner.held().state().of(uid, container).cloned().unwrap_or_default()
    }

    /// Containers of a pod that have exclusive CPUs.
    pub fn exclusive_of(&self, pod: &Pod) -> BTreeSet<String> {
        let held = self.inner.held();
        let Held::Static(cpus) = &*held else { return BTreeSet::new() };
        let own = pod.all_containers().filter(|container| cpus.is_exclusive(pod, container));
        own.map(|container| container.name.clone()).collect()
    }

    /// Whether a pod runs on exclusive CPUs: any of its containers, or, if CPUs are allocated to the pod, all of
    /// them.
    pub fn is_exclusive(&self, pod: &Pod) -> bool {
        let own = self.exclusive_of(pod);
        match self.inner.entries {
            Entries::Pods if pod_level_set(pod) => {
                pod.all_containers().all(|c| own.contains(&c.name))
            }
            Entries::Pods | Entries::Containers => !own.is_empty(),
        }
    }

    /// CPUs that can be allocated exclusively.
    pub fn allocatable(&self) -> CpuSet {
        match &*self.inner.held() {
            Held::None(_) => CpuSet::new(),
            Held::Static(cpus) => cpus.allocatable(),
        }
    }

    /// Runs a change and writes its file on a blocking thread; `None` under the policy `none`.
    async fn change<T, F>(&self, change: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut StaticCpus, &PlacementMetrics) -> T + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let work = move || {
            let mut held = inner.held();
            let Held::Static(cpus) = &mut *held else { return None };
            let before = cpus.state().clone();
            let result = change(cpus, &inner.metrics);
            if *cpus.state() != before {
                inner.file.write(&checkpoint::encode("static", cpus.state(), inner.entries));
                show(&inner.metrics, cpus, &before);
            }
            Some(result)
        };
        match sys::blocking::run(work).await {
            Ok(result) => result,
            Err(error) => {
                tracing::error!(err = %error, "CPU state was not changed");
                None
            }
        }
    }

    async fn keep_only(&self, active: &BTreeSet<PodUid>) {
        let active = active.clone();
        let stays = move |uid: &str| active.contains(&PodUid::from(uid));
        self.inner.applied().retain(|(uid, _), _| stays(uid));
        self.change(move |cpus, _| {
            let released = cpus.keep_only(&stays);
            if !released.is_empty() {
                tracing::info!(cpus = %released, "removed stale state of pods that are gone");
            }
        })
        .await;
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn applied(&self) -> MutexGuard<'_, BTreeMap<(String, String), CpuSet>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Updates the gauges. A NUMA node appears once CPUs of it have been allocated.
#[expect(clippy::cast_precision_loss, reason = "numbers of CPUs")]
fn show(metrics: &PlacementMetrics, cpus: &StaticCpus, before: &CpuState) {
    let exclusive = cpus.state().exclusive();
    metrics.cpu_shared.set(&[], cpus.available().len() as f64 * 1000.0);
    metrics.cpu_exclusive.set(&[], exclusive.len() as f64);
    let nodes_of = |held: &CpuSet| -> Vec<u32> {
        held.iter().filter_map(|cpu| cpus.topology().numa_of(cpu)).collect()
    };
    // Upstream never sets a node back to 0, which leaves a stale value.
    let left = nodes_of(&before.exclusive()).into_iter().map(|node| (node, 0));
    let mut per_numa: BTreeMap<u32, usize> = left.collect();
    for node in nodes_of(&exclusive) {
        *per_numa.entry(node).or_default() += 1;
    }
    for (node, count) in per_numa {
        metrics.cpu_per_numa.set(&[&node.to_string()], count as f64);
    }
}

fn allocated(
    cpus: &mut StaticCpus,
    metrics: &PlacementMetrics,
    (pod, container): (&Pod, &Container),
    affinity: Hint,
) -> Result<(), CpuRefusal> {
    if cpus.asked(pod, container) == 0 {
        return Ok(());
    }
    metrics.cpu_requests.inc(&[]);
    let result = cpus.allocate(pod, container, affinity.affinity);
    if result.is_err() {
        metrics.cpu_errors.inc(&[]);
        metrics.by_source(|m| m.allocation_errors.inc(&["cpu", "node"]));
    }
    if cpus.whole_cores() {
        let counted = if result.is_ok() { &metrics.aligned } else { &metrics.not_aligned };
        counted.inc(&["container", "physical_cpu"]);
    }
    if let Allocation::Taken { cpus, one_cache } = result? {
        if one_cache {
            metrics.aligned.inc(&["container", "uncore_cache"]);
        }
        metrics.by_source(|m| {
            m.allocations.inc(&["cpu", "node"]);
            m.assignments.inc(&["cpu", "node_exclusive"]);
        });
        let pod = pod.metadata.name.as_deref();
        tracing::info!(pod, containerName = container.name, %cpus, "Allocated exclusive CPUs");
    }
    Ok(())
}

/// Counts one error for the pod, but a request for each container with exclusive CPUs.
fn allocated_pod(
    cpus: &mut StaticCpus,
    metrics: &PlacementMetrics,
    pod: &Pod,
    affinity: Hint,
) -> Result<(), CpuRefusal> {
    let result = cpus.allocate_pod(pod, affinity.affinity).inspect_err(|_| {
        metrics.cpu_errors.inc(&[]);
        metrics.by_source(|m| m.allocation_errors.inc(&["cpu", "pod"]));
    })?;
    let PodAllocation::Taken { cpus, one_cache, exclusive, shared } = result else { return Ok(()) };
    if one_cache {
        metrics.aligned.inc(&["container", "uncore_cache"]);
    }
    for _ in 0..exclusive {
        metrics.cpu_requests.inc(&[]);
    }
    metrics.count_pod("cpu", exclusive, shared);
    let pod = pod.metadata.name.as_deref();
    tracing::info!(pod, %cpus, "Allocated CPUs to the pod");
    Ok(())
}

fn refused(refusal: &CpuRefusal) -> AllocateError {
    match refusal.reason() {
        Some(reason) => AllocateError::Refused { reason, message: refusal.to_string() },
        None => AllocateError::Failed(refusal.to_string()),
    }
}

#[async_trait]
impl Provider for Cpus {
    async fn forget_all_but(&self, active: &BTreeSet<PodUid>) {
        self.inner.fresh().retain(|uid| active.contains(uid));
        self.keep_only(active).await;
    }

    async fn hints(&self, pod: &Arc<Pod>, container: &Container) -> ResourceHints {
        match &*self.inner.held() {
            Held::None(_) => ResourceHints::new(),
            Held::Static(cpus) => cpus.hints(pod, container),
        }
    }

    async fn pod_hints(&self, pod: &Arc<Pod>) -> ResourceHints {
        match &*self.inner.held() {
            Held::None(_) => ResourceHints::new(),
            Held::Static(cpus) => cpus.pod_hints(pod),
        }
    }

    async fn allocate(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        self.inner.fresh().insert(pod.uid());
        let (pod, container) = (Arc::clone(pod), container.clone());
        let result = self
            .change(move |cpus, metrics| allocated(cpus, metrics, (&pod, &container), affinity))
            .await;
        result.unwrap_or(Ok(())).map_err(|refusal| refused(&refusal))
    }

    async fn allocate_pod(&self, pod: &Arc<Pod>, affinity: Hint) -> Result<(), AllocateError> {
        self.inner.fresh().insert(pod.uid());
        let pod = Arc::clone(pod);
        let result =
            self.change(move |cpus, metrics| allocated_pod(cpus, metrics, &pod, affinity)).await;
        result.unwrap_or(Ok(())).map_err(|refusal| refused(&refusal))
    }

    async fn extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        extras: &mut ContainerExtras,
    ) -> Result<(), PlacementError> {
        let held = self.inner.held();
        let cpus = held.state().of_or_shared(pod.uid_str(), &container.name);
        extras.cpuset_cpus = cpus.to_string();
        Ok(())
    }

    async fn created(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        _id: &str,
    ) -> Result<(), PlacementError> {
        let uid = pod.uid_str();
        let own = self.inner.held().state().of(uid, &container.name).cloned();
        if let Some(own) = own {
            self.inner.applied().insert((uid.to_owned(), container.name.clone()), own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
