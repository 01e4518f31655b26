//! Bringing a pod in line with its spec (`kubelet: SyncPod`).
//!
//! Promises: steps in upstream's order; a wait for volumes or images ends at once when the pod is to
//! end; each failure is an event, a timeline step and a retry.

use super::report::Run;
use super::{PodWorker, failed};
use api::core::v1::{Pod, PodStatus};
use api::pod::{PodExt, PodStatusExt};
use engine::pod::kill;
use engine::pod::life::{Outcome, Work};
use engine::pod::{PodView, missing_cgroup, plan, resize_in_progress};
use engine::runtime::RuntimePod;
use ports::{PodMounts, VolumeError};
use std::sync::Arc;

impl PodWorker {
    pub(super) async fn sync(&mut self, work: &Work, runtime: Arc<RuntimePod>) -> Outcome {
        let pod = &work.pod;
        self.note_resize_that_needs_nothing(pod, &runtime);
        let generated = self.generate_status(pod, work.mirror.as_ref(), &runtime, Run::Alive);
        let (status, restart_all) = (generated.status, generated.restart_all);
        let terminal = status.is_terminal();
        if !terminal {
            self.count_start(pod, &status);
        }
        let mut runtime = self.with_status_ips(runtime, &status);
        self.publish(work, status);
        self.remove_old_instances(&runtime).await;
        if terminal {
            self.timeline.note("ended by itself", "");
            return Outcome::Done { terminal: true };
        }
        if let Some(error) = self.network_error(pod) {
            let message = format!("network is not ready: {error}");
            self.timeline.note("network is not ready", error);
            self.warn(pod, "NetworkNotReady", message);
            return Outcome::Failed { network_not_ready: true, back_off_until: None };
        }
        self.shared.objects.register_pod(pod);
        match self.ensure_cgroup(pod, &runtime).await {
            Ok(Cgroup::Ready) => {}
            Ok(Cgroup::KilledFirst) => match self.look_now().await {
                Ok(fresh) => runtime = fresh,
                Err(_) => return failed(),
            },
            Err(()) => return failed(),
        }
        if pod.is_static() {
            self.shared.mirrors.reconcile(pod, work.mirror.as_ref()).await;
        }
        if let Err(error) = self.make_pod_dirs(pod).await {
            self.warn(pod, "Failed", format!("error making pod data directories: {error}"));
            return failed();
        }
        let mounts = match self.wait_for_volumes(pod).await {
            Ok(mounts) => mounts,
            Err(outcome) => return outcome,
        };
        self.read_pull_secrets(pod).await;
        self.shared.prober.add_pod(pod);
        let probes = self.shared.prober.results(&runtime, None);
        let actuated = self.shared.actuated.of(&self.uid);
        let todo = plan(
            &PodView {
                pod,
                runtime: &runtime,
                probes: &probes,
                actuated: &actuated,
                back_off: &self.back_off,
                restart_all,
                gates: &self.shared.config.gates,
            },
            self.shared.clock.now(),
        );
        let settled = todo.resize.is_empty() && todo.kill.is_empty();
        if settled && self.has_what_was_granted(pod) && self.shared.resizes.completed(pod) {
            let run = Run::Alive;
            let done = self.generate_status(pod, work.mirror.as_ref(), &runtime, run);
            self.publish(work, done.status);
        }
        Box::pin(self.execute(work, &runtime, &mounts, todo)).await
    }

    /// A resize of what does not run is over before any status shows it.
    fn note_resize_that_needs_nothing(&self, pod: &Arc<Pod>, runtime: &RuntimePod) {
        let (actuated, gates) = (self.shared.actuated.of(&self.uid), &self.shared.config.gates);
        if self.has_what_was_granted(pod) && !resize_in_progress(pod, runtime, &actuated, gates) {
            self.shared.resizes.completed(pod);
        }
    }

    /// Whether a resize is under way and this is the pod with the resources that it granted: one that was
    /// granted after this look began is not over because nothing is to do yet.
    fn has_what_was_granted(&self, pod: &Pod) -> bool {
        self.shared.resizes.is_under_way(&self.uid)
            && self.shared.allocated.applied_to(pod).is_none()
    }

    /// Counts the time from the first sight of a pod to its first running moment, and to our first look at it.
    fn count_start(&self, pod: &Pod, status: &PodStatus) {
        let before = self.shared.status.get(&self.uid);
        let counts = before.is_none_or(|before| {
            before.phase.as_deref() == Some("Pending") && status.phase.as_deref() == Some("Running")
        });
        let seen = pod
            .annotation(api::pod::SEEN_ANNOTATION)
            .and_then(|seen| seen.parse::<jiff::Timestamp>().ok());
        if let (true, Some(seen)) = (counts, seen) {
            let took = self.shared.clock.now().duration_since(seen);
            self.shared.metrics.pod_start.observe(&[], took.as_secs_f64());
        }
    }

    /// The view with the addresses that the status shows (host-network pods have the node's).
    fn with_status_ips(&self, runtime: Arc<RuntimePod>, status: &PodStatus) -> Arc<RuntimePod> {
        let shown: Vec<String> = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
        if shown == runtime.ips {
            return runtime;
        }
        Arc::new(RuntimePod { ips: shown, ..(*runtime).clone() })
    }

    fn network_error(&self, pod: &Pod) -> Option<String> {
        let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or_default();
        if host_network { None } else { self.shared.node.borrow().network_error.clone() }
    }

    async fn ensure_cgroup(&mut self, pod: &Arc<Pod>, runtime: &RuntimePod) -> Result<Cgroup, ()> {
        let mut outcome = Cgroup::Ready;
        let cgroups = Arc::clone(&self.shared.cgroups);
        // One that is there may have been left half made, without its limits, by an agent that was killed. Nothing
        // runs in it then: whoever makes the first sandbox knows that it is whole.
        let is_whole = self.knows_cgroup || !runtime.is_dead();
        if is_whole && cgroups.exists(pod).await {
            return Ok(outcome);
        }
        let todo = missing_cgroup(pod, runtime, &self.shared.config.gates);
        if todo.kill {
            self.timeline.note("pod cgroup is missing: killing containers first", "");
            let all = kill::plan_pod(Some(pod), runtime, None);
            if let Err(error) = self.killer(pod, runtime).pod(all).await {
                tracing::error!(podUID = %self.uid, err = %error, "cannot kill pod");
            }
            self.acted();
            outcome = Cgroup::KilledFirst;
        }
        if !todo.make {
            return Ok(outcome);
        }
        if let Err(error) = cgroups.ensure(pod).await {
            self.timeline.note("pod cgroup failed", error.to_string());
            self.warn(
                pod,
                "FailedCreatePodContainer",
                format!("unable to ensure pod container exists: {error}"),
            );
            return Err(());
        }
        self.knows_cgroup = true;
        self.timeline.note("pod cgroup ready", "");
        self.shared.actuated.record_pod(&self.uid, pod);
        Ok(outcome)
    }

    /// Waits for volumes; ends at once when the pod is to end.
    async fn wait_for_volumes(&mut self, pod: &Arc<Pod>) -> Result<PodMounts, Outcome> {
        let volumes = Arc::clone(&self.shared.volumes);
        if pod.spec.as_ref().is_some_and(|s| s.volumes.as_ref().is_some_and(|v| !v.is_empty())) {
            self.timeline.note("waiting for volumes", "");
        }
        let result = tokio::select! {
            result = volumes.wait_ready(pod) => result, // dropping the wait is safe by contract
            left = self.wait_exit().reason() => { // cancel-safe: watches
                self.timeline.note("wait for volumes left", left.as_str());
                return Err(Outcome::Interrupted);
            }
        };
        match result {
            Ok(mounts) => Ok(mounts),
            Err(VolumeError::AttachLimit(message)) => {
                self.shared.metrics.rejections.inc(&["VolumeAttachmentLimitExceeded"]);
                self.reject(
                    pod,
                    "VolumeAttachmentLimitExceeded",
                    &format!(
                        "Node has reached its volume attachment limit, rejecting pod. {message}"
                    ),
                );
                Err(Outcome::Done { terminal: true })
            }
            Err(error) => {
                self.timeline.note("volumes are not ready", error.to_string());
                // Whoever mounts has reported why; the end of our patience is no news.
                if !matches!(error, VolumeError::TimedOut(_)) {
                    let message = format!("Unable to attach or mount volumes: {error}");
                    self.warn(pod, "FailedMount", message);
                }
                Err(failed())
            }
        }
    }
}

/// What was done about the pod's cgroup.
enum Cgroup {
    Ready,
    KilledFirst,
}
