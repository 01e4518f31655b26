//! The `static` policy: containers of Guaranteed pods that request whole CPUs get exclusive CPUs.
//!
//! Upstream: `cpumanager.staticPolicy`. CPUs of a pod's init containers are reused by its later containers, those of
//! sidecars are not.

use super::{CpuFault, CpuOptions, CpuState, CpuTopology, Level, TakeError, take};
use crate::resources::{QosClass, Side, is_guaranteed_alone, pod_level_set, qos_class, side_of};
use crate::topology::{Hint, NumaMask, PolicyKind, ResourceHints, masks_of};
use api::core::v1::{Container, Pod};
use api::pod::{ContainerExt, PodExt};
use std::collections::BTreeMap;
use units::{CpuSet, strconv};

/// Settings of the policy.
#[derive(Debug, Clone)]
pub struct CpuSetup {
    /// The machine.
    pub topology: CpuTopology,
    /// The policy's options, or their error, which is reported only if the reservation is valid.
    pub options: Result<CpuOptions, CpuFault>,
    /// How many CPUs are reserved for the system (in thousandths); `None` if none are.
    pub reserved_milli: Option<i64>,
    /// Which CPUs are reserved; empty if the policy is to choose them.
    pub reserved: CpuSet,
    /// How hints are merged.
    pub policy: PolicyKind,
    /// Gate PodLevelResources.
    pub pod_level_resources: bool,
    /// Gate PodLevelResourceManagers.
    pub pod_level_managers: bool,
}

/// Why a container gets no CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuRefusal {
    /// Not a number of whole cores; reason `SMTAlignmentError`.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    NotWholeCores {
        /// What was asked for.
        requested: usize,
        /// Threads of a core.
        per_core: usize,
    },
    /// Too few whole cores; reason `SMTAlignmentError`.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, \
         requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores {
        /// What was asked for.
        requested: usize,
        /// Threads of a core.
        per_core: usize,
        /// Threads of free cores.
        available: usize,
    },
    /// Sidecars take all CPUs of the pod that an init container would share; reason `EmptyPodSharedPoolError`.
    #[error("pod rejected, pod has shared init containers but no cpus available for them")]
    NothingForInit,
    /// Containers take all CPUs of the pod that others would share; reason `EmptyPodSharedPoolError`.
    #[error(
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for \
         shared containers"
    )]
    NothingToShare,
    /// Anything else.
    #[error(transparent)]
    Take(#[from] TakeError),
}

impl CpuRefusal {
    /// The rejection's own reason, if it has one.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NotWholeCores { .. } | Self::TooFewCores { .. } => Some("SMTAlignmentError"),
            Self::NothingForInit | Self::NothingToShare => Some("EmptyPodSharedPoolError"),
            Self::Take(_) => None,
        }
    }
}

/// The result of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allocation {
    /// The container shares CPUs with others.
    Shared,
    /// It already had its CPUs.
    Kept(CpuSet),
    /// It was allocated CPUs.
    Taken {
        /// The CPUs.
        cpus: CpuSet,
        /// They share one cache.
        one_cache: bool,
    },
}

/// The policy and its allocations.
#[derive(Debug, Clone)]
pub struct StaticCpus {
    pub(super) topology: CpuTopology,
    pub(super) options: CpuOptions,
    pub(super) pod_level_resources: bool,
    pub(super) pod_level_managers: bool,
    reserved: CpuSet,
    /// Reserved CPUs and their siblings.
    reserved_cores: CpuSet,
    pub(super) state: CpuState,
    /// CPUs of init containers of the pod that was allocated for last.
    reusable: (String, CpuSet),
}

impl StaticCpus {
    /// The policy for a machine, without allocations.
    pub fn new(setup: CpuSetup) -> Result<Self, CpuFault> {
        let CpuSetup { topology, options, policy, pod_level_resources, pod_level_managers, .. } =
            setup;
        if topology.cpus.is_empty() {
            return Err(CpuFault("could not detect number of cpus".to_owned()));
        }
        let milli = setup.reserved_milli.ok_or_else(|| {
            CpuFault(
                "[cpumanager] unable to determine reserved CPU resources for static policy"
                    .to_owned(),
            )
        })?;
        if milli == 0 {
            return Err(CpuFault(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be \
                 greater than zero"
                    .to_owned(),
            ));
        }
        let fault = |text: String| CpuFault(format!("new static policy error: {text}"));
        let options = options.map_err(|e| fault(e.0))?;
        options.fit(&topology, policy).map_err(|e| fault(e.0))?;
        let count = usize::try_from(milli.div_euclid(1000) + i64::from(milli % 1000 > 0))
            .unwrap_or_default();
        let reserved = if setup.reserved.is_empty() {
            take(&topology, &topology.all(), count, options).unwrap_or_default()
        } else {
            setup.reserved
        };
        if reserved.len() != count {
            return Err(fault(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not \
                 equal {count})"
            )));
        }
        let mut reserved_cores = CpuSet::new();
        for cpu in reserved.iter() {
            let Some(info) = topology.cpus.get(&cpu) else {
                return Err(fault(format!(
                    "[cpumanager] unable to build the reserved physical CPUs from the reserved set: \
                     unknown CPU ID: {cpu}"
                )));
            };
            reserved_cores = reserved_cores.union(&topology.of(Level::Core, info.core));
        }
        let (state, reusable) = (CpuState::default(), (String::new(), CpuSet::new()));
        Ok(Self {
            topology,
            options,
            pod_level_resources,
            pod_level_managers,
            reserved,
            reserved_cores,
            state,
            reusable,
        })
    }

    /// Restores the state of a checkpoint; an empty state means a new start.
    pub fn restore(&mut self, state: CpuState) -> Result<(), CpuFault> {
        let mut all = self.topology.all();
        if self.options.strict_reservation {
            all = all.difference(&self.reserved);
        }
        if state.shared.is_empty() {
            if !state.own.is_empty() {
                return Err(CpuFault("default cpuset cannot be empty".to_owned()));
            }
            self.state = CpuState { shared: all, ..CpuState::default() };
            return Ok(());
        }
        self.check(&state, &all)?;
        self.state = state;
        Ok(())
    }

    fn check(&self, state: &CpuState, all: &CpuSet) -> Result<(), CpuFault> {
        let shown = |cpus: &CpuSet| strconv::quote(&cpus.to_string());
        let inside = self.reserved.intersection(&state.shared);
        if self.options.strict_reservation && !inside.is_empty() {
            return Err(CpuFault(format!(
                "some of strictly reserved cpus: {} are present in defaultCpuSet: {}",
                shown(&inside),
                shown(&state.shared)
            )));
        }
        if !self.options.strict_reservation && inside != self.reserved {
            return Err(CpuFault(format!(
                "not all reserved cpus: {} are present in defaultCpuSet: {}",
                shown(&self.reserved),
                shown(&state.shared)
            )));
        }
        for (uid, containers) in &state.own {
            for (container, cpus) in containers {
                if !state.shared.intersection(cpus).is_empty() {
                    return Err(CpuFault(format!(
                        "pod: {uid}, container: {container} cpuset: {} overlaps with default cpuset {}",
                        shown(cpus),
                        shown(&state.shared)
                    )));
                }
            }
        }
        let known = state.shared.union(&state.exclusive());
        if known != *all {
            return Err(CpuFault(format!(
                "current set of available CPUs {} doesn't match with CPUs in state {}",
                shown(all),
                shown(&known)
            )));
        }
        Ok(())
    }

    /// The present assignments.
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// The machine.
    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Whether only whole cores are given out.
    pub fn whole_cores(&self) -> bool {
        self.options.full_pcpus_only
    }

    /// CPUs that can be allocated exclusively.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().difference(&self.reserved)
    }

    /// CPUs that are free for exclusive allocation now.
    pub fn available(&self) -> CpuSet {
        self.state.shared.difference(&self.reserved)
    }

    /// How many exclusive CPUs a container requests.
    pub fn asked(&self, pod: &Pod, container: &Container) -> usize {
        let alone = !pod_level_set(pod) || (self.by_pod(pod) && is_guaranteed_alone(container));
        if qos_class(pod, self.pod_level_resources) != QosClass::Guaranteed || !alone {
            return 0;
        }
        let requests = side_of(container.resources.as_ref(), Side::Requests);
        let Some(cpu) = requests.get("cpu") else { return 0 };
        if cpu.value().saturating_mul(1000) != cpu.milli_value() {
            return 0;
        }
        usize::try_from(cpu.value()).unwrap_or_default()
    }

    /// Allocates a container's CPUs.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        affinity: Option<NumaMask>,
    ) -> Result<Allocation, CpuRefusal> {
        let count = self.asked(pod, container);
        if count == 0 {
            return Ok(Allocation::Shared);
        }
        self.check_cores(count)?;
        let uid = pod.uid_str();
        if let Some(cpus) = self.state.of(uid, &container.name).cloned() {
            self.note_reusable(pod, container, &cpus);
            return Ok(Allocation::Kept(cpus));
        }
        let free = self.available().union(&self.reusable_of(uid));
        let cpus = self.choose(&free, count, affinity)?;
        self.state.shared = self.state.shared.difference(&cpus);
        self.state.set(uid, &container.name, cpus.clone());
        self.note_reusable(pod, container, &cpus);
        let one_cache = self.topology.shares_uncore(&cpus);
        Ok(Allocation::Taken { cpus, one_cache })
    }

    pub(super) fn check_cores(&self, requested: usize) -> Result<(), CpuRefusal> {
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let per_core = self.topology.per_core();
        if per_core > 0 && !requested.is_multiple_of(per_core) {
            return Err(CpuRefusal::NotWholeCores { requested, per_core });
        }
        let available = self.state.shared.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(CpuRefusal::TooFewCores { requested, per_core, available });
        }
        Ok(())
    }

    /// Chooses CPUs from the nodes of the affinity first, the rest from anywhere.
    pub(super) fn choose(
        &self,
        free: &CpuSet,
        count: usize,
        affinity: Option<NumaMask>,
    ) -> Result<CpuSet, TakeError> {
        let mut chosen = CpuSet::new();
        if let Some(mask) = affinity {
            let aligned = self.aligned(mask, free);
            chosen = take(&self.topology, &aligned, count.min(aligned.len()), self.options)?;
        }
        let rest = free.difference(&chosen);
        let others = take(&self.topology, &rest, count.saturating_sub(chosen.len()), self.options)?;
        Ok(chosen.union(&others))
    }

    fn aligned(&self, mask: NumaMask, free: &CpuSet) -> CpuSet {
        if self.options.align_by_socket {
            let sockets = self.topology.sockets_of(mask.nodes());
            let inside = |cpu: &u32| {
                self.topology.cpus.get(cpu).is_some_and(|info| sockets.contains(&info.socket))
            };
            return free.iter().filter(inside).collect();
        }
        let inside =
            |cpu: &u32| self.topology.numa_of(*cpu).is_some_and(|node| mask.contains(node));
        free.iter().filter(inside).collect()
    }

    fn reusable_of(&self, uid: &str) -> CpuSet {
        let (owner, cpus) = &self.reusable;
        if owner == uid { cpus.clone() } else { CpuSet::new() }
    }

    fn note_reusable(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let uid = pod.uid_str();
        let before = self.reusable_of(uid);
        let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let ends = init.filter(|c| !c.is_sidecar()).any(|c| c.name == container.name);
        let after = if ends { before.union(cpus) } else { before.difference(cpus) };
        self.reusable = (uid.to_owned(), after);
    }

    /// Releases a container's CPUs that no other container of the pod uses; `None` if it had none.
    pub fn remove(&mut self, uid: &str, container: &str) -> Option<CpuSet> {
        let held = self.state.remove(uid, container)?;
        if self.state.pods.contains_key(uid) {
            // The pod's CPUs stay together until its last container is gone.
            let released = match self.state.own.contains_key(uid) {
                true => CpuSet::new(),
                false => self.state.pods.remove(uid).unwrap_or_default(),
            };
            self.state.shared = self.state.shared.union(&released);
            return Some(released);
        }
        let siblings = self.state.own.get(uid).into_iter().flat_map(BTreeMap::values);
        let in_use: CpuSet = siblings.flat_map(CpuSet::iter).collect();
        let released = held.difference(&in_use);
        self.state.shared = self.state.shared.union(&released);
        Some(released)
    }

    /// Releases the CPUs of pods for which `stays` is false; returns the released CPUs.
    pub fn keep_only(&mut self, stays: &dyn Fn(&str) -> bool) -> CpuSet {
        let held = self.state.own.iter().flat_map(|(uid, containers)| {
            containers.keys().map(|container| (uid.clone(), container.clone()))
        });
        let stale: Vec<(String, String)> = held.filter(|(uid, _)| !stays(uid)).collect();
        let mut released = CpuSet::new();
        for (uid, container) in stale {
            released = released.union(&self.remove(&uid, &container).unwrap_or_default());
        }
        released
    }

    /// Topology hints for a container's CPUs.
    pub fn hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        let asked = self.asked(pod, container);
        if asked == 0 {
            return ResourceHints::new();
        }
        let uid = pod.uid_str();
        match self.state.of(uid, &container.name) {
            Some(held) if held.len() != asked => cpu_hints(Vec::new()),
            Some(held) => cpu_hints(self.hints_from(held, &CpuSet::new(), asked)),
            None => cpu_hints(self.hints_from(&self.available(), &self.reusable_of(uid), asked)),
        }
    }

    /// Topology hints for the CPUs of a pod as a whole.
    pub fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        let asked = self.asked_by_pod(pod);
        if asked == 0 {
            return ResourceHints::new();
        }
        let uid = pod.uid_str();
        if self.by_pod(pod) {
            let free = self.available();
            return match self.state.pods.get(uid) {
                _ if self.check_shares(pod).is_err() => cpu_hints(Vec::new()),
                Some(held) if held.len() != asked => cpu_hints(Vec::new()),
                Some(held) => cpu_hints(self.hints_from(held, &CpuSet::new(), asked)),
                None => cpu_hints(self.hints_from(&free, &self.reusable_of(uid), asked)),
            };
        }
        let mut assigned = CpuSet::new();
        for container in pod.init_containers().chain(pod.regular_containers()) {
            let Some(held) = self.state.of(uid, &container.name) else { continue };
            if held.len() != self.asked(pod, container) {
                return cpu_hints(Vec::new());
            }
            assigned = assigned.union(held);
        }
        if assigned.len() == asked {
            return cpu_hints(self.hints_from(&assigned, &CpuSet::new(), asked));
        }
        let reusable = self.reusable_of(uid).union(&assigned);
        cpu_hints(self.hints_from(&self.available(), &reusable, asked))
    }

    fn asked_by_pod(&self, pod: &Pod) -> usize {
        if self.by_pod(pod) {
            return self.asked_for_pod(pod);
        }
        let (mut at_init, mut sidecars) = (0, 0);
        for container in pod.init_containers() {
            let asked = self.asked(pod, container);
            if container.is_sidecar() {
                sidecars += asked;
            } else {
                at_init = at_init.max(sidecars + asked);
            }
        }
        let regular: usize =
            pod.regular_containers().map(|container| self.asked(pod, container)).sum();
        at_init.max(regular + sidecars)
    }

    fn hints_from(&self, available: &CpuSet, reusable: &CpuSet, asked: usize) -> Vec<Hint> {
        let nodes = self.topology.numa_nodes();
        let count_in = |cpus: &CpuSet, mask: NumaMask| {
            let nodes = cpus.iter().filter_map(|cpu| self.topology.numa_of(cpu));
            nodes.filter(|node| mask.contains(*node)).count()
        };
        let all = self.topology.all();
        let mut narrowest = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut hints = Vec::new();
        for mask in masks_of(&nodes) {
            if count_in(&all, mask) >= asked {
                narrowest = narrowest.min(mask.count());
            }
            let reused = count_in(reusable, mask);
            if reused == reusable.len() && reused + count_in(available, mask) >= asked {
                hints.push(Hint::new(mask, false));
            }
        }
        for hint in &mut hints {
            let mask = hint.affinity.unwrap_or_default();
            hint.preferred = mask.count() == narrowest
                || (self.options.align_by_socket && self.fills_sockets(mask, narrowest));
        }
        hints
    }

    /// Whether the mask spans no more sockets than the narrowest one.
    fn fills_sockets(&self, mask: NumaMask, narrowest: u32) -> bool {
        let nodes = self.topology.ids(Level::Numa).len();
        let per_socket = nodes.checked_div(self.topology.sockets).unwrap_or_default();
        if per_socket == 0 {
            return false;
        }
        let fewest = usize::try_from(narrowest).unwrap_or_default().div_ceil(per_socket);
        self.topology.sockets_of(mask.nodes()).len() == fewest
    }
}

fn cpu_hints(hints: Vec<Hint>) -> ResourceHints {
    ResourceHints::from([("cpu".to_owned(), Some(hints))])
}

#[cfg(test)]
mod tests;
