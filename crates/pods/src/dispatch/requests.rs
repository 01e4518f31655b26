//! What others ask of the dispatcher: to end a pod, to look at one, to judge one again.

use super::{DispatchTask, Room};
use crate::metrics::resize::RetryTrigger;
use api::core::v1::Pod;
use api::ids::PodUid;
use engine::pod::life::{KillOptions, StatusOverride, UpdateKind};
use ports::KillRequest;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a pod that is still to be judged waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Others that must end for it.
    Room,
    /// Devices, or the answer of a device plugin.
    Devices,
}

/// A request to the task.
#[derive(Debug)]
pub(crate) enum Request {
    /// Ends a pod; the answer carries the receiver that resolves when its containers stopped.
    Kill {
        uid: PodUid,
        request: Box<KillRequest>,
        answer: oneshot::Sender<Result<oneshot::Receiver<()>, String>>,
    },
    /// A readiness or device change wants this pod synced.
    Sync(PodUid),
    /// What this pod waited for is over: judge it again.
    Admit(PodUid, Wait),
    /// This pod still waits for an answer, in words: tell of it.
    Unanswered(PodUid, String),
    /// The victims of this pod's resize have gone: judge that again.
    Resize(PodUid),
}

impl DispatchTask {
    pub(super) async fn take_request(&mut self, request: Request) {
        match request {
            Request::Admit(uid, wait) => {
                // It may have been judged since, because it is to go. And it may have to wait for the one after
                // it waited for the other.
                let waits = match wait {
                    Wait::Room => self.preempting.contains(&uid),
                    Wait::Devices => self.late.contains(&uid),
                };
                if let Some(pod) = self.desired.get(&uid).filter(|_| waits).cloned() {
                    self.admit(pod).await;
                }
                if wait == Wait::Room {
                    self.preempting.remove(&uid);
                }
            }
            Request::Unanswered(uid, what) => {
                if let Some(pod) = self.desired.get(&uid).filter(|_| self.late.contains(&uid)) {
                    self.tell_wait(pod, &what);
                }
            }
            Request::Resize(uid) => {
                self.making_room.insert(uid.clone(), Room::Made);
                self.retry_resizes(RetryTrigger::PodUpdated).await;
                self.making_room.remove(&uid);
            }
            Request::Sync(uid) => {
                if let Some(pod) = self.desired.get(&uid).cloned() {
                    self.push(UpdateKind::Sync, &pod);
                }
            }
            Request::Kill { uid, request, answer } => {
                let pod = self.desired.get(&uid).cloned().or_else(|| {
                    self.shared
                        .pod_states
                        .ask(|workers| workers.record(&uid).and_then(|r| r.pod().cloned()))
                });
                let result = match pod {
                    None => Err(format!("pod {uid} is not known")),
                    Some(pod) => Ok(self.kill(&pod, *request)),
                };
                // A caller that left does not mind.
                let _ = answer.send(result);
            }
        }
    }

    fn kill(&mut self, pod: &Arc<Pod>, request: KillRequest) -> oneshot::Receiver<()> {
        self.shared.timelines.of(pod).note("kill requested", request.reason.clone());
        let status = StatusOverride {
            keep_succeeded: request.reason == "Terminated",
            reason: request.reason,
            message: request.message,
            condition: request.condition,
        };
        let options = KillOptions {
            evict: request.evict,
            grace_seconds: request.grace_seconds,
            status: Some(status),
            completion: None,
        };
        self.end(pod, options)
    }

    pub(super) fn end(&mut self, pod: &Arc<Pod>, options: KillOptions) -> oneshot::Receiver<()> {
        let (signals, wait) = self.shared.pod_states.kill(self.allocated(pod), options);
        if let Some(signals) = signals {
            self.spawn_worker(pod, signals);
        }
        wait
    }
}
