//! What must hold at every moment, and what was seen so far and must not be undone.

use super::kinds::{End, Made};
use crate::world::World;
use ::api::core::v1::{Pod, PodStatus};
use std::collections::{BTreeMap, BTreeSet};
use testkit::fake_cri::ContainerRecord;

/// Most calls of the runtime between two looks: far more than all pods at once need.
const CALLS: usize = 1500;

#[derive(Default)]
pub(super) struct Seen {
    phases: BTreeMap<String, String>,
    /// Instances by pod and container.
    pub(super) starts: BTreeMap<(String, String), BTreeSet<String>>,
    /// What was seen of each pod, one line per change.
    pub(super) history: BTreeMap<String, Vec<String>>,
    /// Restarts by pod and container, as the API has them.
    restarts: BTreeMap<(String, String), i32>,
    /// Pods that were shown as ready.
    ready: BTreeSet<String>,
    /// Calls of the runtime.
    calls: usize,
    /// Pods with a container whose start was given up after it may have run.
    pub(super) given_up: BTreeSet<String>,
}

impl Seen {
    /// Another pod has this name from now on.
    pub(super) fn forget(&mut self, name: &str) {
        self.phases.remove(name);
    }

    /// Looks at what must hold at any moment.
    pub(super) fn look(
        &mut self,
        world: &World,
        made: &BTreeMap<String, Made>,
        leaving: &BTreeSet<String>,
    ) {
        let containers = world.cri.containers();
        let alive = self.look_at_runtime(world, &containers);
        let boxes = world.cri.sandboxes();
        for (name, pod) in world.api.all() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let own = containers.iter().filter(|c| c.pod_uid() == uid);
            let states: Vec<String> = own
                .map(|c| format!("{}#{} {:?}({})", c.name(), c.attempt(), c.state, c.exit_code))
                .collect();
            let boxes: Vec<bool> =
                boxes.iter().filter(|s| s.pod_uid() == uid).map(|s| s.ready).collect();
            let status = pod.status.clone().unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_default();
            let line = format!("{phase} sandboxes {boxes:?} {states:?}");
            let history = self.history.entry(uid.clone()).or_default();
            if history.last() != Some(&line) {
                history.push(line);
            }
            if let Some(before) = self.phases.get(&name)
                && (before == "Succeeded" || before == "Failed")
            {
                assert_eq!(&phase, before, "{name} left its final phase");
            }
            let over = phase == "Succeeded" || phase == "Failed";
            let runs = alive.contains(&uid);
            let history = &self.history[&uid];
            assert!(!(over && runs), "{name} is {phase} while a container runs: {history:#?}");
            self.phases.insert(name.clone(), phase);
            self.look_at_restarts(&uid, &status);
            let steady = |made: &Made| made.is_steady() && matches!(made.end, End::Runs(_));
            let steady = made.get(&name).is_some_and(steady) && !leaving.contains(&name);
            self.look_at_readiness(&uid, &pod, steady);
        }
    }

    /// Looks at the runtime; which pods have a container that runs.
    fn look_at_runtime(&mut self, world: &World, all: &[ContainerRecord]) -> BTreeSet<String> {
        let calls = world.cri.total();
        let more = calls.saturating_sub(std::mem::replace(&mut self.calls, calls));
        assert!(more < CALLS, "{more} calls of the runtime at once");
        let mut alive: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for container in all {
            let key = (container.pod_uid().to_owned(), container.name().to_owned());
            if container.ran && container.started_at == 0 {
                self.given_up.insert(container.pod_uid().to_owned());
            }
            if container.ran {
                self.starts.entry(key.clone()).or_default().insert(container.id.clone());
            }
            if container.is_running() {
                alive.entry(key).or_default().push(container.id.clone());
            }
        }
        let deleted = world.api.deleted_uids();
        let mut statics = BTreeSet::new();
        for ((uid, name), ids) in &alive {
            assert_eq!(ids.len(), 1, "{name} runs more than once");
            assert!(!deleted.contains(uid), "{name} outlived its pod");
            let of_static = name.starts_with('s');
            assert!(!of_static || statics.insert(name), "two versions of {name} run");
        }
        alive.into_keys().map(|(uid, _)| uid).collect()
    }

    /// Restarts are never taken back.
    fn look_at_restarts(&mut self, uid: &str, status: &PodStatus) {
        let apps = status.container_statuses.iter().flatten();
        for entry in apps.chain(status.init_container_statuses.iter().flatten()) {
            let key = (uid.to_owned(), entry.name.clone());
            let before = self.restarts.insert(key, entry.restart_count).unwrap_or_default();
            let (name, now, history) = (&entry.name, entry.restart_count, &self.history[uid]);
            assert!(before <= now, "{name} went from {before} restarts to {now}: {history:#?}");
        }
    }

    /// A pod to which nothing happens stays ready.
    fn look_at_readiness(&mut self, uid: &str, pod: &Pod, steady: bool) {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready = conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
        if ready.is_some_and(|ready| ready.status == "True") {
            self.ready.insert(uid.to_owned());
        } else if steady && self.ready.contains(uid) {
            panic!(
                "{uid} is not ready any more, for no reason: {ready:?} {:#?}",
                self.history[uid]
            );
        }
    }
}
