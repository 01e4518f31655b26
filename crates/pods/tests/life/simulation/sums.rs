//! Cgroups at every moment. What runs has a cgroup with all its limits, and never more than that. And who runs counts:
//! the values of the QoS cgroups are summed up over the pods that the agent publishes, so that a pod which runs and is
//! missing there is weighed as nothing, however it came to run, and whichever agent made it.

use super::guard::Story;
use crate::world::World;
use ::api::core::v1::Pod;
use engine::cgroup::{
    LevelValues, MemoryProtection, QosPolicy, only_raised, pod_ask, qos_limits, shares,
};
use engine::resources::QosClass;
use ports::{PodLife, PodsSnapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use testkit::fake_cri::ContainerRecord;
use tokio::time::Instant;

/// How long what is published may lag behind what runs: far longer than it takes to publish.
const LAG: Duration = Duration::from_secs(5);
const POLICY: QosPolicy = QosPolicy { reserved: None, protection: MemoryProtection::Off };

#[derive(Default)]
pub(super) struct Sums {
    /// Pods that run and do not count, and since when.
    missing: BTreeMap<String, Instant>,
    /// The CPU shares of the Burstable level: they stay when an agent goes.
    burstable: u64,
    /// Burstable pods that run, with the CPU they have, and since when.
    weighed: BTreeMap<String, (u64, Instant)>,
}

impl Sums {
    pub(super) fn look(&mut self, world: &World, story: &Story) {
        let containers = world.cri.containers();
        let running: Vec<&ContainerRecord> = containers.iter().filter(|c| c.is_running()).collect();
        Self::look_at_pods(world, &running);
        let snapshot = story.published();
        if let Some(snapshot) = &snapshot {
            self.write_level(snapshot);
        }
        self.look_at_level(world, &running);
        // A dead agent publishes nothing, and one whose sources have not all told their pods only raises values.
        match snapshot.filter(|snapshot| snapshot.sources_ready) {
            Some(snapshot) => self.look_at_published(world, &snapshot, &running),
            None => self.missing.clear(),
        }
    }

    /// No container runs outside of its pod's limits, also while those are changed.
    fn look_at_pods(world: &World, running: &[&ContainerRecord]) {
        for container in running {
            let (uid, name) = (container.pod_uid(), container.name());
            let limits = world.cgroups.limits_of(uid);
            assert!(limits.is_some(), "{name} runs in a cgroup without limits");
            let has = limits.and_then(|limits| limits.cpu_shares).unwrap_or_default();
            let wants = cpu_shares(container);
            assert!(wants <= has, "{name} has {wants} CPU shares, and its pod has {has}");
        }
    }

    /// What the task of the levels writes.
    fn write_level(&mut self, snapshot: &PodsSnapshot) {
        let active = snapshot.pods.values().filter(|entry| entry.is_active());
        let asks: Vec<_> = active.map(|entry| pod_ask(&entry.pod, true)).collect();
        let mut levels = qos_limits(asks.iter(), &POLICY, &[]);
        let mut limits = levels.remove(&QosClass::Burstable).unwrap();
        if !snapshot.sources_ready {
            let now = LevelValues { cpu_shares: Some(self.burstable), ..LevelValues::default() };
            limits = only_raised(limits, &now);
        }
        self.burstable = limits.cpu_shares.unwrap_or(self.burstable);
    }

    /// The level weighs at least as much as those in it who run for a while.
    fn look_at_level(&mut self, world: &World, running: &[&ContainerRecord]) {
        let mut weighed = BTreeMap::new();
        for (name, pod) in world.api.all() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let first = running.iter().find(|c| c.pod_uid() == uid && c.name() == main_of(&name));
            let Some(has) = first.map(|container| cpu_shares(container)) else { continue };
            // One that is being resized counts as what it will be.
            if level_of(&pod) != QosClass::Burstable || has != shares(cpu_milli(&pod)) {
                continue;
            }
            let before = self.weighed.get(&uid).filter(|(before, _)| *before == has);
            let since = before.map_or_else(Instant::now, |(_, since)| *since);
            weighed.insert(uid, (has, since));
        }
        self.weighed = weighed;
        let long = self.weighed.values().filter(|(_, since)| since.elapsed() > LAG);
        let sum: u64 = long.map(|(has, _)| has).sum();
        let level = self.burstable;
        assert!(sum <= level, "Burstable pods weigh {sum} and their level {level}");
    }

    fn look_at_published(
        &mut self,
        world: &World,
        snapshot: &PodsSnapshot,
        running: &[&ContainerRecord],
    ) {
        let running: BTreeSet<&str> = running.iter().map(|c| c.pod_uid()).collect();
        let mut missing = BTreeMap::new();
        for (name, pod) in world.api.all() {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if !running.contains(uid.as_str()) {
                continue;
            }
            let entry = snapshot.pods.get(uid.as_str());
            let counts = entry.is_some_and(|entry| {
                !matches!(entry.life, PodLife::Terminated | PodLife::Finished)
            });
            if counts {
                // It counts in the class in which its cgroup is.
                let level = entry.map(|entry| level_of(&entry.pod));
                assert_eq!(level, Some(level_of(&pod)), "{name} counts elsewhere");
                continue;
            }
            let since = self.missing.get(&uid).copied().unwrap_or_else(Instant::now);
            let life = entry.map(|entry| entry.life);
            assert!(since.elapsed() < LAG, "{name} runs and does not count: {life:?}");
            missing.insert(uid, since);
        }
        self.missing = missing;
    }
}

fn main_of(name: &str) -> String {
    format!("{name}-main")
}

fn level_of(pod: &Pod) -> QosClass {
    pod_ask(pod, true).level
}

fn cpu_milli(pod: &Pod) -> i64 {
    pod_ask(pod, true).cpu_request_milli
}

/// The CPU shares of a container that asks for some; 0 of one that does not.
fn cpu_shares(container: &ContainerRecord) -> u64 {
    let resources = container.config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    let shares = resources.map_or(0, |resources| resources.cpu_shares);
    u64::try_from(shares).ok().filter(|shares| *shares > 2).unwrap_or_default()
}
