//! The status of a pod in the API.
//!
//! Owns: the status computed from the runtime's view and the previous status ([`generate`]), what the cache accepts
//! ([`cache`]), how it is merged with the API's status ([`merge`]) and the smallest patch ([`patch`]).
//!
//! Promises: a terminal phase is never left; conditions of others pass through; the same inputs give the same
//! status, so an unchanged pod costs no write.

pub mod cache;
mod conditions;
mod containers;
pub mod merge;
pub mod patch;
mod phase;
pub mod resize;
mod resources;
#[cfg(test)]
mod tests;

pub use conditions::{is_owned, ready_condition};
pub use resources::PodCgroupAmounts;

use crate::pod::{Actuated, PodGates};
use crate::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use crate::resources::{Side, of_pod, qos_class, to_api};
use crate::runtime::RuntimePod;
use api::core::v1::{
    Container, ContainerState, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec,
    PodStatus, ResourceRequirements, ResourceStatus,
};
use api::ids::ContainerId;
use api::pod::{ContainerExt, PodStatusExt, is_terminal_phase};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Reason of a container whose exit was not observed.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Reason of containers that end because all are restarted.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Reason of a pod that waits for its devices before admission.
pub const WAITING_FOR_DEVICES: &str = "WaitingForDevices";

/// Feature gates that change the status, resolved once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusGates {
    /// Gates shared with the plan.
    pub pod: PodGates,
    /// PodLevelResources.
    pub pod_level_resources: bool,
    /// ContainerStopSignals.
    pub stop_signals: bool,
    /// SupplementalGroupsPolicy: show the effective user.
    pub user: bool,
    /// RecursiveReadOnlyMounts: show volume mounts.
    pub volume_mounts: bool,
    /// PodReadyToStartContainersCondition.
    pub ready_to_start: bool,
    /// ChangeContainerStatusOnKubeletRestart.
    pub change_on_restart: bool,
    /// PodObservedGenerationTracking.
    pub observed_generation: bool,
}

impl Default for StatusGates {
    fn default() -> Self {
        Self {
            pod: PodGates::default(),
            pod_level_resources: true,
            stop_signals: false,
            user: true,
            volume_mounts: true,
            ready_to_start: true,
            change_on_restart: false,
            observed_generation: true,
        }
    }
}

/// Facts about the node and its runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Prefix of container ids, e.g. `containerd`.
    pub runtime_name: String,
    /// Addresses of the node, the primary first, at most one per family; empty if unknown or without an API.
    pub host_ips: Vec<IpAddr>,
    /// The node's primary family is IPv6.
    pub ipv6_first: bool,
    /// The runtime handler of this pod supports recursive read-only mounts.
    pub recursive_read_only: bool,
}

/// Why a container could not be started last time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// Waiting reason.
    pub reason: String,
    /// Waiting message.
    pub message: String,
}

/// Everything a status depends on.
#[derive(Debug, Clone, Copy)]
pub struct StatusView<'a> {
    /// The pod with its allocated resources; its `status` is what the API has.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub runtime: &'a RuntimePod,
    /// The status last generated, else the mirror pod's, else the API's.
    pub old: &'a PodStatus,
    /// Settled probe results.
    pub probes: &'a ProbeResults,
    /// Last start errors by container name.
    pub start_errors: &'a BTreeMap<String, StartError>,
    /// Resources last applied.
    pub actuated: &'a Actuated,
    /// The values of the pod's cgroup; `None` if they were not read: then the last applied ones are shown.
    pub cgroup: Option<PodCgroupAmounts>,
    /// Resize conditions in force.
    pub resize: &'a [PodCondition],
    /// Health of devices and claims by container name.
    pub health: &'a BTreeMap<String, Vec<ResourceStatus>>,
    /// All containers were stopped for good.
    pub terminal: bool,
    /// It was evicted or preempted: its phase is Failed, whatever its containers' exit codes.
    pub evicted: bool,
    /// The node.
    pub node: &'a NodeFacts,
    /// Feature gates.
    pub gates: &'a StatusGates,
}

/// A status and what else follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// The status.
    pub status: PodStatus,
    /// All containers are to be restarted (input of the plan).
    pub restart_all: bool,
    /// The active deadline is over: post the Normal event `DeadlineExceeded`.
    pub deadline_exceeded: bool,
    /// Containers whose readiness probe should run at once.
    pub probe_now: Vec<ContainerId>,
}

/// Message of the active deadline, in status and event.
pub const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Computes the status (upstream: `generateAPIPodStatus`).
pub fn generate(view: &StatusView<'_>, now: Timestamp) -> Generated {
    let empty = PodSpec::default();
    let spec = view.pod.spec.as_ref().unwrap_or(&empty);
    let api = view.pod.status.clone().unwrap_or_default();
    let restarting = conditions::all_should_restart(view, spec);

    let mut status = PodStatus {
        qos_class: Some(qos_class(view.pod, view.gates.pod_level_resources).as_str().to_owned()),
        observed_generation: conditions::generation(view),
        ..PodStatus::default()
    };
    set_pod_ips(&mut status, &view.runtime.ips, view.node.ipv6_first);
    if status.pod_ip.is_none() && view.old.is_terminal() {
        // The network of a terminal pod is gone, but its address is kept in the status. Upstream keeps it until
        // the agent is restarted.
        status.pod_ip.clone_from(&view.old.pod_ip);
        status.pod_ips.clone_from(&view.old.pod_ips);
    }
    let lists = containers::all(view, spec, restarting);
    status.container_statuses = non_empty(lists.regular);
    status.init_container_statuses = non_empty(lists.init);
    status.ephemeral_container_statuses = non_empty(lists.ephemeral);
    if view.gates.pod.resize_pod_level {
        status.resources = Some(resources::pod_level(view, spec, &api));
        let requests = of_pod(view.pod, Side::Requests, resources::counting(view));
        status.allocated_resources = Some(to_api(&requests)).filter(|r| !r.is_empty());
    }

    // The phase still sees the inherited `started`; probe results are applied afterwards, as upstream does.
    let computed = if view.evicted { "Failed" } else { phase::of(view, spec, &status) };
    let deadline_exceeded = set_phase(&mut status, view, spec, &api, computed, now);

    let probe_now = set_probe_flags(view, spec, &mut status);
    for entry in status.container_statuses.iter_mut().flatten() {
        if let Some(health) = view.health.get(&entry.name) {
            entry.allocated_resources_status = Some(health.clone());
        }
    }
    let list = conditions::all(view, spec, &status, &api, restarting);
    let restart_all =
        list.iter().any(|c| c.type_ == conditions::ALL_RESTARTING && c.status == "True");
    status.conditions = Some(list);
    set_host_ips(&mut status, view, spec);
    Generated { status, restart_all, deadline_exceeded, probe_now }
}

/// The status of a pod refused by admission: nothing else of an earlier status stays.
pub fn rejected(pod: &Pod, reason: &str, message: &str, gates: &StatusGates) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(qos_class(pod, gates.pod_level_resources).as_str().to_owned()),
        observed_generation: pod
            .metadata
            .generation
            .filter(|g| *g != 0 && gates.observed_generation),
        ..PodStatus::default()
    }
}

/// The status of a pod that waits for admission: the previous status, but not ready.
pub fn held_back(previous: &PodStatus, message: &str) -> PodStatus {
    let reason = WAITING_FOR_DEVICES;
    let mut status = previous.clone();
    status.phase.get_or_insert_with(|| "Pending".to_owned());
    status.reason = Some(reason.to_owned());
    status.message = Some(message.to_owned());
    let list = status.conditions.get_or_insert_default();
    for type_ in ["Ready", "ContainersReady"] {
        let condition = PodCondition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..PodCondition::default()
        };
        match list.iter_mut().find(|known| known.type_ == type_) {
            Some(known) => *known = condition,
            None => list.push(condition),
        }
    }
    status
}

/// Puts a kill's reason on a status before the containers are stopped.
pub fn apply_override(status: &mut PodStatus, wish: &crate::pod::life::StatusOverride) {
    if !(wish.keep_succeeded && status.phase.as_deref() == Some("Succeeded")) {
        status.phase = Some("Failed".to_owned());
    }
    status.reason = Some(wish.reason.clone());
    status.message = Some(wish.message.clone());
    if let Some(condition) = &wish.condition {
        let list = status.conditions.get_or_insert_default();
        list.retain(|c| c.type_ != condition.type_);
        list.push(condition.clone());
    }
}

/// Whether the active deadline of a pod that started then is over.
pub fn deadline_is_over(pod: &Pod, started: Option<Timestamp>, now: Timestamp) -> bool {
    let deadline = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    let (Some(deadline), Some(started)) = (deadline, started) else { return false };
    now.duration_since(started).as_secs() >= deadline
}

/// Sets phase, reason and message; says whether the active deadline is over.
fn set_phase(
    status: &mut PodStatus,
    view: &StatusView<'_>,
    spec: &PodSpec,
    api: &PodStatus,
    computed: &str,
    now: Timestamp,
) -> bool {
    let old = view.old;
    let mut phase = computed.to_owned();
    if !is_terminal_phase(Some(computed)) {
        let kept = [old, api].into_iter().find(|s| s.is_terminal());
        if let Some(kept) = kept.and_then(|s| s.phase.clone()) {
            phase = kept;
        }
    }
    if old.phase.as_deref() == Some(phase.as_str()) {
        // A pod that has a worker waits for its devices no longer.
        let waited = |s: &PodStatus| s.reason.as_deref() == Some(WAITING_FOR_DEVICES);
        let kept: Vec<&PodStatus> = [old, api].into_iter().filter(|s| !waited(s)).collect();
        let pick = |of: fn(&PodStatus) -> Option<&String>| {
            kept.iter().find_map(|s| of(s).filter(|t| !t.is_empty()).cloned())
        };
        status.reason = pick(|s| s.reason.as_ref());
        status.message = pick(|s| s.message.as_ref());
    }
    let started = old.start_time.as_ref().map(|t| t.0);
    let over = spec.active_deadline_seconds.is_some() && deadline_is_over(view.pod, started, now);
    if over {
        "Failed".clone_into(&mut phase);
        status.reason = Some("DeadlineExceeded".to_owned());
        status.message = Some(DEADLINE_MESSAGE.to_owned());
    }
    if let Some(final_phase) = api.phase.as_ref().filter(|p| is_terminal_phase(Some(p))) {
        phase.clone_from(final_phase);
    }
    status.phase = Some(phase);
    over
}

/// Sets `started` and `ready`; the readiness probes that should run at once.
fn set_probe_flags(
    view: &StatusView<'_>,
    spec: &PodSpec,
    status: &mut PodStatus,
) -> Vec<ContainerId> {
    let mut probe_now = Vec::new();
    for entry in status.container_statuses.iter_mut().flatten() {
        let container = spec.containers.iter().find(|c| c.name == entry.name);
        let started = is_started(view, entry, container);
        entry.started = Some(started);
        if started {
            entry.ready = is_ready(view, entry, container, &mut probe_now);
        }
    }
    for entry in status.init_container_statuses.iter_mut().flatten() {
        let container = spec.init_containers.iter().flatten().find(|c| c.name == entry.name);
        let started = is_started(view, entry, container);
        entry.started = Some(started);
        if container.is_some_and(ContainerExt::is_sidecar) {
            if started {
                entry.ready = is_ready(view, entry, container, &mut probe_now);
            }
        } else if terminated_code(entry) == Some(0) {
            entry.ready = true;
        }
    }
    probe_now
}

fn is_started(view: &StatusView<'_>, entry: &ContainerStatus, spec: Option<&Container>) -> bool {
    if !is_running(entry) {
        return false;
    }
    if let Some(outcome) = probe_result(view, entry, ProbeKind::Startup) {
        return outcome == ProbeOutcome::Success;
    }
    if !view.gates.change_on_restart && entry.started == Some(true) {
        return true;
    }
    spec.is_none_or(|c| c.startup_probe.is_none())
}

fn is_ready(
    view: &StatusView<'_>,
    entry: &ContainerStatus,
    spec: Option<&Container>,
    probe_now: &mut Vec<ContainerId>,
) -> bool {
    let result = probe_result(view, entry, ProbeKind::Readiness);
    if result == Some(ProbeOutcome::Success) {
        return true;
    }
    if spec.is_none_or(|c| c.readiness_probe.is_none()) {
        return true;
    }
    probe_now.extend(bare_id(entry));
    // A container without a probe result of this agent keeps its last published readiness, which an earlier run of
    // the agent determined. Upstream does so only for containers that started well before the agent.
    !view.gates.change_on_restart && result.is_none() && published_ready(view, entry)
}

fn published_ready(view: &StatusView<'_>, entry: &ContainerStatus) -> bool {
    let lists = [&view.old.container_statuses, &view.old.init_container_statuses];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .any(|old| old.name == entry.name && old.container_id == entry.container_id && old.ready)
}

fn probe_result(
    view: &StatusView<'_>,
    entry: &ContainerStatus,
    kind: ProbeKind,
) -> Option<ProbeOutcome> {
    view.probes.get(&bare_id(entry)?, kind)
}

/// The container id without the runtime's prefix.
pub fn bare_id(entry: &ContainerStatus) -> Option<ContainerId> {
    let (_, id) = entry.container_id.as_deref()?.split_once("://")?;
    Some(ContainerId::from(id))
}

/// The restart count of the next instance of an app container according to the published status, for when the
/// runtime and the logs have lost the earlier ones. It is reset by a new run of init containers, and by restarting
/// all containers.
pub fn next_restart_count(shown: &PodStatus, container: &str) -> u32 {
    let mut entries = shown.container_statuses.iter().flatten();
    let Some(entry) = entries.find(|entry| entry.name == container) else { return 0 };
    let ended = [&entry.state, &entry.last_state]
        .into_iter()
        .find_map(|state| state.as_ref()?.terminated.as_ref());
    let count = u32::try_from(entry.restart_count).unwrap_or_default();
    match ended.map(|ended| ended.reason.as_deref()) {
        Some(Some(RESTARTING_ALL)) => 0,
        // One that was lost while it ran has been counted already; one without an exit is not counted.
        Some(Some(CONTAINER_STATUS_UNKNOWN)) | None => count,
        Some(_) => count.saturating_add(1),
    }
}

fn is_running(entry: &ContainerStatus) -> bool {
    entry.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn terminated_code(entry: &ContainerStatus) -> Option<i32> {
    Some(entry.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn is_empty_state(state: Option<&ContainerState>) -> bool {
    state.is_none_or(|s| s.running.is_none() && s.waiting.is_none() && s.terminated.is_none())
}

/// Keeps at most one IP per family, the node's primary family first.
fn set_pod_ips(status: &mut PodStatus, ips: &[String], ipv6_first: bool) {
    let parsed: Vec<IpAddr> =
        ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect();
    let chosen: Vec<PodIP> = [ipv6_first, !ipv6_first]
        .into_iter()
        .filter_map(|v6| parsed.iter().find(|ip| ip.is_ipv6() == v6))
        .map(|ip| PodIP { ip: ip.to_string() })
        .collect();
    status.pod_ip = chosen.first().map(|ip| ip.ip.clone());
    status.pod_ips = non_empty(chosen);
}

fn set_host_ips(status: &mut PodStatus, view: &StatusView<'_>, spec: &PodSpec) {
    let ips = &view.node.host_ips;
    let Some(first) = ips.first() else { return };
    status.host_ip = Some(first.to_string());
    status.host_ips = Some(ips.iter().take(2).map(|ip| HostIP { ip: ip.to_string() }).collect());
    if spec.host_network != Some(true) {
        return;
    }
    if status.pod_ip.is_none() {
        status.pod_ip = Some(first.to_string());
        status.pod_ips = Some(vec![PodIP { ip: first.to_string() }]);
    }
    let list = status.pod_ips.get_or_insert_default();
    if let (Some(second), [only]) = (ips.get(1), list.as_slice())
        && only.ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() != second.is_ipv6())
    {
        list.push(PodIP { ip: second.to_string() });
    }
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|l| !l.is_empty())
}

fn requirements(
    limits: crate::resources::Amounts,
    requests: crate::resources::Amounts,
) -> ResourceRequirements {
    ResourceRequirements {
        limits: Some(to_api(&limits)).filter(|l| !l.is_empty()),
        requests: Some(to_api(&requests)).filter(|r| !r.is_empty()),
        ..ResourceRequirements::default()
    }
}
