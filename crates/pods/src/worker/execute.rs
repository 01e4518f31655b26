//! Walking a pod's plan over the runtime.
//!
//! Promises: never decides; walks the plan in the order of its fields; whatever it did, the view is
//! asked again before the next decision.

use super::kill::{Killer, Place};
use super::start::NotStarted;
use super::{PodWorker, failed};
use crate::slots::{Slot, StartSlots};
use api::core::v1::{Container, Pod};
use api::ids::ContainerId;
use api::pod::{ContainerExt, PodStatusExt};
use engine::admission::has_system_priority;
use engine::housekeeping::garbage::old_instances;
use engine::pod::kill;
use engine::pod::life::{Outcome, Work};
use engine::pod::{
    ContainerKind, KillContainer, KillReason, OnFailure, PodPlan, StartContainer, StartGate,
};
use engine::runtime::{ContainerRunState, RuntimePod};
use engine::status::StartError;
use jiff::Timestamp;
use ports::{EventSeverity, EventTarget, NodeEvent, PodMounts};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;

/// Everything the starts of one sync share.
#[derive(Debug)]
pub(super) struct StartContext<'a> {
    pub(super) pod: &'a Arc<Pod>,
    pub(super) runtime: &'a RuntimePod,
    pub(super) mounts: &'a PodMounts,
    pub(super) sandbox_id: String,
    pub(super) sandbox_config: proto::cri_v1::PodSandboxConfig,
    pub(super) ips: Vec<String>,
    /// The sandbox's own address, for hooks; empty on the node's network.
    pub(super) own_ip: String,
    pub(super) runtime_handler: String,
    pub(super) image_volumes: super::requests::ImageVolumes,
}

impl PodWorker {
    pub(super) fn killer<'a>(&'a self, pod: &'a Arc<Pod>, runtime: &'a RuntimePod) -> Killer<'a> {
        Killer {
            shared: &self.shared,
            pod,
            pod_ip: runtime.own_ip(),
            timeline: &self.timeline,
            grace: self.interrupt.clone(),
            began: Instant::now(),
            place: Place::Spec,
        }
    }

    pub(super) async fn execute(
        &mut self,
        work: &Work,
        runtime: &RuntimePod,
        mounts: &PodMounts,
        plan: PodPlan,
    ) -> Outcome {
        let pod = &work.pod;
        let mut acted = false;
        if self.is_stopping() {
            return Outcome::Interrupted;
        }
        if plan.hold_until.is_some() {
            return Outcome::Failed { network_not_ready: false, back_off_until: plan.hold_until };
        }
        for id in &plan.release {
            self.shared.placement.container_removed(id.as_str());
        }
        if plan.create_sandbox.as_ref().is_some_and(|c| c.replaces.is_some()) {
            let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
            self.emit(pod, EventSeverity::Normal, "SandboxChanged", message);
            self.timeline.note("sandbox changed", "");
        }
        if plan.kill_pod {
            let todo = kill::plan_pod(Some(pod), runtime, None);
            acted |= !todo.containers.is_empty() || !todo.sandboxes.is_empty();
            let result = self.killer(pod, runtime).pod(todo).await;
            if let Err(error) = result {
                tracing::error!(podUID = %self.uid, err = %error, "cannot kill pod");
                self.timeline.note("kill failed", error);
                self.acted();
                return failed();
            }
        } else if let Err(()) = self.kill_and_reset(pod, runtime, &plan, &mut acted).await {
            self.acted();
            return failed();
        }
        for gone in &plan.remove {
            acted = true;
            if let Err(error) = self.remove_container(runtime, &gone.id, Logs::Remove).await {
                tracing::error!(containerID = %gone.id, err = %error, "cannot remove container");
            }
        }
        if !plan.kill_pod && !plan.reset.is_empty() {
            // Everything begins anew from a view without those instances.
            self.acted();
            self.shared.pod_states.look_again(&self.uid);
            return Outcome::Done { terminal: false };
        }
        let shared = Arc::clone(&self.shared);
        let outcome = match self.start_slot(&shared.slots, pod, &plan).await {
            Ok(slot) => {
                let build = Box::pin(self.build_up(work, runtime, mounts, &plan, &mut acted));
                let outcome = match slot {
                    Some(slot) => slot.hold(build).await,
                    None => build.await,
                };
                if plan.create_sandbox.is_some() && matches!(outcome, Outcome::Failed { .. }) {
                    shared.metrics.starts.first_look_failed(pod);
                }
                outcome
            }
            Err(outcome) => outcome,
        };
        if acted {
            self.acted();
        }
        outcome
    }

    async fn kill_and_reset(
        &mut self,
        pod: &Arc<Pod>,
        runtime: &RuntimePod,
        plan: &PodPlan,
        acted: &mut bool,
    ) -> Result<(), ()> {
        for target in &plan.kill {
            *acted = true;
            let stop = match kill::plan_container(pod, target, None) {
                Ok(stop) => stop,
                Err(error) => {
                    self.kill_refused(error.to_string());
                    return Err(());
                }
            };
            let result = self.killer(pod, runtime).container(&stop, None).await;
            result.map_err(|error| self.kill_refused(error))?;
        }
        for reset in &plan.reset {
            *acted = true;
            if reset.kill {
                let target = KillContainer {
                    id: reset.id.clone(),
                    name: reset.name.clone(),
                    kind: reset.kind,
                    message: "killing".to_owned(),
                    reason: KillReason::Other,
                };
                let stop = match kill::plan_container(pod, &target, Some(0)) {
                    Ok(stop) => stop,
                    Err(error) => {
                        self.kill_refused(error.to_string());
                        return Err(());
                    }
                };
                let result = self.killer(pod, runtime).container(&stop, None).await;
                result.map_err(|error| self.kill_refused(error))?;
            }
            let removed = self.remove_container(runtime, &reset.id, Logs::Keep).await;
            removed.map_err(|error| self.kill_refused(error))?;
        }
        Ok(())
    }

    fn kill_refused(&self, error: String) {
        tracing::error!(podUID = %self.uid, err = %error, "cannot kill container");
        self.timeline.note("kill failed", error);
    }

    /// The slot to build up in: what begins with a sandbox has its turn, unless the node needs the pod.
    async fn start_slot<'a>(
        &mut self,
        slots: &'a StartSlots,
        pod: &Pod,
        plan: &PodPlan,
    ) -> Result<Option<Slot<'a>>, Outcome> {
        if plan.create_sandbox.is_none() || has_system_priority(pod) {
            return Ok(None);
        }
        if let Some(slot) = slots.try_take() {
            return Ok(Some(slot));
        }
        self.timeline.note("waiting for its turn to start", "");
        tokio::select! {
            slot = slots.take() => Ok(Some(slot)), // dropped only if not wanted
            left = self.wait_exit().reason() => { // cancel-safe: watches
                self.timeline.note("left before its turn", left.as_str());
                Err(Outcome::Interrupted)
            }
        }
    }

    /// Sandbox, resize, image volumes and starts.
    async fn build_up(
        &mut self,
        work: &Work,
        runtime: &RuntimePod,
        mounts: &PodMounts,
        plan: &PodPlan,
        acted: &mut bool,
    ) -> Outcome {
        let pod = &work.pod;
        let context = match self.context(pod, runtime, mounts, plan, acted).await {
            Ok(Some(context)) => context,
            Ok(None) => return Outcome::Done { terminal: false },
            Err(outcome) => return outcome,
        };
        let mut trouble = false;
        if !plan.resize.is_empty() {
            // The pod's own part alone, for a container that is about to start, shows nowhere; its start will.
            let shows = plan.resize.changes_what_runs();
            *acted |= shows;
            if self.resize(pod, runtime, &plan.resize).await.is_err() {
                trouble = true;
            } else if shows {
                // A change that the runtime does not show, like that of a memory request, wakes nobody.
                self.shared.pod_states.look_again(&self.uid);
            }
        }
        let mut until: Option<Timestamp> = None;
        let mut aborted = false;
        for start in &plan.start {
            if self.is_ending() && *acted {
                // What is up already is enough: the pod is to end.
                break;
            }
            if self.is_stopping() {
                return Outcome::Interrupted;
            }
            let gate = start.gate.at(self.shared.clock.now());
            if let StartGate::BackOff { until: at, .. } | StartGate::Pause { until: at } = &gate {
                until = Some(until.map_or(*at, |earliest| earliest.min(*at)));
            } else {
                *acted = true;
            }
            match Box::pin(self.start(&context, start, &gate)).await {
                Ok(()) => {
                    self.faults.remove(&start.name);
                    if start.kind == ContainerKind::Init {
                        let now = self.shared.clock.now();
                        let starts = &self.shared.metrics.starts;
                        starts.note(|startups| startups.init_began(&self.uid, now));
                    }
                }
                Err(NotStarted::SandboxEnded(message)) => {
                    self.timeline.note("the sandbox ends: everything begins anew", message);
                    self.shared.pod_states.look_again(&self.uid);
                    return Outcome::Done { terminal: false };
                }
                Err(NotStarted::Interrupted(left)) => {
                    self.timeline.note_container("not started", &start.name, left.as_str());
                    return Outcome::Interrupted;
                }
                Err(NotStarted::Fault(fault)) => {
                    trouble = true;
                    self.timeline.note_container(
                        "not started",
                        &start.name,
                        format!("{}: {}", fault.reason, fault.message),
                    );
                    self.faults.insert(start.name.clone(), fault);
                    if start.on_failure == OnFailure::Abort {
                        aborted = true;
                        break;
                    }
                }
            }
        }
        if !aborted {
            self.note_ended_init(pod, runtime);
        }
        if trouble {
            self.show_trouble(work, runtime, *acted);
            return Outcome::Failed { network_not_ready: false, back_off_until: until };
        }
        Outcome::Done { terminal: false }
    }

    /// Notes when init containers (no sidecars) ended.
    fn note_ended_init(&self, pod: &Pod, runtime: &RuntimePod) {
        let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let names: BTreeSet<&str> = init
            .filter(|container| !container.is_sidecar())
            .map(|container| container.name.as_str())
            .collect();
        let ended = runtime.containers.iter().filter(|c| c.state == ContainerRunState::Exited);
        let ended = ended.filter(|c| names.contains(c.name.as_str()));
        self.shared.metrics.starts.note(|startups| {
            for at in ended.filter_map(|c| c.finished_at) {
                startups.init_ended(&self.uid, at);
            }
        });
    }

    /// Shows waiting reasons now, unless what we did brings a new view and with it the next status.
    fn show_trouble(&self, work: &Work, runtime: &RuntimePod, acted: bool) {
        if acted {
            return;
        }
        let run = super::report::Run::Alive;
        let status = self.generate_status(&work.pod, work.mirror.as_ref(), runtime, run).status;
        if !status.is_terminal() {
            self.publish(work, status);
        }
    }

    /// Removes all but the newest dead instances of each container (`kubelet: podContainerDeletor`).
    pub(super) async fn remove_old_instances(&self, runtime: &RuntimePod) {
        for id in old_instances(runtime, &self.shared.config.gc) {
            if let Err(error) = self.remove_container(runtime, &id, Logs::Remove).await {
                tracing::warn!(containerID = %id, err = %error, "cannot remove dead container");
            }
        }
    }

    /// Whether the pod was asked to end.
    pub(super) fn is_ending(&self) -> bool {
        self.shared.pod_states.ask(|workers| workers.termination_requested(&self.uid))
    }

    /// Removes one dead instance (`kubelet: removeContainer`): logs, link, then the runtime's part.
    pub(super) async fn remove_container(
        &self,
        runtime: &RuntimePod,
        id: &ContainerId,
        logs: Logs,
    ) -> Result<(), String> {
        self.shared.placement.container_removed(id.as_str());
        if let (Logs::Remove, Some(view)) = (logs, runtime.container(id)) {
            self.remove_logs(runtime, view).await?;
        }
        self.shared.runtime.remove_container(id.as_str()).await.map_err(|fault| fault.to_string())
    }

    /// A container's definition by kind and index of the plan.
    pub(super) fn definition(pod: &Pod, start: &StartContainer) -> Option<Container> {
        let spec = pod.spec.as_ref()?;
        match start.kind {
            ContainerKind::Regular => spec.containers.get(start.index).cloned(),
            ContainerKind::Init | ContainerKind::Sidecar => {
                spec.init_containers.as_ref()?.get(start.index).cloned()
            }
            ContainerKind::Ephemeral => spec
                .ephemeral_containers
                .as_ref()?
                .get(start.index)
                .map(engine::request::container::as_container),
        }
    }

    /// An event about one container.
    pub(super) fn container_event(
        &self,
        pod: &Arc<Pod>,
        start: &StartContainer,
        severity: EventSeverity,
        reason: &'static str,
        message: String,
    ) {
        let field_path = Some(start.kind.field_path(&start.name));
        let target = EventTarget::Pod { pod: Arc::clone(pod), field_path };
        self.shared.events.emit(NodeEvent { target, severity, reason, message });
    }
}

/// Whether an instance's logs go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logs {
    Remove,
    Keep,
}

/// A waiting reason with its message.
pub(super) fn fault(reason: &str, message: impl Into<String>) -> StartError {
    StartError { reason: reason.to_owned(), message: message.into() }
}
