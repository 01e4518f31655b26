//! Init containers and sidecars (upstream: `computeInitContainerActions`).
//!
//! Read from last to first: completed init containers may have been removed, so the last one that the runtime
//! knows decides how far initialisation came. Earlier plain ones are then done; earlier sidecars are kept running.
use super::plan::kill;
use super::restart::{restarts_after_kill, should_be_restarted};
use super::view::{ContainerKind, KillReason, PodPlan, PodView};
use super::{definition_changed, resize};
use crate::probe::{ProbeKind, ProbeOutcome};
use crate::runtime::{ContainerRunState, ContainerView};
use api::core::v1::{Container, PodSpec};
use api::pod::ContainerExt;

/// How far initialisation is.
#[derive(Debug, Default)]
pub(super) struct InitVerdict {
    /// Regular containers may start.
    pub(super) initialised: bool,
    /// An init container failed for good: the pod is over.
    pub(super) failed: bool,
    /// Indexes to start, lowest first.
    pub(super) start: Vec<usize>,
}

/// What one init container means for the pod.
enum Finding {
    /// Nothing to say.
    Nothing,
    /// It is done (or a started sidecar): the next one may start.
    Passed,
    /// The pod is over.
    Failed,
}

/// Decides about init containers; kills and resource updates go straight into the plan.
pub(super) fn plan_init(view: &PodView<'_>, spec: &PodSpec, plan: &mut PodPlan) -> InitVerdict {
    let containers = spec.init_containers.as_deref().unwrap_or_default();
    let mut verdict = InitVerdict { initialised: true, ..InitVerdict::default() };
    if containers.is_empty() {
        return verdict;
    }
    // Upstream also counts containers of an earlier sandbox: an app container that was created and never started, an
    // init container that could not be removed. After a crash or a reboot that makes it skip init containers.
    let here = |name: &str| view.runtime.active_containers().find(|c| c.name == name);
    let mut earlier_done = spec.containers.iter().any(|c| {
        view.runtime.newest(&c.name).is_some_and(ContainerView::is_running)
            || here(&c.name).is_some_and(|c| c.state.never_ran())
    });
    verdict.initialised = earlier_done;

    let last = containers.len().saturating_sub(1);
    for (index, container) in containers.iter().enumerate().rev() {
        let sidecar = container.is_sidecar();
        let Some(newest) = here(&container.name) else {
            if earlier_done && sidecar {
                verdict.start.push(index);
            }
            continue;
        };
        if earlier_done && !sidecar {
            continue;
        }
        let mut look =
            Look { view, spec, container, newest, index, plan, start: &mut verdict.start };
        let finding = if sidecar { look.sidecar(last, earlier_done) } else { look.plain() };
        match finding {
            Finding::Nothing => {}
            Finding::Passed if index == last => verdict.initialised = true,
            Finding::Passed => {
                if !sidecar {
                    verdict.start.push(index.saturating_add(1));
                }
            }
            Finding::Failed => {
                return InitVerdict { failed: true, ..InitVerdict::default() };
            }
        }
        earlier_done = true;
    }
    if !earlier_done {
        verdict.start.push(0);
    }
    verdict.start.reverse();
    verdict
}

/// Whether an exited instance failed: one killed out of memory did, whatever its exit code.
pub(super) fn has_failed(ended: &ContainerView) -> bool {
    ended.exit_code != 0 || ended.reason == "OOMKilled"
}

/// One init container that the runtime knows.
struct Look<'a, 'b> {
    view: &'a PodView<'a>,
    spec: &'a PodSpec,
    container: &'a Container,
    newest: &'a ContainerView,
    index: usize,
    plan: &'b mut PodPlan,
    start: &'b mut Vec<usize>,
}

impl Look<'_, '_> {
    fn plain(&mut self) -> Finding {
        match self.newest.state {
            ContainerRunState::Created | ContainerRunState::CutOff => self.start.push(self.index),
            ContainerRunState::Running => {
                if self.view.gates.resize_init_containers {
                    self.resize(ContainerKind::Init);
                }
            }
            ContainerRunState::Exited => {
                if !has_failed(self.newest) {
                    return Finding::Passed;
                }
                let again = should_be_restarted(
                    self.container,
                    self.view.pod,
                    Some(self.newest),
                    self.view.gates,
                );
                if !again {
                    return Finding::Failed;
                }
                self.start.push(self.index);
            }
            ContainerRunState::Unknown => {
                if !restarts_after_kill(self.container, self.spec, self.view.gates) {
                    return Finding::Failed;
                }
                self.replace_unknown(ContainerKind::Init);
            }
        }
        Finding::Nothing
    }

    fn sidecar(&mut self, last: usize, earlier_done: bool) -> Finding {
        match self.newest.state {
            ContainerRunState::Created | ContainerRunState::CutOff | ContainerRunState::Exited => {
                self.start.push(self.index);
                Finding::Nothing
            }
            ContainerRunState::Unknown => {
                self.replace_unknown(ContainerKind::Sidecar);
                Finding::Nothing
            }
            ContainerRunState::Running => self.running_sidecar(last, earlier_done),
        }
    }

    fn running_sidecar(&mut self, last: usize, earlier_done: bool) -> Finding {
        let name = &self.container.name;
        let (probes, id) = (self.view.probes, &self.newest.id);
        let result = |kind| probes.get(id, kind);
        if self.container.startup_probe.is_some() {
            match result(ProbeKind::Startup) {
                Some(ProbeOutcome::Success) => {}
                Some(ProbeOutcome::Failure) => {
                    let text = format!("Init container {name} failed startup probe");
                    self.restart(text, KillReason::StartupProbe);
                    return Finding::Nothing;
                }
                Some(ProbeOutcome::Unknown) | None => return Finding::Nothing,
            }
        }
        if self.index != last && !earlier_done {
            self.start.push(self.index.saturating_add(1));
        }
        if definition_changed(self.container, self.newest) {
            let text = format!("Init container {name} definition changed");
            self.restart(text, KillReason::Other);
            return Finding::Passed;
        }
        if self.container.liveness_probe.is_some() {
            match result(ProbeKind::Liveness) {
                None => return Finding::Passed,
                Some(ProbeOutcome::Failure) => {
                    let text = format!("Init container {name} failed liveness probe");
                    self.restart(text, KillReason::LivenessProbe);
                    return Finding::Passed;
                }
                Some(_) => {}
            }
        }
        self.resize(ContainerKind::Sidecar);
        Finding::Passed
    }

    fn resize(&mut self, kind: ContainerKind) {
        if resize::needs_restart(self.view, self.spec, self.container) {
            let text = format!("Container {} resize requires restart", self.container.name);
            self.plan.kill.push(kill(kind, self.newest, text, KillReason::Other));
            self.start.push(self.index);
            self.plan.resize.pod = true;
        } else {
            resize::mark_updates(
                self.view,
                self.spec,
                self.container,
                kind,
                self.newest,
                &mut self.plan.resize,
            );
        }
    }

    fn restart(&mut self, message: String, reason: KillReason) {
        self.plan.kill.push(kill(ContainerKind::Sidecar, self.newest, message, reason));
        self.start.push(self.index);
    }

    fn replace_unknown(&mut self, kind: ContainerKind) {
        let text = "Init container is in \"unknown\" state, try killing it before restart";
        self.plan.kill.push(kill(kind, self.newest, text.to_owned(), KillReason::Unknown));
        self.start.push(self.index);
    }
}
