//! Judging pods: those that fit get a worker, those that do not are told so, and where others must end for one
//! it waits for them.

use super::{DispatchTask, Request};
use crate::admission::Admitted;
use crate::sources::desired::uid_of;
use api::core::v1::Pod;
use api::ids::PodUid;
use engine::admission::{Rejection, preempt};
use engine::pod::life::{KillOptions, UpdateKind};
use ports::{EventSeverity, OnExit};
use std::sync::Arc;
use std::time::Duration;

impl DispatchTask {
    /// Judges a pod that is new to us, or whose victims have gone.
    pub(super) async fn admit(&mut self, pod: Arc<Pod>) {
        let uid = uid_of(&pod);
        let timeline = self.shared.timelines.of(&pod);
        let others = self.active_pods(&uid);
        match self.admission.admit(&pod, self.active(&others), &self.shared).await {
            Admitted::Yes => {
                timeline.note("admitted", "");
                self.preempting.remove(&uid);
                self.note_wish(&pod);
                // Whoever mounts may see the pod before its worker does.
                self.shared.objects.register_pod(&pod);
                self.push(UpdateKind::Create, &pod);
            }
            Admitted::After(victims, signal) if self.preempting.insert(uid.clone()) => {
                victims.iter().for_each(|_| self.shared.metrics.preemptions.inc(&[&signal]));
                timeline.note("waiting for room", format!("{} pods end", victims.len()));
                self.preempt(uid, &victims);
            }
            Admitted::After(..) => {
                let message = "Unexpected error while attempting to recover from admission failure: \
                               preemption: pods did not end in time";
                self.refuse(&pod, "UnexpectedAdmissionError", message);
            }
            Admitted::No(refusal) => self.refuse(&pod, &refusal.reason, &refusal.message),
        }
    }

    fn refuse(&mut self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let uid = uid_of(pod);
        self.preempting.remove(&uid);
        self.shared.timelines.of(pod).note("rejected", format!("{reason}: {message}"));
        self.rejected.insert(uid);
        let refusal = Rejection { reason: reason.to_owned(), message: message.to_owned() };
        self.shared.metrics.rejections.inc(&[refusal.metric_label()]);
        self.shared.status.reject(pod, reason, message);
        let reason = crate::admission::static_reason(reason);
        self.event(pod, EventSeverity::Warning, reason, message.to_owned());
    }

    /// Ends the victims; the pod is judged again when they are gone.
    fn preempt(&mut self, uid: PodUid, victims: &[Arc<Pod>]) {
        let mut gone = Vec::new();
        for victim in victims {
            self.event(
                victim,
                EventSeverity::Warning,
                preempt::REASON,
                preempt::MESSAGE.to_owned(),
            );
            let options = KillOptions {
                evict: true,
                status: Some(preempt::status(victim.metadata.generation)),
                ..KillOptions::default()
            };
            let grace = victim.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
            let limit =
                Duration::from_secs(grace.and_then(|g| u64::try_from(g).ok()).unwrap_or(30));
            gone.push((self.end(victim, options), (limit * 3 / 2).max(Duration::from_secs(10))));
        }
        let again = self.again.clone();
        self.shared.tasks.spawn("preemption", OnExit::Fine, async move {
            for (ended, limit) in gone {
                // A victim that does not end in time is found by the next judgement.
                let _ = tokio::time::timeout(limit, ended).await;
            }
            // The task ends only with everything.
            let _ = again.send(Request::Admit(uid)).await;
        });
    }
}
