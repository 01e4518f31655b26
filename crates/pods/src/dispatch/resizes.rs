//! Resizes that wait: noted when a pod wishes other resources than it has, tried when there may be room.

use super::{DispatchTask, RESIZE_RETRY, Request, Room};
use crate::admission::Admitted;
use crate::metrics::resize::RetryTrigger;
use crate::sources::merge::Change;
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::admission::resize::{PendingResize, order};
use engine::pod::life::UpdateKind;
use std::sync::Arc;
use tokio::time::Instant;

/// Why these changes may make room.
pub(super) fn trigger(changes: &[Change]) -> RetryTrigger {
    let any = |wanted: fn(&Change) -> bool| changes.iter().any(wanted);
    if any(|c| matches!(c, Change::Remove(_))) {
        RetryTrigger::PodsRemoved
    } else if any(|c| matches!(c, Change::Add(_))) {
        RetryTrigger::PodsAdded
    } else if any(|c| matches!(c, Change::Update(_) | Change::Delete(_))) {
        RetryTrigger::PodUpdated
    } else if any(|c| matches!(c, Change::Reconcile(pod) if pod.is_terminal())) {
        RetryTrigger::PodTerminated
    } else {
        RetryTrigger::PodResized
    }
}

impl DispatchTask {
    /// Notes whether a pod wishes other resources than it has.
    fn note_wish(&mut self, pod: &Pod) -> bool {
        let differs = self.shared.allocated.applied_to(pod).is_some();
        if differs {
            self.resizing.insert(pod.uid());
        }
        differs
    }

    /// Takes a new wish; one for what the pod has takes the old one back, also if that was refused for good.
    pub(super) fn change_wish(&mut self, pod: &Pod) {
        if !self.note_wish(pod) {
            let uid = pod.uid();
            self.resizing.remove(&uid);
            self.shared.resizes.settled(&uid);
        }
    }

    /// Tries every waiting resize, most deserving first.
    pub(crate) async fn retry_resizes(&mut self, trigger: RetryTrigger) {
        self.next_resizes = Instant::now() + RESIZE_RETRY;
        if self.resizing.is_empty() || !self.sources_ready() {
            return;
        }
        let waiting: Vec<(Arc<Pod>, Arc<Pod>)> = self
            .resizing
            .iter()
            .filter_map(|uid| self.desired.get(uid))
            .map(|pod| (Arc::clone(pod), self.allocated(pod)))
            .collect();
        let pending: Vec<PendingResize<'_>> = waiting
            .iter()
            .map(|(wished, allocated)| PendingResize {
                wished,
                allocated,
                since: self.shared.resizes.pending_since(&wished.uid()),
            })
            .collect();
        self.resizing.retain(|uid| waiting.iter().any(|(pod, _)| pod.uid() == *uid));
        for index in order(&pending) {
            let Some((wished, allocated)) = waiting.get(index).cloned() else { continue };
            let uid = wished.uid();
            if Arc::ptr_eq(&wished, &allocated) {
                self.resizing.remove(&uid);
                self.shared.resizes.settled(&uid);
                continue;
            }
            let others = self.active_pods(&uid);
            let active = self.active(&others);
            let judged =
                self.admission.admit_resize(&wished, &allocated, active, &self.shared).await;
            let room = self.making_room.get(&uid).copied();
            match judged {
                Admitted::After(victims, signal) if room.is_none() => {
                    self.making_room.insert(uid.clone(), Room::Asked);
                    self.preempt(&victims, signal, Request::Resize(uid));
                    continue;
                }
                // A plugin does not answer: the resize is tried again like one that waits for room.
                Admitted::Waits(_) => continue,
                Admitted::After(..) if room == Some(Room::Asked) => continue,
                // Those that were asked to go had their time.
                Admitted::Yes | Admitted::After(..) => {
                    self.shared.allocated.record_pod(&uid, &wished);
                    self.shared.resizes.accepted(&wished, trigger);
                    self.shared.allocated.saved().await;
                    self.resizing.remove(&uid);
                    self.shared.timelines.of(&wished).note("resize accepted", "");
                }
                Admitted::No(refusal) => {
                    if !self.shared.resizes.refused(&wished, &refusal) {
                        self.resizing.remove(&uid);
                    }
                    self.shared.timelines.of(&wished).note("resize waits", refusal.message);
                }
            }
            self.push(UpdateKind::Update, &wished);
        }
    }
}
