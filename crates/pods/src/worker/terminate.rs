//! The end of a pod: stop it, then release what it held.
//!
//! Promises: nothing is released while a container may run; the API sees the final phase only after
//! the last container stopped; folders go last and no mount is ever crossed.

use super::report::Run;
use super::{PodWorker, failed};
use api::core::v1::Pod;
use engine::pod::kill;
use engine::pod::life::{Outcome, Work};
use engine::runtime::RuntimePod;
use engine::status::apply_override;
use std::sync::Arc;

impl PodWorker {
    /// Stops everything (`kubelet: SyncTerminatingPod`).
    pub(super) async fn terminating(&mut self, work: &Work, runtime: Arc<RuntimePod>) -> Outcome {
        let pod = &work.pod;
        self.timeline.note("terminating", grace_text(work.grace_seconds));
        let mirror = work.mirror.as_ref();
        let mut status = self.generate_status(pod, mirror, &runtime, Run::Alive).status;
        if let Some(wish) = &work.status {
            apply_override(&mut status, wish);
        }
        self.publish(work, status);
        self.shared.prober.stop_liveness_and_startup(&self.uid);
        let before = runtime.ips.clone();
        let todo = kill::plan_pod(Some(pod), &runtime, work.grace_seconds);
        if let Err(error) = self.killer(pod, &runtime).pod(todo).await {
            self.timeline.note("kill failed", error.clone());
            self.warn(pod, "FailedKillPod", format!("error killing pod: {error}"));
            self.acted();
            return failed();
        }
        self.shared.prober.remove_pod(&self.uid);
        let mut after = match self.look_now().await {
            Ok(after) => (*after).clone(),
            Err(error) => {
                self.timeline.note("runtime view failed", error.as_ref());
                return failed();
            }
        };
        self.note_seen();
        if after.ips.is_empty() {
            after.ips = before;
        }
        if after.has_running_container() {
            // The runtime said that it stopped them.
            self.timeline.note("containers run although they were stopped", "");
            return failed();
        }
        if let Err(error) = self.shared.placement.release(pod).await {
            self.timeline.note("dynamic resources not released", error.to_string());
            return failed();
        }
        let status = self.generate_status(pod, mirror, &after, Run::end_of(work)).status;
        self.publish(work, status);
        self.timeline.note("containers stopped", "");
        Outcome::Done { terminal: false }
    }

    /// Stops a pod that only the runtime knows (`kubelet: SyncTerminatingRuntimePod`).
    pub(super) async fn terminating_runtime(
        &mut self,
        work: &Work,
        runtime: Arc<RuntimePod>,
    ) -> Outcome {
        let todo = kill::plan_pod(None, &runtime, Some(work.grace_seconds.unwrap_or(1)));
        let result = self.killer(&work.pod, &runtime).pod(todo).await;
        self.acted();
        match result {
            Ok(()) => Outcome::Done { terminal: false },
            Err(error) => {
                self.warn(&work.pod, "FailedKillPod", format!("error killing pod: {error}"));
                failed()
            }
        }
    }

    /// Releases what the pod held (`kubelet: SyncTerminatedPod`).
    pub(super) async fn terminated(&mut self, work: &Work, runtime: Arc<RuntimePod>) -> Outcome {
        let pod = &work.pod;
        let run = Run::end_of(work);
        let status = self.generate_status(pod, work.mirror.as_ref(), &runtime, run).status;
        self.publish(work, status);
        let released = tokio::select! {
            released = self.shared.volumes.wait_released(pod) => released, // only waits
            () = self.stopping.cancelled() => return Outcome::Interrupted, // cancel-safe: a token
        };
        if let Err(error) = released {
            self.timeline.note("volumes are not released", error.to_string());
            return failed();
        }
        self.shared.objects.forget_pod(self.uid.as_str());
        if let Err(error) = self.shared.cgroups.remove(&self.uid).await {
            self.timeline.note("pod cgroup not removed", error.to_string());
            tracing::error!(podUID = %self.uid, err = %error, "cannot remove pod cgroup");
            return failed();
        }
        self.shared.userns.release(&self.uid).await;
        self.shared.status.finish(pod, work.mirror.as_ref());
        self.timeline.note("finished", "");
        Outcome::Done { terminal: false }
    }

    /// Refuses a pod that was admitted (`kubelet: rejectPod` from a sync).
    pub(super) fn reject(&mut self, pod: &Arc<Pod>, reason: &'static str, message: &str) {
        self.timeline.note("rejected", message);
        self.warn(pod, reason, message);
        self.shared.status.reject(pod, reason, message);
    }
}

fn grace_text(seconds: Option<i64>) -> String {
    seconds.map(|s| format!("grace {s}s")).unwrap_or_default()
}
