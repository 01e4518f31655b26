//! The newest status of every pod, and its way to the API server.
//!
//! Owns: one cached status per pod with a version ([`StatusCache`]), those who follow every change
//! ([`followers`]), the task that sends what the API lacks ([`publisher`]), and mirror pods ([`mirror`]).
//!
//! Promises: a status that would bring a container back from the dead is dropped; a probe result is
//! written at once, also while its pod's worker is busy; nothing is sent for a pod that did not change.

pub(crate) mod followers;
pub(crate) mod mirror;
pub(crate) mod publisher;

use self::followers::Followers;
use api::core::v1::{Pod, PodStatus};
use api::ids::{ContainerId, PodUid};
use api::pod::{PodExt, PodStatusExt};
use engine::status::cache::{self, Cached, NewlyTerminated, Offer, Taken};
use engine::status::{StatusGates, ready_condition, rejected};
use ports::{Clock, PodChangeKind, ShownPod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use telemetry::metrics::CounterFamily;
use tokio::sync::watch;

#[derive(Debug, Clone)]
struct Slot {
    pod: Arc<Pod>,
    cached: Cached,
    /// The mirror that was known when the status was made.
    mirror: Option<PodUid>,
}

impl Slot {
    /// Whether the status was made before we knew this mirror, which has one already: another
    /// agent, or an earlier run of ours, looked after this static pod, and we go on from there.
    fn lacks(&self, mirror: Option<&Arc<Pod>>) -> bool {
        self.mirror.is_none() && mirror.is_some_and(|mirror| is_adopted(mirror))
    }
}

/// Whether somebody has published a status to this mirror.
fn is_adopted(mirror: &Pod) -> bool {
    mirror.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// All cached statuses. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StatusCache {
    slots: Arc<Mutex<BTreeMap<PodUid, Slot>>>,
    changed: watch::Sender<u64>,
    /// By pod the version that the API server has, as far as we know.
    acknowledged: watch::Sender<BTreeMap<PodUid, u64>>,
    clock: Arc<dyn Clock>,
    gates: Arc<StatusGates>,
    terminated: CounterFamily,
    followers: Followers,
}

impl StatusCache {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        gates: StatusGates,
        terminated: CounterFamily,
        followers: Followers,
    ) -> Self {
        Self {
            slots: Arc::default(),
            changed: watch::Sender::new(0),
            acknowledged: watch::Sender::new(BTreeMap::new()),
            clock,
            gates: Arc::new(gates),
            terminated,
            followers,
        }
    }

    /// Follows changes of any status.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The newest status of a pod.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.lock().get(uid).map(|slot| Arc::clone(&slot.cached.status))
    }

    /// Those who follow every change.
    pub(crate) fn followers(&self) -> &Followers {
        &self.followers
    }

    /// All cached statuses with their pods.
    pub(crate) fn all(&self) -> Vec<(PodUid, Arc<Pod>, Cached)> {
        self.lock()
            .iter()
            .map(|(uid, slot)| (uid.clone(), Arc::clone(&slot.pod), slot.cached.clone()))
            .collect()
    }

    /// Whether [`previous`](Self::previous) is a status of ours rather than what others published.
    pub(crate) fn is_own(&self, uid: &PodUid, mirror: Option<&Arc<Pod>>) -> bool {
        self.lock().get(uid).is_some_and(|slot| !slot.lacks(mirror))
    }

    /// What a new status is compared with: ours, else the mirror's, else the API's.
    pub(crate) fn previous(&self, pod: &Pod, mirror: Option<&Arc<Pod>>) -> Arc<PodStatus> {
        match self.lock().get(&pod.uid()) {
            Some(slot) if !slot.lacks(mirror) => Arc::clone(&slot.cached.status),
            _ => Arc::new(fallback(pod, mirror)),
        }
    }

    /// Offers a status.
    pub(crate) fn set(&self, pod: &Arc<Pod>, mirror: Option<&Arc<Pod>>, status: PodStatus) {
        let force = pod.metadata.deletion_timestamp.is_some();
        self.offer(pod, mirror, status, Offer { force, finished: false });
    }

    /// The pod was refused.
    pub(crate) fn reject(&self, pod: &Arc<Pod>, reason: &str, message: &str) {
        let status = rejected(pod, reason, message, &self.gates);
        self.offer(pod, None, status, Offer::default());
    }

    /// Nothing of the pod is left on the machine.
    pub(crate) fn finish(&self, pod: &Arc<Pod>, mirror: Option<&Arc<Pod>>) {
        let old = self.previous(pod, mirror);
        let status = cache::final_status(pod, &old);
        self.offer(pod, mirror, status, Offer { force: true, finished: true });
    }

    /// Writes a readiness result.
    pub(crate) fn set_readiness(&self, uid: &PodUid, id: &ContainerId, ready: bool) {
        self.rewrite(uid, |pod, status| {
            cache::with_readiness(pod, status, id.as_str(), ready, &self.gates)
        });
    }

    /// Writes a startup result.
    pub(crate) fn set_startup(&self, uid: &PodUid, id: &ContainerId, started: bool) {
        self.rewrite(uid, |_, status| cache::with_started(status, id.as_str(), started));
    }

    /// The pod's sandbox is up, before any image was pulled.
    pub(crate) fn set_sandbox_ready(&self, uid: &PodUid) {
        if !self.gates.ready_to_start {
            return;
        }
        self.rewrite(uid, |_, status| {
            let mut status = status.clone();
            let list = status.conditions.get_or_insert_default();
            let condition = list.iter_mut().find(|c| c.type_ == "PodReadyToStartContainers")?;
            if condition.status == "True" {
                return None;
            }
            "True".clone_into(&mut condition.status);
            Some(status)
        });
    }

    /// The API server has this version of a pod's status.
    pub(crate) fn acknowledged(&self, uid: &PodUid, version: u64) {
        self.acknowledged.send_modify(|acknowledged| {
            acknowledged.insert(uid.clone(), version);
        });
    }

    /// Waits until the API server has a pod's newest status, or there is none.
    pub(crate) async fn wait_acknowledged(&self, uid: &PodUid) {
        let newest = || self.lock().get(uid).map(|slot| slot.cached.version);
        let mut acknowledged = self.acknowledged.subscribe();
        let has = |acknowledged: &BTreeMap<PodUid, u64>| {
            newest().is_none_or(|newest| {
                acknowledged.get(uid).is_some_and(|version| *version >= newest)
            })
        };
        // The sender lives in `self`: it cannot be gone.
        let _ = acknowledged.wait_for(has).await;
    }

    /// Keeps the statuses of these pods.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.lock().retain(|uid, _| keep(uid));
        self.acknowledged.send_if_modified(|acknowledged| {
            let before = acknowledged.len();
            acknowledged.retain(|uid, _| keep(uid));
            acknowledged.len() < before
        });
    }

    /// Whether the cached phase is final.
    pub(crate) fn is_terminal(&self, uid: &PodUid) -> bool {
        self.lock().get(uid).is_some_and(|slot| slot.cached.status.is_terminal())
    }

    /// Names of a pod's regular containers.
    pub(crate) fn regular_names(&self, uid: &PodUid) -> BTreeSet<String> {
        let slots = self.lock();
        let spec = slots.get(uid).and_then(|slot| slot.pod.spec.as_ref());
        spec.into_iter().flat_map(|s| &s.containers).map(|c| c.name.clone()).collect()
    }

    /// The name of the container with this id.
    pub(crate) fn container_name(&self, uid: &PodUid, id: &ContainerId) -> Option<String> {
        let status = self.get(uid)?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        lists
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| engine::status::bare_id(entry).as_ref() == Some(id))
            .map(|entry| entry.name.clone())
    }

    /// Whether somebody changed what a readiness gate of the pod looks at.
    pub(crate) fn gates_differ(&self, pod: &Pod) -> bool {
        let Some(spec) = pod.spec.as_ref().filter(|s| s.readiness_gates.is_some()) else {
            return false;
        };
        let Some(api) = &pod.status else { return false };
        let conditions = api.conditions.clone().unwrap_or_default();
        let Some(shown) = conditions.iter().find(|c| c.type_ == "Ready") else { return false };
        let phase = api.phase.clone().unwrap_or_default();
        let verdict = ready_condition(spec, api, &conditions, &phase);
        let status = if verdict.holds { "True" } else { "False" };
        shown.status != status || shown.message.as_deref().unwrap_or_default() != verdict.message
    }

    fn rewrite(&self, uid: &PodUid, change: impl FnOnce(&Pod, &PodStatus) -> Option<PodStatus>) {
        let Some(slot) = self.lock().get(uid).cloned() else { return };
        if let Some(status) = change(&slot.pod, &slot.cached.status) {
            self.offer(&slot.pod, None, status, Offer::default());
        }
    }

    fn offer(&self, pod: &Arc<Pod>, mirror: Option<&Arc<Pod>>, status: PodStatus, offer: Offer) {
        let uid = pod.uid();
        let mut slots = self.lock();
        let slot = slots.get(&uid);
        let known =
            mirror.map(|mirror| mirror.uid()).or_else(|| slot.and_then(|slot| slot.mirror.clone()));
        let before = slot.map(|slot| {
            let mut cached = slot.cached.clone();
            if slot.lacks(mirror) {
                cached.status = Arc::new(fallback(pod, mirror));
            }
            cached
        });
        let now = self.clock.now();
        let fallback = fallback(pod, mirror);
        match cache::take(pod, before.as_ref(), &fallback, status, offer, &self.gates, now) {
            Taken::Changed { cached, terminated } => {
                self.count(&terminated);
                let kind = match before {
                    _ if cached.finished => PodChangeKind::Deleted,
                    None if pod.metadata.deletion_timestamp.is_none() => PodChangeKind::Added,
                    _ => PodChangeKind::Modified,
                };
                let status = Some(Arc::clone(&cached.status));
                slots.insert(uid, Slot { pod: Arc::clone(pod), cached, mirror: known });
                // Still locked, so that followers see changes in their order.
                self.followers.tell(kind, &ShownPod { pod: Arc::clone(pod), status });
                drop(slots);
                self.changed.send_modify(|count| *count = count.wrapping_add(1));
            }
            Taken::Same { terminated } => {
                self.count(&terminated);
                let Some(slot) = slots.get_mut(&uid) else { return };
                slot.pod = Arc::clone(pod);
                if let Some(before) = before {
                    slot.cached = before;
                }
                if std::mem::replace(&mut slot.mirror, known.clone()) != known {
                    drop(slots);
                    self.changed.send_modify(|count| *count = count.wrapping_add(1));
                }
            }
            Taken::Illegal { message } => {
                tracing::error!(podUID = %uid, err = message, "status update aborted");
            }
        }
    }

    fn count(&self, terminated: &[NewlyTerminated]) {
        for container in terminated {
            let code = container.exit_code.to_string();
            self.terminated.inc(&[container.kind.as_str(), &code, &container.reason]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, Slot>> {
        match self.slots.lock() {
            Ok(slots) => slots,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// What others published. Of a static pod's init containers that ended only the runtime tells: one
/// that is gone there shows that nothing is known of it.
fn fallback(pod: &Pod, mirror: Option<&Arc<Pod>>) -> PodStatus {
    let source = mirror.map_or(pod, |mirror| mirror.as_ref());
    let mut status = source.status.clone().unwrap_or_default();
    if let (Some(_), Some(init)) = (mirror, &mut status.init_container_statuses) {
        init.retain(|entry| entry.state.as_ref().is_none_or(|state| state.terminated.is_none()));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_init_containers_of_a_mirror_are_asked_of_the_runtime() {
        let pod: Pod = serde_json::from_value(serde_json::json!({ "status": {
            "phase": "Running",
            "initContainerStatuses": [
                { "name": "done", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                  "state": { "terminated": { "exitCode": 0 } } },
                { "name": "side", "image": "", "imageID": "", "ready": true, "restartCount": 2,
                  "state": { "running": {} } },
            ],
        }}))
        .unwrap();
        let names = |status: PodStatus| -> Vec<String> {
            status.init_container_statuses.into_iter().flatten().map(|entry| entry.name).collect()
        };
        assert_eq!(names(fallback(&pod, None)), ["done", "side"]);
        assert_eq!(names(fallback(&Pod::default(), Some(&Arc::new(pod)))), ["side"]);
    }
}
