//! What must change for a pod to match its spec (upstream: `computePodActions`).
//!
//! Order of decisions: sandbox, restart-all, ephemeral containers, init containers and sidecars, regular containers,
//! resources. Later steps see what earlier ones decided through the [`PodPlan`] being built.

use super::backoff::{BackOffKey, later};
use super::init::{has_failed, plan_init};
use super::restart::{RestartRule, matching_rule, restarts_after_kill, should_be_restarted};
use super::sandbox::{SandboxNeed, sandbox_need};
use super::view::{
    ContainerKind, CreateSandbox, KillContainer, KillReason, OnFailure, PodPlan, PodView,
    RemoveContainer, ResetContainer, ResizePlan, StartContainer, StartGate, UnstartedContainer,
};
use super::{definition_changed, resize};
use crate::probe::{ProbeKind, ProbeOutcome};
use crate::runtime::{ContainerRunState, ContainerView, RuntimePod};
use api::core::v1::{Container, PodSpec};
use api::pod::ContainerExt;
use jiff::Timestamp;
use std::time::Duration;

/// Pause between the start of a container whose exit restarts all and the next such start: back-off does not apply
/// to them, and upstream syncs once a second.
const RESET_PAUSE: Duration = Duration::from_secs(1);

/// Decides what must change.
pub fn plan(view: &PodView<'_>, now: Timestamp) -> PodPlan {
    let Some(spec) = &view.pod.spec else { return PodPlan::default() };
    let need = sandbox_need(view.pod, view.runtime);
    let mut plan = if view.gates.restart_all_containers && view.restart_all {
        reset_everything(view, spec, &need, now)
    } else if need.create {
        with_new_sandbox(view, spec, &need)
    } else {
        in_sandbox(view, spec, &need)
    };
    if plan.kill_pod {
        plan.kill.clear();
        plan.reset.clear();
        if plan.create_sandbox.is_none() {
            plan.start.clear();
            plan.resize = ResizePlan::default();
        }
    }
    if !plan.kill_pod {
        let leftovers = live_in_earlier_sandboxes(view, &plan);
        plan.kill.extend(leftovers);
    }
    if plan.reset.is_empty() {
        plan.remove = stale_init_instances(view, spec, plan.create_sandbox.is_some());
    }
    for start in &mut plan.start {
        start.gate = gate(view, spec, start, now);
        let newest = view.runtime.newest(&start.name);
        start.unstarted = newest.filter(|c| c.state.never_ran()).map(|c| UnstartedContainer {
            id: c.id.clone(),
            may_yet_run: c.state == ContainerRunState::Created,
        });
        let unstarted = start.unstarted.as_ref();
        let pause = unstarted.and_then(|unstarted| view.back_off.paused(&unstarted.id, now));
        if let (StartGate::Now { .. }, Some(until)) = (&start.gate, pause) {
            start.gate = StartGate::Pause { until };
        }
    }
    plan
}

/// Restart-all: every instance is removed, those whose exit triggered it last; nothing is started.
fn reset_everything(
    view: &PodView<'_>,
    spec: &PodSpec,
    need: &SandboxNeed,
    now: Timestamp,
) -> PodPlan {
    let regular = spec.containers.iter().map(|c| (ContainerKind::Regular, c));
    let init = spec.init_containers.iter().flatten().map(|c| (init_kind(c), c));
    let mut sources = Vec::new();
    let mut others = Vec::new();
    let mut hold_until = None;
    for (kind, container) in regular.chain(init) {
        for instance in view.runtime.instances(&container.name) {
            let exited =
                matches!(instance.state, ContainerRunState::Exited | ContainerRunState::CutOff);
            let asked = instance.state == ContainerRunState::Exited
                && matching_rule(container, instance.exit_code) == Some(RestartRule::RestartAll);
            if asked {
                let began = instance.started_at.unwrap_or(instance.created_at);
                let until = later(began, RESET_PAUSE);
                // If the clock was set back, do not wait.
                hold_until = hold_until.max(Some(until).filter(|_| began <= now && now < until));
            }
            let list = if asked { &mut sources } else { &mut others };
            list.push(ResetContainer {
                id: instance.id.clone(),
                name: container.name.clone(),
                kind,
                kill: !exited,
            });
        }
    }
    if hold_until.is_some() && !need.create {
        return PodPlan { hold_until, ..PodPlan::default() };
    }
    let reset = others.into_iter().chain(sources).collect();
    PodPlan {
        kill_pod: need.create,
        create_sandbox: need.create.then(|| new_sandbox(need)),
        sandbox: need.current.clone().filter(|_| !need.create),
        reset,
        ..PodPlan::default()
    }
}

/// The sandbox is missing or unfit: everything is killed and, if something is to run, started in a new sandbox.
fn with_new_sandbox(view: &PodView<'_>, spec: &PodSpec, need: &SandboxNeed) -> PodPlan {
    let mut plan = PodPlan { kill_pod: true, ..PodPlan::default() };
    if view.pod.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    // Upstream leaves a pod with restartPolicy Never waiting forever when its sandbox died before all containers had
    // run. Starting a container that never ran is not a restart: it is started, unless an init container decides the
    // pod's end.
    let only_once = need.attempt != 0 && spec.restart_policy.as_deref() == Some("Never");
    let had_its_turn = |c: &Container| only_once && has_run(c, view.runtime);
    if only_once && (init_decides(view, spec) || spec.containers.iter().all(had_its_turn)) {
        return plan;
    }
    let to_start: Vec<usize> = spec
        .containers
        .iter()
        .enumerate()
        .filter(|(_, c)| !(runs_once(c, spec, view) && succeeded(c, view.runtime)))
        .filter(|(_, c)| !had_its_turn(c))
        .map(|(index, _)| index)
        .collect();
    if to_start.is_empty() && any_regular_created(spec, view.runtime) {
        return plan;
    }
    plan.create_sandbox = Some(new_sandbox(need));
    match spec.init_containers.as_deref().unwrap_or_default().first() {
        Some(first) => plan.start.push(start(init_kind(first), 0, &first.name)),
        None => plan.start = regular_starts(spec, &to_start),
    }
    plan
}

/// The sandbox stays: decide about each container.
fn in_sandbox(view: &PodView<'_>, spec: &PodSpec, need: &SandboxNeed) -> PodPlan {
    let mut plan = PodPlan { sandbox: need.current.clone(), ..PodPlan::default() };
    for (index, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        // Upstream leaves one alone that was created and never started.
        if view.runtime.newest(&container.name).is_none_or(|newest| newest.state.never_ran()) {
            plan.start.push(start(ContainerKind::Ephemeral, index, &container.name));
        }
    }

    let init = plan_init(view, spec, &mut plan);
    if init.failed {
        plan.kill_pod = true;
        return plan;
    }
    plan.resize.pod |= resize::starts_with_other_resources(
        view,
        spec,
        init.start.iter().filter_map(|i| spec.init_containers.as_ref()?.get(*i)),
    );
    if !init.initialised {
        push_init_starts(&mut plan, spec, &init.start);
        return plan;
    }

    let mut kept = false;
    let mut to_start = Vec::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let newest = view.runtime.newest(&container.name);
        let verdict = match newest {
            Some(running) if running.is_running() => judge_running(view, spec, container, running),
            stopped => {
                plan.release.extend(stopped.map(|c| c.id.clone()));
                judge_stopped(view, container, stopped)
            }
        };
        kept |= verdict.keep;
        if verdict.start {
            to_start.push(index);
        }
        plan.resize.pod |= verdict.resized;
        if let (true, Some(running)) = (verdict.keep, newest) {
            resize::mark_updates(
                view,
                spec,
                container,
                ContainerKind::Regular,
                running,
                &mut plan.resize,
            );
        }
        plan.kill.extend(verdict.kill);
    }
    if kept || !to_start.is_empty() {
        push_init_starts(&mut plan, spec, &init.start);
    } else {
        plan.kill_pod = true;
    }
    plan.resize.pod_level = resize::pod_level_differs(view, spec);
    if !plan.resize.pod_level && !plan.resize.pod {
        plan.resize.pod = resize::starts_with_other_resources(
            view,
            spec,
            to_start.iter().filter_map(|i| spec.containers.get(*i)),
        );
    }
    plan.start.extend(regular_starts(spec, &to_start));
    plan
}

/// What happens to one regular container.
#[derive(Default)]
struct Verdict {
    keep: bool,
    start: bool,
    resized: bool,
    kill: Option<KillContainer>,
}

fn judge_running(
    view: &PodView<'_>,
    spec: &PodSpec,
    container: &Container,
    running: &ContainerView,
) -> Verdict {
    let name = &container.name;
    let failed = |kind| view.probes.get(&running.id, kind) == Some(ProbeOutcome::Failure);
    let restart = restarts_after_kill(container, spec, view.gates);
    let (what, reason, restart) = if definition_changed(container, running) {
        (format!("Container {name} definition changed"), KillReason::Other, true)
    } else if failed(ProbeKind::Liveness) {
        (format!("Container {name} failed liveness probe"), KillReason::LivenessProbe, restart)
    } else if failed(ProbeKind::Startup) {
        (format!("Container {name} failed startup probe"), KillReason::StartupProbe, restart)
    } else if resize::needs_restart(view, spec, container) {
        let message = format!("Container {name} resize requires restart");
        let kill = kill(ContainerKind::Regular, running, message, KillReason::Other);
        return Verdict { start: true, resized: true, kill: Some(kill), ..Verdict::default() };
    } else {
        return Verdict { keep: true, ..Verdict::default() };
    };
    let message = if restart { format!("{what}, will be restarted") } else { what };
    Verdict {
        start: restart,
        kill: Some(kill(ContainerKind::Regular, running, message, reason)),
        ..Verdict::default()
    }
}

fn judge_stopped(
    view: &PodView<'_>,
    container: &Container,
    newest: Option<&ContainerView>,
) -> Verdict {
    if !should_be_restarted(container, view.pod, newest, view.gates) {
        return Verdict::default();
    }
    let unknown = newest.filter(|c| c.state == ContainerRunState::Unknown).map(|c| {
        let message = "Container is in \"unknown\" state, try killing it before restart";
        kill(ContainerKind::Regular, c, message.to_owned(), KillReason::Unknown)
    });
    Verdict { start: true, kill: unknown, ..Verdict::default() }
}

pub(super) fn kill(
    kind: ContainerKind,
    view: &ContainerView,
    message: String,
    reason: KillReason,
) -> KillContainer {
    KillContainer { id: view.id.clone(), name: view.name.clone(), kind, message, reason }
}

/// Init containers that are started again in this sandbox and still run in an earlier one that is no longer ready:
/// two instances must not work on the same volumes.
fn live_in_earlier_sandboxes(view: &PodView<'_>, plan: &PodPlan) -> Vec<KillContainer> {
    let sandbox = view.runtime.active_sandbox().map(|s| &s.id);
    let of_init = plan
        .start
        .iter()
        .filter(|start| matches!(start.kind, ContainerKind::Init | ContainerKind::Sidecar));
    of_init
        .flat_map(|start| {
            let live = [ContainerRunState::Running, ContainerRunState::Unknown];
            let elsewhere = view
                .runtime
                .instances(&start.name)
                .filter(move |c| live.contains(&c.state) && Some(&c.sandbox) != sandbox);
            elsewhere.map(|c| {
                let message = format!("Init container {} runs in an earlier sandbox", c.name);
                kill(start.kind, c, message, KillReason::Other)
            })
        })
        .collect()
}

fn new_sandbox(need: &SandboxNeed) -> CreateSandbox {
    CreateSandbox { attempt: need.attempt, replaces: need.current.clone() }
}

fn init_kind(container: &Container) -> ContainerKind {
    if container.is_sidecar() { ContainerKind::Sidecar } else { ContainerKind::Init }
}

fn start(kind: ContainerKind, index: usize, name: &str) -> StartContainer {
    let on_failure =
        if kind == ContainerKind::Init { OnFailure::Abort } else { OnFailure::Continue };
    StartContainer {
        kind,
        index,
        name: name.to_owned(),
        gate: StartGate::Now { previous: None },
        unstarted: None,
        on_failure,
    }
}

fn push_init_starts(plan: &mut PodPlan, spec: &PodSpec, indexes: &[usize]) {
    for index in indexes {
        if let Some(container) = spec.init_containers.as_ref().and_then(|l| l.get(*index)) {
            plan.start.push(start(init_kind(container), *index, &container.name));
        }
    }
}

fn regular_starts(spec: &PodSpec, indexes: &[usize]) -> Vec<StartContainer> {
    indexes
        .iter()
        .filter_map(|i| Some(start(ContainerKind::Regular, *i, &spec.containers.get(*i)?.name)))
        .collect()
}

/// Whether a success is the end of this container: its own policy, else the pod's, is OnFailure.
fn runs_once(container: &Container, spec: &PodSpec, view: &PodView<'_>) -> bool {
    let own = container.restart_policy.as_deref().filter(|_| view.gates.container_restart_rules);
    own.or(spec.restart_policy.as_deref()) == Some("OnFailure")
}

fn succeeded(container: &Container, runtime: &RuntimePod) -> bool {
    runtime
        .newest(&container.name)
        .is_some_and(|c| c.state == ContainerRunState::Exited && c.exit_code == 0)
}

/// Whether an instance was started, not only created.
fn has_run(container: &Container, runtime: &RuntimePod) -> bool {
    runtime.instances(&container.name).any(|c| !c.state.never_ran())
}

/// Whether an init container has failed for good, or will when it is killed.
fn init_decides(view: &PodView<'_>, spec: &PodSpec) -> bool {
    spec.init_containers.iter().flatten().filter(|c| !c.is_sidecar()).any(|container| {
        view.runtime.newest(&container.name).is_some_and(|newest| match newest.state {
            ContainerRunState::Created | ContainerRunState::CutOff => false,
            ContainerRunState::Running => true,
            ContainerRunState::Exited => {
                has_failed(newest)
                    && !should_be_restarted(container, view.pod, Some(newest), view.gates)
            }
            ContainerRunState::Unknown => !restarts_after_kill(container, spec, view.gates),
        })
    })
}

fn any_regular_created(spec: &PodSpec, runtime: &RuntimePod) -> bool {
    spec.containers.iter().any(|c| {
        runtime.newest(&c.name).is_some_and(|view| view.state != ContainerRunState::Unknown)
    })
}

/// Dead init instances that can be removed: all of them before a new sandbox, else all but the newest of each name.
fn stale_init_instances(
    view: &PodView<'_>,
    spec: &PodSpec,
    new_sandbox: bool,
) -> Vec<RemoveContainer> {
    let mut stale = Vec::new();
    for container in spec.init_containers.iter().flatten() {
        let dead = view.runtime.instances(&container.name).filter(|c| {
            let ended = [ContainerRunState::Exited, ContainerRunState::Unknown];
            new_sandbox || ended.contains(&c.state)
        });
        let keep = usize::from(!new_sandbox);
        stale.extend(
            dead.skip(keep)
                .map(|c| RemoveContainer { id: c.id.clone(), name: container.name.clone() }),
        );
    }
    stale
}

/// Whether the container may start now or is in back-off.
fn gate(view: &PodView<'_>, spec: &PodSpec, start: &StartContainer, now: Timestamp) -> StartGate {
    let container = match start.kind {
        ContainerKind::Ephemeral => None,
        ContainerKind::Init | ContainerKind::Sidecar => {
            spec.init_containers.as_ref().and_then(|l| l.get(start.index))
        }
        ContainerKind::Regular => spec.containers.get(start.index),
    };
    let exited = view.runtime.newest_exited(&start.name);
    let (Some(container), Some(finished)) = (container, exited.and_then(|c| c.finished_at)) else {
        return StartGate::Now { previous: None };
    };
    let key = BackOffKey::of(view.pod, container);
    let Some((delay, until)) = view.back_off.waiting(&key, finished, now) else {
        return StartGate::Now { previous: Some((key, finished)) };
    };
    let name = &start.name;
    let pod = display_name(view);
    let shown = units::GoDuration::from(delay);
    StartGate::BackOff {
        until,
        delay,
        message: format!("back-off {shown} restarting failed container={name} pod={pod}"),
        event: format!("Back-off restarting failed container {name} in pod {pod}"),
        previous: (key, finished),
    }
}

/// `name_namespace(uid)`.
fn display_name(view: &PodView<'_>) -> String {
    let meta = &view.pod.metadata;
    format!(
        "{}_{}({})",
        meta.name.as_deref().unwrap_or_default(),
        meta.namespace.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default()
    )
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
