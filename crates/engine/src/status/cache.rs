//! What the status cache accepts (upstream: `updateStatusInternal`, `TerminatePod`).
//!
//! Promises: an update with an illegal container state transition is rejected as a whole; times are whole seconds;
//! equal statuses do not count as new versions.

use super::conditions::{find, is_ours};
use super::containers::{NOT_LOCATED, terminated};
use super::{CONTAINER_STATUS_UNKNOWN, StatusGates};
use crate::pod::{restartable, restarts_all};
use api::core::v1::{
    Container, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use api::machinery::apis::meta::v1::Time;
use api::pod::{ContainerExt, PodExt, PodStatusExt};
use jiff::Timestamp;
use std::sync::Arc;

/// Bytes that all termination messages of a pod may have together.
const MESSAGE_BYTES: usize = 12 * 1024;
/// Conditions whose transition time is kept while their status stays.
const TIMED: [&str; 7] = [
    "ContainersReady",
    "Ready",
    "Initialized",
    "PodReadyToStartContainers",
    "PodScheduled",
    "DisruptionTarget",
    "AllContainersRestarting",
];

/// A status as the cache holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// The status.
    pub status: Arc<PodStatus>,
    /// Grows with every change.
    pub version: u64,
    /// Nothing of the pod is left on the machine.
    pub finished: bool,
    /// When the pod's first status was cached.
    pub since: Timestamp,
}

/// Options of an update of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offer {
    /// A new version even when nothing changed.
    pub force: bool,
    /// Nothing of the pod is left on the machine.
    pub finished: bool,
}

/// Which list a container is in, as the metric of terminated containers names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    /// Regular.
    Container,
    /// Init.
    InitContainer,
    /// Ephemeral.
    EphemeralContainer,
}

impl ListKind {
    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::InitContainer => "init_container",
            Self::EphemeralContainer => "ephemeral_container",
        }
    }
}

/// A container that ended with this status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewlyTerminated {
    /// Its list.
    pub kind: ListKind,
    /// Its exit code.
    pub exit_code: i32,
    /// The reason.
    pub reason: String,
}

/// The result of an update.
#[derive(Debug, Clone, PartialEq)]
pub enum Taken {
    /// It is the cache's new content.
    Changed {
        /// The new content.
        cached: Cached,
        /// Containers that ended with it.
        terminated: Vec<NewlyTerminated>,
    },
    /// No field that the kubelet owns changed.
    Same {
        /// Containers that ended with it.
        terminated: Vec<NewlyTerminated>,
    },
    /// A terminated container would be running again: the whole update is dropped.
    Illegal {
        /// Why.
        message: String,
    },
}

/// Updates the cache with a status. `before` is the cache's content; `fallback` is used when there is none: the mirror
/// pod's status, else the API's.
pub fn take(
    pod: &Pod,
    before: Option<&Cached>,
    fallback: &PodStatus,
    mut status: PodStatus,
    offer: Offer,
    gates: &StatusGates,
    now: Timestamp,
) -> Taken {
    let old = before.map_or(fallback, |c| c.status.as_ref());
    let finished = offer.finished || (!pod.is_static() && before.is_some_and(|c| c.finished));
    if let Err(message) = check_transitions(pod, old, &status, gates) {
        return Taken::Illegal { message };
    }
    for type_ in TIMED {
        set_transition_time(&mut status, old, type_, now);
    }
    status.start_time =
        old.start_time.clone().or_else(|| status.start_time.take()).or(Some(Time(now)));
    if old.observed_generation > status.observed_generation {
        status.observed_generation = old.observed_generation;
    }
    normalise(pod, &mut status);
    let terminated = newly_terminated(old, &status);
    if !offer.force && before.is_some_and(|c| equal(&c.status, &status)) {
        return Taken::Same { terminated };
    }
    let cached = Cached {
        status: Arc::new(status),
        version: before.map_or(0, |c| c.version).saturating_add(1),
        finished,
        since: before.map_or(now, |c| c.since),
    };
    Taken::Changed { cached, terminated }
}

/// The last status of a pod: containers without an exit count as failed, the phase becomes terminal.
pub fn final_status(pod: &Pod, old: &PodStatus) -> PodStatus {
    let mut status = old.clone();
    let lost = || Some(terminated(137, CONTAINER_STATUS_UNKNOWN, NOT_LOCATED));
    let ended =
        |entry: &ContainerStatus| entry.state.as_ref().is_some_and(|s| s.terminated.is_some());
    // Whether a container started is taken from the cached status; whether initialisation is complete, from the API's.
    let began = || old.container_statuses.iter().flatten().any(has_started);
    if was_initialised(pod) || began() {
        for entry in status.container_statuses.iter_mut().flatten().filter(|e| !ended(e)) {
            entry.state = lost();
        }
    }
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let started = init.iter().rposition(has_started).map_or(1, |last| last.saturating_add(1));
    let init = status.init_container_statuses.iter_mut().flatten();
    for entry in init.take(started).filter(|e| !ended(e)) {
        entry.state = lost();
    }
    if !pod.is_static() && !status.is_terminal() {
        status.phase = Some("Failed".to_owned());
    }
    status
}

fn has_started(entry: &ContainerStatus) -> bool {
    let waiting = entry.state.as_ref().is_some_and(|s| s.waiting.is_some());
    !waiting || entry.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn was_initialised(pod: &Pod) -> bool {
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    if init.is_empty() {
        return true;
    }
    let Some(status) = &pod.status else { return false };
    if status.container_statuses.iter().flatten().any(has_started) {
        return true;
    }
    let Some(last) = status.init_container_statuses.as_ref().and_then(|l| l.last()) else {
        return false;
    };
    let Some(container) = init.iter().find(|c| c.name == last.name) else { return false };
    if container.is_sidecar() {
        return super::is_running(last) && last.started == Some(true);
    }
    let success = |state: &Option<ContainerState>| {
        state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
    };
    success(&last.state) || success(&last.last_state)
}

fn check_transitions(
    pod: &Pod,
    old: &PodStatus,
    new: &PodStatus,
    gates: &StatusGates,
) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let all = gates.pod.restart_all_containers && restarts_all(pod);
    if spec.restart_policy.as_deref() == Some("Always") || all {
        return Ok(());
    }
    let regular = (&spec.containers[..], &old.container_statuses, &new.container_statuses, "");
    let init = (
        spec.init_containers.as_deref().unwrap_or_default(),
        &old.init_container_statuses,
        &new.init_container_statuses,
        "init ",
    );
    for (containers, old, new, word) in [regular, init] {
        for before in old.iter().flatten() {
            let Some(code) = super::terminated_code(before) else { continue };
            let container = containers.iter().find(|c| c.name == before.name);
            if may_leave_terminated(container, spec, code, gates) {
                continue;
            }
            let back = new
                .iter()
                .flatten()
                .any(|after| after.name == before.name && super::terminated_code(after).is_none());
            if back {
                return Err(format!(
                    "terminated {word}container {} attempted illegal transition to non-terminated state",
                    before.name
                ));
            }
        }
    }
    Ok(())
}

fn may_leave_terminated(
    container: Option<&Container>,
    spec: &PodSpec,
    code: i32,
    gates: &StatusGates,
) -> bool {
    if code != 0 && spec.restart_policy.as_deref() == Some("OnFailure") {
        return true;
    }
    container.is_some_and(|c| {
        let in_init = spec.init_containers.iter().flatten().any(|i| i.name == c.name);
        (in_init && c.is_sidecar()) || restartable(c, spec, code, &gates.pod)
    })
}

/// Keeps the transition time of a condition while its status stays.
pub(super) fn set_transition_time(
    status: &mut PodStatus,
    old: &PodStatus,
    type_: &str,
    now: Timestamp,
) {
    let before = find(old, type_).cloned();
    let Some(condition) = status.conditions.iter_mut().flatten().find(|c| c.type_ == type_) else {
        return;
    };
    let same = before.filter(|b| b.status == condition.status);
    condition.last_transition_time = match same {
        Some(before) => before.last_transition_time,
        None => Some(Time(now)),
    };
}

/// Normalises a status for storing and comparing.
pub fn normalise(pod: &Pod, status: &mut PodStatus) {
    let spec = pod.spec.as_ref();
    let count = |n: Option<usize>| n.unwrap_or_default();
    let containers = count(spec.map(|s| s.containers.len()))
        .saturating_add(count(spec.and_then(|s| s.init_containers.as_ref()).map(Vec::len)))
        .saturating_add(count(spec.and_then(|s| s.ephemeral_containers.as_ref()).map(Vec::len)));
    let bytes = MESSAGE_BYTES.checked_div(containers).unwrap_or(MESSAGE_BYTES);
    whole_seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        whole_seconds(&mut condition.last_probe_time);
        whole_seconds(&mut condition.last_transition_time);
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for entry in lists.into_iter().flatten().flatten() {
        for state in [&mut entry.state, &mut entry.last_state].into_iter().flatten() {
            normalise_state(state, bytes);
        }
    }
    if let Some(list) = &mut status.container_statuses {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    if let Some(list) = &mut status.ephemeral_container_statuses {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let order = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    if let Some(list) = &mut status.init_container_statuses {
        list.sort_by_key(|e| order.iter().position(|c| c.name == e.name));
    }
}

fn normalise_state(state: &mut ContainerState, bytes: usize) {
    if let Some(running) = &mut state.running {
        whole_seconds(&mut running.started_at);
    }
    if let Some(ended) = &mut state.terminated {
        whole_seconds(&mut ended.started_at);
        whole_seconds(&mut ended.finished_at);
        if let Some(message) = &mut ended.message {
            cut(message, bytes);
        }
    }
}

/// Cuts a text to this many bytes. An invalid byte counts as one although its replacement character is longer, and so
/// does each byte of a character that is cut through.
fn cut(text: &mut String, bytes: usize) {
    let mut used: usize = 0;
    for (at, letter) in text.char_indices() {
        let size = if letter == char::REPLACEMENT_CHARACTER { 1 } else { letter.len_utf8() };
        if used.saturating_add(size) > bytes {
            text.truncate(at);
            text.extend((used..bytes).map(|_| char::REPLACEMENT_CHARACTER));
            return;
        }
        used = used.saturating_add(size);
    }
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(Time(at)) = time {
        *at = Timestamp::from_second(at.as_second()).unwrap_or(*at);
    }
}

/// Whether two statuses agree in everything that the kubelet owns.
pub fn equal(a: &PodStatus, b: &PodStatus) -> bool {
    let ours = |status: &PodStatus| -> Vec<(String, String, Option<String>, Option<String>)> {
        let mut list: Vec<_> = status
            .conditions
            .iter()
            .flatten()
            .filter(|c| is_ours(&c.type_))
            .map(|c: &PodCondition| {
                let text = |t: &Option<String>| t.clone().filter(|t| !t.is_empty());
                (c.type_.clone(), c.status.clone(), text(&c.reason), text(&c.message))
            })
            .collect();
        list.sort();
        list
    };
    if ours(a) != ours(b) {
        return false;
    }
    let strip = |status: &PodStatus| PodStatus {
        conditions: None,
        resource_claim_statuses: None,
        extended_resource_claim_status: None,
        node_allocatable_resource_claim_statuses: None,
        ..status.clone()
    };
    strip(a) == strip(b)
}

fn newly_terminated(old: &PodStatus, new: &PodStatus) -> Vec<NewlyTerminated> {
    let lists = [
        (ListKind::InitContainer, &old.init_container_statuses, &new.init_container_statuses),
        (ListKind::Container, &old.container_statuses, &new.container_statuses),
        (
            ListKind::EphemeralContainer,
            &old.ephemeral_container_statuses,
            &new.ephemeral_container_statuses,
        ),
    ];
    let mut found = Vec::new();
    for (kind, old, new) in lists {
        for entry in new.iter().flatten() {
            let Some(ended) = entry.state.as_ref().and_then(|s| s.terminated.as_ref()) else {
                continue;
            };
            let before = old.iter().flatten().find(|o| o.name == entry.name);
            if before.and_then(super::terminated_code).is_none() {
                found.push(NewlyTerminated {
                    kind,
                    exit_code: ended.exit_code,
                    reason: ended.reason.clone().unwrap_or_default(),
                });
            }
        }
    }
    found
}

/// Writes a probe result straight into a cached status; `None` if nothing changes or the container is unknown.
pub fn with_readiness(
    pod: &Pod,
    status: &PodStatus,
    container_id: &str,
    ready: bool,
    gates: &StatusGates,
) -> Option<PodStatus> {
    let mut new = status.clone();
    let entry = entry_by_id(&mut new, container_id).filter(|e| e.ready != ready)?;
    entry.ready = ready;
    let spec = pod.spec.as_ref()?;
    let phase = new.phase.clone().unwrap_or_default();
    let conditions = new.conditions.clone().unwrap_or_default();
    let gated = super::ready_condition(spec, &new, &conditions, &phase);
    let no_gates = PodSpec { readiness_gates: None, ..spec.clone() };
    let plain = super::ready_condition(&no_gates, &new, &conditions, &phase);
    let generation = pod.metadata.generation.filter(|g| *g != 0 && gates.observed_generation);
    for (type_, verdict) in [("Ready", gated), ("ContainersReady", plain)] {
        let condition = PodCondition {
            type_: type_.to_owned(),
            status: if verdict.holds { "True" } else { "False" }.to_owned(),
            reason: verdict.reason.map(str::to_owned),
            message: Some(verdict.message).filter(|m| !m.is_empty()),
            observed_generation: generation,
            ..PodCondition::default()
        };
        super::conditions::replace_or_push(new.conditions.get_or_insert_default(), condition);
    }
    Some(new)
}

/// Writes a startup result straight into a cached status; `None` if nothing changes or the container is unknown.
pub fn with_started(status: &PodStatus, container_id: &str, started: bool) -> Option<PodStatus> {
    let mut new = status.clone();
    let entry = entry_by_id(&mut new, container_id).filter(|e| e.started != Some(started))?;
    entry.started = Some(started);
    Some(new)
}

fn entry_by_id<'a>(status: &'a mut PodStatus, id: &str) -> Option<&'a mut ContainerStatus> {
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|e| {
        e.container_id.as_deref().and_then(|full| full.split_once("://")).map(|(_, bare)| bare)
            == Some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_bytes_as_go_does() {
        let cut_to = |text: &str, bytes| {
            let mut text = text.to_owned();
            cut(&mut text, bytes);
            let once = text.clone();
            cut(&mut text, bytes);
            assert_eq!(text, once, "cut twice");
            once
        };
        assert_eq!(cut_to("abc", 3), "abc");
        assert_eq!(cut_to("abcd", 3), "abc");
        assert_eq!(cut_to("a\u{20ac}", 3), "a\u{fffd}\u{fffd}", "two of the three bytes are left");
        assert_eq!(cut_to("\u{1f600}", 3), "\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(cut_to("\u{fffd}\u{fffd}", 2), "\u{fffd}\u{fffd}", "bytes that are no text");
        assert_eq!(cut_to("\u{20ac}x", 3), "\u{20ac}");
    }
}
