//! Conditions (upstream: `status/generate.go`).

use super::{StatusView, is_running, terminated_code};
use crate::pod::{RestartRule, matching_rule, restarts_all, sandbox_need};
use crate::runtime::ContainerRunState;
use api::core::v1::{Container, ContainerStatus, PodCondition, PodSpec, PodStatus};
use api::pod::ContainerExt;

pub(super) const ALL_RESTARTING: &str = "AllContainersRestarting";
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";
const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    ALL_RESTARTING,
];

/// Whether only the kubelet writes this condition type.
pub fn is_owned(condition: &str) -> bool {
    OWNED.contains(&condition)
}

/// Whether the kubelet writes this condition type, alone or with others.
pub(super) fn is_ours(condition: &str) -> bool {
    is_owned(condition) || condition == DISRUPTION_TARGET
}

/// `observedGeneration` of status and conditions; absent for static pods.
pub(super) fn generation(view: &StatusView<'_>) -> Option<i64> {
    view.pod.metadata.generation.filter(|g| *g != 0 && view.gates.observed_generation)
}

/// All conditions in upstream's order.
pub(super) fn all(
    view: &StatusView<'_>,
    spec: &PodSpec,
    status: &PodStatus,
    api: &PodStatus,
    restarting: bool,
) -> Vec<PodCondition> {
    let generation = generation(view);
    let phase = status.phase.as_deref().unwrap_or_default();
    let mut list: Vec<PodCondition> =
        api.conditions.iter().flatten().filter(|c| !is_owned(&c.type_)).cloned().collect();
    if !view.terminal && view.gates.pod.resize {
        list.extend(view.resize.iter().cloned());
    }
    if let Some(target) = find(view.old, DISRUPTION_TARGET) {
        replace_or_push(&mut list, target.clone());
    }
    let make = |type_: &str, verdict: Verdict| PodCondition {
        type_: type_.to_owned(),
        status: if verdict.holds { "True" } else { "False" }.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: Some(verdict.message).filter(|m| !m.is_empty()),
        observed_generation: generation,
        ..PodCondition::default()
    };
    if view.gates.ready_to_start {
        let up = !sandbox_need(view.pod, view.runtime).create;
        list.push(make("PodReadyToStartContainers", Verdict::plain(up)));
    }
    let entries = Entries::of(status);
    let was_initialised = view.gates.pod.restart_all_containers
        && find(view.old, "Initialized").is_some_and(|c| c.status == "True");
    list.push(make("Initialized", initialised(spec, &entries, phase, was_initialised)));
    let ready = ready_condition(spec, status, &list, phase);
    list.push(make("Ready", ready));
    list.push(make("ContainersReady", containers_ready(spec, &entries, phase)));
    list.push(make("PodScheduled", Verdict::plain(true)));
    if view.gates.pod.restart_all_containers && restarts_all(view.pod) {
        let mut condition = make(ALL_RESTARTING, all_restarting(view, spec, phase, restarting));
        condition.observed_generation = None;
        list.push(condition);
    }
    list
}

/// The content of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// True or False.
    pub holds: bool,
    /// `reason`.
    pub reason: Option<&'static str>,
    /// `message`, empty for none.
    pub message: String,
}

impl Verdict {
    fn plain(holds: bool) -> Self {
        Self { holds, reason: None, message: String::new() }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { holds: false, reason: Some(reason), message }
    }
}

/// Whether the pod is ready, given its status and the conditions that readiness gates look at.
pub fn ready_condition(
    spec: &PodSpec,
    status: &PodStatus,
    conditions: &[PodCondition],
    phase: &str,
) -> Verdict {
    let containers = containers_ready(spec, &Entries::of(status), phase);
    if !containers.holds {
        return containers;
    }
    let missing: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match conditions.iter().find(|c| &c.type_ == name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if missing.is_empty() {
        Verdict::plain(true)
    } else {
        Verdict::no("ReadinessGatesNotReady", missing.join(", "))
    }
}

struct Entries<'a> {
    list: Vec<&'a ContainerStatus>,
}

impl<'a> Entries<'a> {
    fn of(status: &'a PodStatus) -> Self {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        Self { list: lists.into_iter().flatten().flatten().collect() }
    }

    fn find(&self, name: &str) -> Option<&'a ContainerStatus> {
        self.list.iter().copied().find(|e| e.name == name)
    }

    /// Names of containers without an entry, and of those whose entry does not satisfy the condition.
    fn split<'c>(
        &self,
        containers: impl Iterator<Item = &'c Container>,
        good: impl Fn(&Container, &ContainerStatus) -> bool,
    ) -> (Vec<&'c str>, Vec<&'c str>) {
        let mut unknown = Vec::new();
        let mut bad = Vec::new();
        for container in containers {
            match self.find(&container.name) {
                None => unknown.push(container.name.as_str()),
                Some(entry) if !good(container, entry) => bad.push(container.name.as_str()),
                Some(_) => {}
            }
        }
        (unknown, bad)
    }
}

fn containers_ready(spec: &PodSpec, entries: &Entries<'_>, phase: &str) -> Verdict {
    if entries.list.is_empty() {
        return Verdict::no("UnknownContainerStatuses", String::new());
    }
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.is_sidecar());
    let (unknown, unready) =
        entries.split(sidecars.chain(&spec.containers), |_, entry| entry.ready);
    match phase {
        "Succeeded" if unknown.is_empty() => Verdict::no("PodCompleted", String::new()),
        "Failed" => Verdict::no("PodFailed", String::new()),
        _ => match message(&unknown, &unready, "unready") {
            Some(text) => Verdict::no("ContainersNotReady", text),
            None => Verdict::plain(true),
        },
    }
}

fn initialised(spec: &PodSpec, entries: &Entries<'_>, phase: &str, was: bool) -> Verdict {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    if entries.list.is_empty() && !init.is_empty() {
        return Verdict::no("UnknownContainerStatuses", String::new());
    }
    let (unknown, incomplete) = entries.split(init.iter(), |container, entry| {
        if container.is_sidecar() { entry.started == Some(true) } else { entry.ready }
    });
    if phase == "Succeeded" && unknown.is_empty() {
        return Verdict { holds: true, reason: Some("PodCompleted"), message: String::new() };
    }
    let regular_ran = spec.containers.iter().filter_map(|c| entries.find(&c.name));
    if regular_ran.into_iter().any(|e| is_running(e) || terminated_code(e).is_some()) {
        return Verdict::plain(true);
    }
    match message(&unknown, &incomplete, "incomplete") {
        Some(text) if !was => Verdict::no("ContainersNotInitialized", text),
        _ => Verdict::plain(true),
    }
}

fn message(unknown: &[&str], bad: &[&str], word: &str) -> Option<String> {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: [{}]", unknown.join(" ")));
    }
    if !bad.is_empty() {
        parts.push(format!("containers with {word} status: [{}]", bad.join(" ")));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn all_restarting(view: &StatusView<'_>, spec: &PodSpec, phase: &str, restarting: bool) -> Verdict {
    match phase {
        "Succeeded" => return Verdict::no("PodCompleted", String::new()),
        "Failed" => return Verdict::no("PodFailed", String::new()),
        _ => {}
    }
    let mut names = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let some_left = names.any(|c| view.runtime.newest(&c.name).is_some());
    if !restarting || !some_left {
        return Verdict::plain(false);
    }
    Verdict {
        holds: true,
        reason: Some("RestartAllContainersStarted"),
        message: "container exited with restart policy rule".to_owned(),
    }
}

/// Whether an exit asked for all containers to be restarted (upstream: `ShouldAllContainersRestart`).
pub(super) fn all_should_restart(view: &StatusView<'_>, spec: &PodSpec) -> bool {
    if !view.gates.pod.restart_all_containers {
        return false;
    }
    if find(view.old, ALL_RESTARTING).is_some_and(|c| c.status == "True") {
        return true;
    }
    let old = Entries::of(view.old);
    spec.init_containers.iter().flatten().chain(&spec.containers).any(|container| {
        let Some(newest) = view.runtime.newest(&container.name) else { return false };
        if newest.state != ContainerRunState::Exited {
            return false;
        }
        let asks = |code| matching_rule(container, code) == Some(RestartRule::RestartAll);
        asks(newest.exit_code)
            || old.find(&container.name).and_then(terminated_code).is_some_and(asks)
    })
}

/// The condition of this type.
pub(super) fn find<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

/// Puts a condition in the place of the one of its type, or at the end.
pub(super) fn replace_or_push(list: &mut Vec<PodCondition>, condition: PodCondition) {
    match list.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(place) => *place = condition,
        None => list.push(condition),
    }
}
