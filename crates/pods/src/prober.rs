//! Probes: one task per container and kind, results kept for everybody.
//!
//! Owns: settled results per container id, the tasks that make them, and their copy on disk, so that
//! a restart of the agent neither flips readiness nor forgets a count.
//!
//! Promises: the first probe comes at once, also after our own restart, spread by a budget over all
//! pods rather than by sleeping; probes of one container and kind never overlap; "could not probe" is
//! never taken for "probe failed".

mod limit;
mod run;
mod state;
mod store;

pub(crate) use limit::Budget;
pub(crate) use store::ProbeStore;

use crate::runtime::Runtime;
use crate::status::StatusCache;
use api::core::v1::{Container, Pod, Probe};
use api::ids::{ContainerId, PodUid};
use engine::pod::PodGates;
use engine::probe::{ProbeKind, ProbeOutcome, ProbeResults};
use jiff::Timestamp;
use ports::{Clock, Events, OnExit, Tasks};
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
    pub(crate) lives: crate::lives::Lives,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    pub(crate) store: ProbeStore,
    pub(crate) budget: Budget,
    pub(crate) gates: PodGates,
    pub(crate) user_agent: String,
    pub(crate) started_at: Timestamp,
}

#[derive(Debug)]
struct ProbeTask {
    cancel: CancellationToken,
    now: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: BTreeMap<ProbeKey, ProbeTask>,
    results: Arc<ProbeResults>,
}

/// The front of the prober. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ProberHandle {
    inner: Arc<Mutex<Inner>>,
    parts: Arc<ProberParts>,
}

impl ProberHandle {
    pub(crate) fn new(parts: ProberParts) -> Self {
        let results = Arc::new(parts.store.results());
        let inner = Inner { tasks: BTreeMap::new(), results };
        Self { inner: Arc::new(Mutex::new(inner)), parts: Arc::new(parts) }
    }

    /// Settled results of all containers.
    pub(crate) fn results(&self) -> Arc<ProbeResults> {
        Arc::clone(&self.lock().results)
    }

    /// Starts the probes of a pod that do not run yet.
    pub(crate) fn add_pod(&self, pod: &Arc<Pod>) {
        let uid = crate::sources::desired::uid_of(pod);
        for container in probed_containers(pod) {
            for (kind, probe) in probes_of(container) {
                let key = ProbeKey { pod: uid.clone(), container: container.name.clone(), kind };
                let mut inner = self.lock();
                if inner.tasks.contains_key(&key) {
                    continue;
                }
                let cancel = self.parts.tasks.token().child_token();
                let now = Arc::new(Notify::new());
                let task = ProbeTask { cancel: cancel.clone(), now: Arc::clone(&now) };
                inner.tasks.insert(key.clone(), task);
                drop(inner);
                let run = run::ProbeRun {
                    handle: self.clone(),
                    parts: Arc::clone(&self.parts),
                    key,
                    pod: Arc::clone(pod),
                    container: container.clone(),
                    probe: probe.clone(),
                    state: state::ProbeState::default(),
                };
                self.parts.tasks.spawn("probe", OnExit::Fine, run.run(cancel, now));
            }
        }
    }

    /// Ends liveness and startup probes of regular containers: their pod is terminating.
    pub(crate) fn stop_liveness_and_startup(&self, uid: &PodUid) {
        let pod_containers = self.parts.status.regular_names(uid);
        for (key, task) in &self.lock().tasks {
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
        for (_, task) in self.lock().tasks.iter().filter(|(key, _)| key.pod == *uid) {
            task.cancel.cancel();
        }
    }

    /// Ends the probes of all pods but these.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        for (_, task) in self.lock().tasks.iter().filter(|(key, _)| !keep(&key.pod)) {
            task.cancel.cancel();
        }
    }

    /// Runs the readiness probe of a container now rather than at its next turn.
    pub(crate) fn probe_now(&self, uid: &PodUid, id: &ContainerId) {
        let Some(name) = self.parts.status.container_name(uid, id) else { return };
        let key = ProbeKey { pod: uid.clone(), container: name, kind: ProbeKind::Readiness };
        if let Some(task) = self.lock().tasks.get(&key) {
            task.now.notify_one();
        }
    }

    /// Stores a result and tells whoever must know.
    fn settle(&self, key: &ProbeKey, id: &ContainerId, outcome: ProbeOutcome) {
        let changed = {
            let mut inner = self.lock();
            Arc::make_mut(&mut inner.results).set(id, key.kind, outcome)
        };
        if !changed {
            return;
        }
        match key.kind {
            ProbeKind::Liveness => {
                if outcome == ProbeOutcome::Failure {
                    self.parts.lives.look_again(&key.pod);
                }
            }
            ProbeKind::Readiness => {
                let ready = outcome == ProbeOutcome::Success;
                self.parts.status.set_readiness(&key.pod, id, ready);
                self.parts.lives.look_again(&key.pod);
            }
            ProbeKind::Startup => {
                let started = outcome == ProbeOutcome::Success;
                self.parts.status.set_startup(&key.pod, id, started);
                self.parts.lives.look_again(&key.pod);
            }
        }
    }

    /// The container is gone: so is what was known of it.
    fn forget(&self, id: &ContainerId, kind: ProbeKind) {
        let mut inner = self.lock();
        Arc::make_mut(&mut inner.results).remove(id, kind);
        drop(inner);
        self.parts.store.remove(id, kind);
    }

    fn ended(&self, key: &ProbeKey) {
        self.lock().tasks.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Regular containers and sidecars.
fn probed_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let regular = spec.into_iter().flat_map(|s| &s.containers);
    let sidecars = spec
        .into_iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    regular.chain(sidecars)
}

fn probes_of(container: &Container) -> impl Iterator<Item = (ProbeKind, &Probe)> {
    [
        (ProbeKind::Startup, container.startup_probe.as_ref()),
        (ProbeKind::Readiness, container.readiness_probe.as_ref()),
        (ProbeKind::Liveness, container.liveness_probe.as_ref()),
    ]
    .into_iter()
    .filter_map(|(kind, probe)| Some((kind, probe?)))
}
