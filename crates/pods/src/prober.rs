//! Probes: one task per container and kind, results kept for everybody.
//!
//! Owns: settled results per container id, the tasks that make them, and their copy on disk, so that
//! a restart of the agent neither flips readiness nor forgets a count.
//!
//! Promises: the first probe comes at once, also after our own restart, spread by a budget over all
//! pods rather than by sleeping; probes of one container and kind never overlap; "could not probe" is
//! never taken for "probe failed"; a container that ended for good is judged once.

mod limit;
mod run;
mod store;

pub(crate) use limit::Budget;
pub(crate) use store::ProbeStore;

use crate::runtime::Runtime;
use crate::status::StatusCache;
use api::core::v1::{Pod, PodStatus};
use api::ids::{ContainerId, PodUid};
use api::pod::PodExt;
use engine::pod::PodGates;
use engine::probe::worker::{ProbeNumbers, ProbeWorker, probe_of, wanted};
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use engine::runtime::RuntimePod;
use jiff::Timestamp;
use ports::{Clock, Events, Tasks};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Names one probe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbeKey {
    pub(crate) pod: PodUid,
    pub(crate) container: String,
    pub(crate) kind: ProbeKind,
}

/// What probe tasks work with.
#[derive(Debug)]
pub(crate) struct ProberParts {
    pub(crate) runtime: Runtime,
    pub(crate) status: StatusCache,
    pub(crate) pod_states: crate::pod_states::PodStates,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    pub(crate) metrics: crate::metrics::PodMetrics,
    pub(crate) names: sys::names::Resolver,
    pub(crate) store: ProbeStore,
    pub(crate) budget: Budget,
    pub(crate) gates: PodGates,
    pub(crate) change_on_restart: bool,
    pub(crate) user_agent: String,
    pub(crate) started_at: Timestamp,
}

#[derive(Debug)]
struct ProbeTask {
    cancel: CancellationToken,
    now: Arc<Notify>,
    /// The container that ended for good: the task is over, and only another one is probed again.
    over: Option<ContainerId>,
}

type ProbeTasks = BTreeMap<ProbeKey, ProbeTask>;

/// The front of the prober. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ProberHandle {
    probes: Arc<Mutex<ProbeTasks>>,
    parts: Arc<ProberParts>,
}

impl ProberHandle {
    pub(crate) fn new(parts: ProberParts) -> Self {
        Self { probes: Arc::default(), parts: Arc::new(parts) }
    }

    /// Settled results of a pod's containers: those that the runtime has and those that are published.
    pub(crate) fn results(
        &self,
        runtime: &RuntimePod,
        published: Option<&PodStatus>,
    ) -> ProbeResults {
        let lists = published.map(|s| [&s.container_statuses, &s.init_container_statuses]);
        let shown = lists.into_iter().flatten().flatten().flatten();
        let shown: Vec<ContainerId> = shown.filter_map(engine::status::bare_id).collect();
        self.parts.store.results(runtime.containers.iter().map(|c| &c.id).chain(&shown))
    }

    /// Takes over what is published about containers that we have not judged in this run.
    pub(crate) fn adopt(&self, published: &PodStatus) {
        self.parts.store.adopt(published);
    }

    /// Starts the probes of a pod that do not run yet.
    pub(crate) fn add_pod(&self, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let Some(spec) = &pod.spec else { return };
        for (container, kind) in wanted(spec) {
            let Some(probe) = probe_of(container, kind) else { continue };
            let key = ProbeKey { pod: uid.clone(), container: container.name.clone(), kind };
            let mut probes = self.lock();
            if let Some(task) = probes.get(&key) {
                let shown = |id| self.parts.status.container_name(&uid, id);
                if task.over.as_ref().is_none_or(|id| shown(id).as_ref() == Some(&key.container)) {
                    continue;
                }
            }
            let cancel = self.parts.tasks.token().child_token();
            let now = Arc::new(Notify::new());
            let task = ProbeTask { cancel: cancel.clone(), now: Arc::clone(&now), over: None };
            probes.insert(key.clone(), task);
            drop(probes);
            let (this, pod) = (self.clone(), Arc::clone(pod));
            let (container, probe) = (container.clone(), probe.clone());
            // After a panic it goes on with what was counted.
            self.parts.tasks.spawn_anew("probe", move || {
                let fresh = || ProbeWorker::new(&container.name, kind, ProbeNumbers::of(&probe));
                let run = run::ProbeRun {
                    handle: this.clone(),
                    parts: Arc::clone(&this.parts),
                    worker: this.parts.store.saved_worker(&key).unwrap_or_else(fresh),
                    key: key.clone(),
                    pod: Arc::clone(&pod),
                    container: container.clone(),
                    probe: probe.clone(),
                };
                run.run(cancel.clone(), Arc::clone(&now))
            });
        }
    }

    /// Ends liveness and startup probes of regular containers: their pod is terminating.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &PodUid) {
        let pod_containers = self.parts.status.regular_names(uid);
        for (key, task) in self.lock().iter() {
            if key.pod == *uid
                && key.kind != ProbeKind::Readiness
                && pod_containers.contains(&key.container)
            {
                task.cancel.cancel();
            }
        }
    }

    /// Ends all probes of a pod.
    pub(crate) fn remove_pod(&self, uid: &PodUid) {
        self.retain(|pod| pod != uid);
    }

    /// Ends the probes of all pods but these.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.lock().retain(|key, task| {
            let stays = keep(&key.pod);
            if !stays {
                task.cancel.cancel();
            }
            // One that runs is taken out by itself.
            stays || task.over.is_none()
        });
    }

    /// Runs the readiness probe of a container now rather than at its next turn.
    pub(crate) fn probe_now(&self, uid: &PodUid, id: &ContainerId) {
        let Some(name) = self.parts.status.container_name(uid, id) else { return };
        let key = ProbeKey { pod: uid.clone(), container: name, kind: ProbeKind::Readiness };
        if let Some(task) = self.lock().get(&key) {
            task.now.notify_one();
        }
    }

    /// Stores a result and tells whoever must know.
    fn settle(&self, key: &ProbeKey, id: &ContainerId, outcome: ProbeOutcome) {
        if !self.parts.store.set(id, key.kind, outcome) {
            return;
        }
        match key.kind {
            ProbeKind::Liveness => {
                if outcome == ProbeOutcome::Failure {
                    self.parts.pod_states.look_again(&key.pod);
                }
            }
            ProbeKind::Readiness => {
                let ready = outcome == ProbeOutcome::Success;
                self.parts.status.set_readiness(&key.pod, id, ready);
                self.parts.pod_states.look_again(&key.pod);
            }
            ProbeKind::Startup => {
                let started = outcome == ProbeOutcome::Success;
                self.parts.status.set_startup(&key.pod, id, started);
                self.parts.pod_states.look_again(&key.pod);
            }
        }
    }

    /// Keeps results of these containers.
    pub(crate) fn retain_containers(&self, keep: impl Fn(&ContainerId) -> bool) {
        self.parts.store.retain(keep);
    }

    /// A task is over: for good as far as this container goes, if there is one.
    fn ended(&self, key: &ProbeKey, over: Option<ContainerId>) {
        let mut probes = self.lock();
        match (probes.get_mut(key), over) {
            (Some(task), Some(id)) if !task.cancel.is_cancelled() => task.over = Some(id),
            _ => drop(probes.remove(key)),
        }
        drop(probes);
        self.parts.store.forget(key);
    }

    fn lock(&self) -> MutexGuard<'_, ProbeTasks> {
        match self.probes.lock() {
            Ok(probes) => probes,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}
