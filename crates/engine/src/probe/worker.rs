//! One worker: a container's probe of one kind (upstream: `prober/worker.go`).

use super::{ProbeKind, ProbeOutcome, ProbeResults};
use crate::pod::{PodGates, restartable};
use crate::status::bare_id;
use api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, Probe};
use api::ids::ContainerId;
use api::pod::{ContainerExt, PodStatusExt};
use jiff::Timestamp;
use std::time::Duration;

/// After a restart of the agent first probes are spread over at most this long.
const SPREAD: Duration = Duration::from_secs(5);
/// Containers started this long before the agent count as older than the agent.
const RESTART_GRACE: Duration = Duration::from_secs(10);

/// Numbers of a probe with the API's defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeNumbers {
    /// Time after the container's start before the first probe.
    pub initial_delay: Duration,
    /// Time between probes.
    pub period: Duration,
    /// Time one attempt may take.
    pub timeout: Duration,
    /// Successes in a row that settle a result.
    pub success_threshold: u32,
    /// Failures in a row that settle a result.
    pub failure_threshold: u32,
}

impl ProbeNumbers {
    /// The numbers of a probe.
    pub fn of(probe: &Probe) -> Self {
        let number = |value: Option<i32>, default: u32| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(u64::from(number(value, default)));
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }
}

/// The probe of this kind, if the container has one.
pub fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// Containers and kinds that need a worker: regular containers, then sidecars.
pub fn wanted(spec: &PodSpec) -> Vec<(&Container, ProbeKind)> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.is_sidecar());
    let kinds = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| kinds.map(|kind| (c, kind)))
        .filter(|(c, kind)| probe_of(c, *kind).is_some())
        .collect()
}

/// How long a new worker waits before its first probe: nothing, except shortly after the agent's start, when many
/// begin at once. `chance` is in 0..1.
pub fn first_delay(period: Duration, agent_uptime: Duration, chance: f64) -> Duration {
    if agent_uptime >= period {
        return Duration::ZERO;
    }
    period.min(SPREAD).mul_f64(chance.clamp(0.0, 1.0))
}

/// When the next probe is due: a period after the last one was, but not before it ended.
pub fn next_due(last_due: Timestamp, period: Duration, ended: Timestamp) -> Timestamp {
    crate::pod::backoff::later(last_due, period).max(ended)
}

/// The input of a worker's decision before a probe.
#[derive(Debug, Clone, Copy)]
pub struct WorkerView<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The newest status we generated; none before the first.
    pub status: Option<&'a PodStatus>,
    /// Settled results so far.
    pub results: &'a ProbeResults,
    /// When the agent started.
    pub agent_started: Timestamp,
    /// Feature gates of the pod plan.
    pub gates: &'a PodGates,
    /// Gate ChangeContainerStatusOnKubeletRestart.
    pub change_on_restart: bool,
}

/// A change to the settled results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultChange {
    /// Forget the result of this container.
    Remove(ContainerId),
    /// Settle a result.
    Set(ContainerId, ProbeOutcome),
}

/// What a worker does when its probe is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Nothing now.
    Wait,
    /// End the worker.
    Stop,
    /// Carry out the probe and hand the answer to [`ProbeWorker::judge`].
    Probe(ContainerId),
}

/// The result of a worker's step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Changes of results, in order.
    pub changes: Vec<ResultChange>,
    /// What to do.
    pub next: Move,
}

/// The result of one probe run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Alive, or alive with a warning.
    Success,
    /// Not alive.
    Failure,
    /// It could not be carried out: the run is not counted.
    Error,
}

/// State of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeWorker {
    /// The container's name.
    pub container: String,
    /// Which probe.
    pub kind: ProbeKind,
    numbers: ProbeNumbers,
    id: Option<ContainerId>,
    on_hold: bool,
    last: Option<Run>,
    in_a_row: u32,
}

impl ProbeWorker {
    /// A worker that has not probed yet.
    pub fn new(container: &str, kind: ProbeKind, numbers: ProbeNumbers) -> Self {
        Self {
            container: container.to_owned(),
            kind,
            numbers,
            id: None,
            on_hold: false,
            last: None,
            in_a_row: 0,
        }
    }

    /// The numbers of its probe.
    pub fn numbers(&self) -> ProbeNumbers {
        self.numbers
    }

    /// The container it watches now.
    pub fn watching(&self) -> Option<&ContainerId> {
        self.id.as_ref()
    }

    /// Its counters: container, whether the last run succeeded, how many equal results in a row.
    pub(super) fn counted(&self) -> Option<(ContainerId, bool, u32)> {
        let last = self.last?;
        Some((self.id.clone()?, last == Run::Success, self.in_a_row))
    }

    /// Restores the counters from before a restart of the agent.
    pub(super) fn resume(&mut self, id: ContainerId, success: bool, in_a_row: u32, held: bool) {
        self.id = Some(id);
        self.last = Some(if success { Run::Success } else { Run::Failure });
        self.in_a_row = in_a_row;
        self.on_hold = held;
    }

    /// Decides what to do when the probe is due.
    pub fn step(&mut self, view: &WorkerView<'_>, now: Timestamp) -> Step {
        let mut changes = Vec::new();
        let next = self.decide(view, now, &mut changes);
        Step { changes, next }
    }

    fn decide(
        &mut self,
        view: &WorkerView<'_>,
        now: Timestamp,
        changes: &mut Vec<ResultChange>,
    ) -> Move {
        let Some(status) = view.status else { return Move::Wait };
        if status.is_terminal() {
            return Move::Stop;
        }
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let entry = lists.into_iter().flatten().flatten().find(|e| e.name == self.container);
        let Some((entry, id)) = entry.and_then(|e| Some((e, bare_id(e)?))) else {
            return Move::Wait;
        };
        if self.id.as_ref() != Some(&id) {
            self.watch(view, entry, &id, changes);
        }
        if self.on_hold {
            return Move::Wait;
        }
        let Some(started_at) = running_since(entry) else {
            changes.push(ResultChange::Set(id, ProbeOutcome::Failure));
            return if comes_back(view, entry) { Move::Wait } else { Move::Stop };
        };
        let deleting = view.pod.metadata.deletion_timestamp.is_some();
        if deleting && self.kind != ProbeKind::Readiness {
            changes.push(ResultChange::Set(id, ProbeOutcome::Success));
            return Move::Stop;
        }
        let age = Duration::try_from(now.duration_since(started_at)).unwrap_or_default();
        if age.as_secs() < self.numbers.initial_delay.as_secs() {
            return Move::Wait;
        }
        let started = entry.started == Some(true);
        if started == (self.kind == ProbeKind::Startup) {
            return Move::Wait;
        }
        Move::Probe(id)
    }

    /// A new instance: its result is reset, unless it is older than the agent.
    fn watch(
        &mut self,
        view: &WorkerView<'_>,
        entry: &ContainerStatus,
        id: &ContainerId,
        changes: &mut Vec<ResultChange>,
    ) {
        if let Some(old) = self.id.replace(id.clone()) {
            changes.push(ResultChange::Remove(old));
        }
        self.on_hold = false;
        if view.results.get(id, self.kind).is_some() {
            return;
        }
        let sidecar =
            container_of(view.pod, &self.container).is_some_and(|(c, init)| init && c.is_sidecar());
        if self.kind == ProbeKind::Startup && sidecar && entry.started == Some(true) {
            changes.push(ResultChange::Set(id.clone(), ProbeOutcome::Success));
        }
        if !view.change_on_restart && (was_here_before(view, entry) || self.inherits(entry)) {
            return;
        }
        let initial = match self.kind {
            ProbeKind::Readiness => ProbeOutcome::Failure,
            ProbeKind::Liveness => ProbeOutcome::Success,
            ProbeKind::Startup => ProbeOutcome::Unknown,
        };
        changes.push(ResultChange::Set(id.clone(), initial));
    }

    /// Whether the status shows a result of an earlier run of the agent: a container that was not probed
    /// could not be ready or started otherwise.
    fn inherits(&self, entry: &ContainerStatus) -> bool {
        match self.kind {
            ProbeKind::Readiness => entry.ready,
            ProbeKind::Startup => entry.started == Some(true),
            ProbeKind::Liveness => false,
        }
    }

    /// Counts a run; the result it settles, if any.
    pub fn judge(&mut self, run: Run) -> Option<ResultChange> {
        let id = self.id.clone()?;
        if run == Run::Error {
            return None;
        }
        if self.last == Some(run) {
            self.in_a_row = self.in_a_row.saturating_add(1);
        } else {
            self.last = Some(run);
            self.in_a_row = 1;
        }
        let (threshold, outcome) = match run {
            Run::Success => (self.numbers.success_threshold, ProbeOutcome::Success),
            Run::Failure | Run::Error => (self.numbers.failure_threshold, ProbeOutcome::Failure),
        };
        // Capped at the threshold, so that unchanged probe results do not change the saved state.
        self.in_a_row = self.in_a_row.min(threshold);
        if self.in_a_row < threshold {
            return None;
        }
        if holds(self.kind, outcome) {
            self.on_hold = true;
            self.in_a_row = 0;
        }
        Some(ResultChange::Set(id, outcome))
    }
}

/// Whether a settled result ends the probing of this container instance.
pub(super) fn holds(kind: ProbeKind, outcome: ProbeOutcome) -> bool {
    match kind {
        ProbeKind::Startup => outcome != ProbeOutcome::Unknown,
        ProbeKind::Liveness => outcome == ProbeOutcome::Failure,
        ProbeKind::Readiness => false,
    }
}

fn running_since(entry: &ContainerStatus) -> Option<Timestamp> {
    Some(entry.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

fn was_here_before(view: &WorkerView<'_>, entry: &ContainerStatus) -> bool {
    running_since(entry).is_some_and(|started| {
        crate::pod::backoff::later(started, RESTART_GRACE) < view.agent_started
    })
}

fn container_of<'a>(pod: &'a Pod, name: &str) -> Option<(&'a Container, bool)> {
    let spec = pod.spec.as_ref()?;
    let regular = spec.containers.iter().map(|c| (c, false));
    let init = spec.init_containers.iter().flatten().map(|c| (c, true));
    regular.chain(init).find(|(c, _)| c.name == name)
}

/// Whether a container that does not run may run again.
fn comes_back(view: &WorkerView<'_>, entry: &ContainerStatus) -> bool {
    let Some(ended) = entry.state.as_ref().and_then(|s| s.terminated.as_ref()) else {
        return true;
    };
    let restarting = view
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .any(|c| c.type_ == "AllContainersRestarting" && c.status == "True");
    if restarting {
        return true;
    }
    let (Some(spec), Some((container, init))) =
        (view.pod.spec.as_ref(), container_of(view.pod, &entry.name))
    else {
        return false;
    };
    (init && container.is_sidecar()) || restartable(container, spec, ended.exit_code, view.gates)
}

#[cfg(test)]
mod tests;
