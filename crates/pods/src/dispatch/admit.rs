//! Judging pods: those that fit get a worker, those that do not are told so, and where others must end for one
//! it waits for them.

use super::requests::Wait;
use super::{DispatchTask, Request};
use crate::admission::Admitted;
use crate::handle::overdue;
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::admission::{Rejection, preempt};
use engine::pod::life::{KillOptions, UpdateKind};
use engine::status::{WAITING_FOR_DEVICES, held_back};
use ports::{EventSeverity, OnExit};
use std::sync::Arc;
use std::time::Duration;

/// How long a pod waits for the answer of a device plugin before anybody is told.
const SMALL_DELAY: Duration = Duration::from_secs(5);

impl DispatchTask {
    /// Judges a pod that is new to us, or whose victims have gone.
    pub(super) async fn admit(&mut self, pod: Arc<Pod>) {
        let uid = pod.uid();
        if let Some(what) = self.worth_waiting_for(&pod) {
            self.wait_for_devices(&pod, &what);
            return;
        }
        let timeline = self.shared.timelines.of(&pod);
        let others = self.active_pods(&uid);
        match self.admission.admit(&pod, self.active(&others), &self.shared).await {
            Admitted::Yes => self.take_in(&pod),
            Admitted::After(victims, signal) if self.preempting.insert(uid.clone()) => {
                timeline.note("waiting for room", format!("{} pods end", victims.len()));
                self.preempt(&victims, signal, Request::Admit(uid, Wait::Room));
            }
            Admitted::After(..) => {
                // Those that were asked to go had their time: the pod does not wait for their last bit.
                self.admission.grant(&pod, &self.shared).await;
                self.take_in(&pod);
            }
            Admitted::Waits(what) => self.wait_for_answer(&pod, what),
            Admitted::No(refusal) => self.refuse(&pod, &refusal.reason, &refusal.message),
        }
    }

    /// What a pod had better wait for before it is judged. It waits once, and not if it is to go.
    fn worth_waiting_for(&mut self, pod: &Pod) -> Option<String> {
        let waited = self.late.remove(&pod.uid());
        let goes = pod.metadata.deletion_timestamp.is_some();
        if waited || goes { None } else { self.shared.placement.awaited_plugin(pod) }
    }

    fn wait_for_devices(&mut self, pod: &Arc<Pod>, what: &str) {
        self.late.insert(pod.uid());
        self.shared.timelines.of(pod).note("waiting for devices", what);
        self.tell_wait(pod, what);
        self.judge_when_settled(pod, None);
    }

    /// A device plugin does not answer: whoever does not need it goes first. It is told of once it is no small delay.
    fn wait_for_answer(&mut self, pod: &Arc<Pod>, what: String) {
        if pod.metadata.deletion_timestamp.is_some() {
            self.shared.placement.abandon(pod.uid().as_str());
            let message = format!("Allocate failed due to waiting for {what}, which is unexpected");
            self.refuse(pod, "UnexpectedAdmissionError", &message);
            return;
        }
        self.late.insert(pod.uid());
        self.shared.timelines.of(pod).note("waiting for devices", what.clone());
        self.judge_when_settled(pod, Some(what));
    }

    /// Says what a pod waits for.
    pub(super) fn tell_wait(&self, pod: &Arc<Pod>, what: &str) {
        let message = format!("Waiting for {what}");
        let mirror = self.desired.mirror_of(pod).cloned();
        let previous = self.shared.status.previous(pod, mirror.as_ref());
        let status = held_back(&previous, &message);
        self.shared.status.set(pod, mirror.as_ref(), status);
        self.event(pod, EventSeverity::Normal, WAITING_FOR_DEVICES, message);
    }

    /// Has a pod judged again when its devices are there; `untold` is what it waits for, if nobody was told yet.
    fn judge_when_settled(&self, pod: &Arc<Pod>, untold: Option<String>) {
        let (again, shared, pod) = (self.again.clone(), Arc::clone(&self.shared), Arc::clone(pod));
        self.shared.tasks.spawn("late-devices", OnExit::Fine, async move {
            let token = shared.tasks.token();
            let uid = pod.uid();
            let settled = async {
                let settled = shared.placement.settled(&pod);
                tokio::pin!(settled);
                if let Some(what) = untold {
                    if tokio::time::timeout(SMALL_DELAY, &mut settled).await.is_ok() {
                        return;
                    }
                    // The task ends only with everything.
                    let _ = again.send(Request::Unanswered(uid.clone(), what)).await;
                }
                settled.await;
            };
            // Cancel-safe: the pod is judged again after the next start.
            if token.run_until_cancelled(settled).await.is_some() {
                // The task ends only with everything.
                let _ = again.send(Request::Admit(uid, Wait::Devices)).await;
            }
        });
    }

    /// A pod that waits for devices was changed: if it is to go, it waits no longer.
    pub(super) fn late_changed(&self, pod: &Pod) {
        if pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        let (again, uid) = (self.again.clone(), pod.uid());
        self.shared.tasks.spawn("late-devices", OnExit::Fine, async move {
            // The task ends only with everything.
            let _ = again.send(Request::Admit(uid, Wait::Devices)).await;
        });
    }

    fn take_in(&mut self, pod: &Arc<Pod>) {
        self.shared.timelines.of(pod).note("admitted", "");
        self.preempting.remove(&pod.uid());
        // What an earlier agent told of a wish that was granted since is over.
        self.change_wish(pod);
        // Whoever mounts may see the pod before its worker does.
        self.shared.objects.register_pod(pod);
        self.push(UpdateKind::Create, pod);
    }

    fn refuse(&mut self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let uid = pod.uid();
        self.preempting.remove(&uid);
        self.shared.timelines.of(pod).note("rejected", format!("{reason}: {message}"));
        self.rejected.insert(uid);
        let refusal = Rejection { reason: reason.to_owned(), message: message.to_owned() };
        self.shared.metrics.rejections.inc(&[refusal.metric_label()]);
        self.shared.status.reject(pod, reason, message);
        let reason = crate::admission::static_reason(reason);
        self.event(pod, EventSeverity::Warning, reason, message.to_owned());
    }

    /// Ends the victims; asked again is when they are gone, or had their time.
    pub(super) fn preempt(&mut self, victims: &[Arc<Pod>], signal: String, then: Request) {
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
            let limit = (limit * 3 / 2).max(Duration::from_secs(10));
            gone.push((Arc::clone(victim), self.end(victim, options), limit));
        }
        let (again, shared) = (self.again.clone(), Arc::clone(&self.shared));
        self.shared.tasks.spawn("preemption", OnExit::Fine, async move {
            for (victim, ended, limit) in gone {
                match tokio::time::timeout(limit, ended).await {
                    Ok(_) => shared.metrics.preemptions.inc(&[&signal]),
                    Err(_) => shared.events.emit(overdue(victim)),
                }
            }
            // The task ends only with everything.
            let _ = again.send(then).await;
        });
    }
}
