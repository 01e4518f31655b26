//! DeadContainer containers and sandboxes: which go (kubelet: `containerGC`).
//!
//! Promises: nothing of a running container goes; the newest instance of a container stays while its pod is wanted.

use crate::runtime::{ContainerRunState, RuntimePod};
use api::ids::{ContainerId, PodUid};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many dead containers are kept (`kubelet: GCPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcPolicy {
    /// Containers younger than this are kept.
    pub min_age: Duration,
    /// DeadContainer instances kept per pod and container name; `None` means all.
    pub max_per_container: Option<usize>,
    /// DeadContainer instances kept in all; `None` means all.
    pub max_containers: Option<usize>,
}

impl Default for GcPolicy {
    fn default() -> Self {
        Self { min_age: Duration::ZERO, max_per_container: Some(1), max_containers: None }
    }
}

/// One dead container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadContainer {
    /// Its id.
    pub id: String,
    /// Its name in the pod's spec.
    pub name: String,
    /// Its pod.
    pub pod: PodUid,
    /// The pod's name.
    pub pod_name: String,
    /// The pod's namespace.
    pub pod_namespace: String,
    /// When it was made.
    pub created: Timestamp,
    /// Tells instances of the same moment apart.
    pub attempt: u32,
    /// What the runtime says of it.
    pub state: ContainerRunState,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxEntry {
    /// Its id.
    pub id: String,
    /// Its pod.
    pub pod: PodUid,
    /// Which of the pod's sandboxes it is.
    pub attempt: u32,
    /// When it was made.
    pub created: Timestamp,
    /// It is ready.
    pub ready: bool,
    /// There is a container in it.
    pub used: bool,
}

/// Whose containers go altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of pods that are deleted or evicted.
    DeletedPods,
    /// Those of every pod that will not run again.
    FinishedPods,
}

/// What decides whether everything of a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodEnd {
    /// Its worker is done with it and nobody needs its content.
    pub content_removable: bool,
    /// Nothing of it will run again.
    pub runtime_removable: bool,
    /// It was evicted and the API server does not know it yet: the next start of the agent would know of its end by
    /// its containers alone.
    pub eviction_is_untold: bool,
}

impl PodEnd {
    /// Whether everything of the pod goes.
    pub fn is_removable(self, reach: Reach) -> bool {
        self.content_removable && !self.eviction_is_untold
            || (reach == Reach::FinishedPods && self.runtime_removable)
    }
}

/// Whether a container is a candidate: it does not run and is old enough. What is yet to be made by the clock is old
/// by a clock that was set back.
pub fn is_candidate(
    state: ContainerRunState,
    created: Timestamp,
    now: Timestamp,
    policy: &GcPolicy,
) -> bool {
    let youngest = now.checked_sub(policy.min_age).unwrap_or(Timestamp::MIN);
    let is_young = created > youngest && created <= now;
    state != ContainerRunState::Running && !is_young
}

/// DeadContainer instances of a pod's containers that go although the pod lives: all but the newest of each name
/// (kubelet: `podContainerDeletor`).
pub fn old_instances(runtime: &RuntimePod, policy: &GcPolicy) -> Vec<ContainerId> {
    let keep = policy.max_per_container.unwrap_or_default().max(1);
    let names: BTreeSet<&str> = runtime.containers.iter().map(|c| c.name.as_str()).collect();
    let old = names.into_iter().flat_map(|name| {
        let exited = runtime.instances(name).filter(|c| c.state == ContainerRunState::Exited);
        exited.skip(keep).map(|c| c.id.clone())
    });
    old.collect()
}

/// Which dead containers go.
pub fn choose_containers(
    dead: Vec<DeadContainer>,
    policy: &GcPolicy,
    removable: impl Fn(&PodUid) -> bool,
) -> Vec<DeadContainer> {
    let mut units: BTreeMap<(PodUid, String), Vec<DeadContainer>> = BTreeMap::new();
    let mut gone = Vec::new();
    for container in dead {
        if removable(&container.pod) {
            gone.push(container);
        } else {
            let unit = (container.pod.clone(), container.name.clone());
            units.entry(unit).or_default().push(container);
        }
    }
    for unit in units.values_mut() {
        // By their numbers: clocks may have been set between.
        let age = |c: &DeadContainer| (c.attempt, c.created);
        unit.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.id.cmp(&b.id)));
        // One that is about to start has not lived: the last one that did still tells how that
        // ended, and how often.
        if unit.first().is_some_and(|newest| newest.state == ContainerRunState::Created) {
            unit.remove(0);
        }
        if let Some(keep) = policy.max_per_container
            && unit.len() > keep
        {
            gone.extend(unit.split_off(keep));
        }
    }
    units.retain(|_, unit| !unit.is_empty());
    let Some(max) = policy.max_containers else { return gone };
    let left: usize = units.values().map(Vec::len).sum();
    if left <= max || units.is_empty() {
        return gone;
    }
    let share = (max / units.len()).max(1);
    for unit in units.values_mut() {
        if unit.len() > share {
            gone.extend(unit.split_off(share));
        }
    }
    let mut rest: Vec<DeadContainer> = units.into_values().flatten().collect();
    if rest.len() > max {
        rest.sort_by_key(|c| std::cmp::Reverse(c.created));
        gone.extend(rest.split_off(max));
    }
    gone
}

/// Which sandboxes go: unused ones, but for the newest of a pod that is still wanted.
pub fn choose_sandboxes(
    sandboxes: Vec<SandboxEntry>,
    removable: impl Fn(&PodUid) -> bool,
) -> Vec<String> {
    let mut by_pod: BTreeMap<PodUid, Vec<SandboxEntry>> = BTreeMap::new();
    for sandbox in sandboxes {
        by_pod.entry(sandbox.pod.clone()).or_default().push(sandbox);
    }
    let mut gone = Vec::new();
    for (pod, mut all) in by_pod {
        all.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created)));
        let keep = usize::from(!removable(&pod));
        let idle = all.into_iter().skip(keep).filter(|s| !s.ready && !s.used);
        gone.extend(idle.map(|s| s.id));
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(id: &str, pod: &str, name: &str, created: i64) -> DeadContainer {
        DeadContainer {
            id: id.into(),
            name: name.into(),
            pod: pod.into(),
            pod_name: pod.into(),
            pod_namespace: "default".into(),
            created: Timestamp::from_second(created).unwrap(),
            attempt: id.parse().unwrap(),
            state: ContainerRunState::Exited,
        }
    }

    fn ids(gone: Vec<DeadContainer>) -> Vec<String> {
        let mut ids: Vec<String> = gone.into_iter().map(|d| d.id).collect();
        ids.sort();
        ids
    }

    #[test]
    fn the_newest_instance_of_each_container_stays() {
        let all = vec![dead("1", "p", "a", 1), dead("2", "p", "a", 2), dead("3", "p", "b", 1)];
        assert_eq!(ids(choose_containers(all, &GcPolicy::default(), |_| false)), ["1"]);
        let twins = vec![dead("10", "p", "a", 1), dead("9", "p", "a", 1)];
        assert_eq!(ids(choose_containers(twins, &GcPolicy::default(), |_| false)), ["9"]);
    }

    #[test]
    fn one_that_is_about_to_start_is_no_successor_yet() {
        let made = |id, created| DeadContainer {
            state: ContainerRunState::Created,
            ..dead(id, "p", "a", created)
        };
        let none = GcPolicy { max_per_container: Some(0), ..GcPolicy::default() };
        let all = vec![dead("1", "p", "a", 1), dead("2", "p", "a", 2), made("3", 3)];
        assert_eq!(ids(choose_containers(all.clone(), &GcPolicy::default(), |_| false)), ["1"]);
        assert_eq!(ids(choose_containers(all.clone(), &none, |_| false)), ["1", "2"]);
        assert_eq!(ids(choose_containers(all, &none, |_| true)), ["1", "2", "3"]);
        let passed_over = vec![made("1", 1), dead("2", "p", "a", 2)];
        assert_eq!(ids(choose_containers(passed_over, &GcPolicy::default(), |_| false)), ["1"]);
    }

    #[test]
    fn everything_of_a_removable_pod_goes() {
        let all = vec![dead("1", "p", "a", 1), dead("2", "q", "a", 2)];
        let gone = choose_containers(all, &GcPolicy::default(), |uid| uid.as_str() == "p");
        assert_eq!(ids(gone), ["1"]);
    }

    #[test]
    fn a_bound_over_all_containers_removes_the_oldest() {
        let policy =
            GcPolicy { max_per_container: None, max_containers: Some(2), ..GcPolicy::default() };
        let all = vec![dead("1", "p", "a", 1), dead("2", "q", "a", 2), dead("3", "r", "a", 3)];
        assert_eq!(ids(choose_containers(all, &policy, |_| false)), ["1"]);
    }

    #[test]
    fn the_newest_sandbox_of_a_wanted_pod_stays_and_used_ones_too() {
        let sandbox = |id: &str, pod: &str, created: i64, used: bool| SandboxEntry {
            id: id.into(),
            pod: pod.into(),
            attempt: 0,
            created: Timestamp::from_second(created).unwrap(),
            ready: false,
            used,
        };
        let all = vec![
            sandbox("1", "p", 1, false),
            sandbox("2", "p", 2, true),
            sandbox("3", "p", 3, false),
            sandbox("4", "q", 1, false),
        ];
        assert_eq!(choose_sandboxes(all, |uid| uid.as_str() == "q"), ["1", "4"]);
    }

    #[test]
    fn a_container_is_a_candidate_once_it_is_dead_and_old_enough() {
        let policy = GcPolicy { min_age: Duration::from_secs(60), ..GcPolicy::default() };
        let (now, at) =
            (Timestamp::from_second(1000).unwrap(), |s| Timestamp::from_second(s).unwrap());
        let dead = |created| is_candidate(ContainerRunState::Exited, at(created), now, &policy);
        assert!(dead(940));
        assert!(!dead(941));
        assert!(dead(1001), "by a clock that was set back");
        assert!(!is_candidate(ContainerRunState::Running, at(0), now, &policy));
    }

    #[test]
    fn an_eviction_that_nobody_knows_of_keeps_what_shows_it() {
        let end =
            PodEnd { content_removable: true, runtime_removable: false, eviction_is_untold: false };
        assert!(end.is_removable(Reach::DeletedPods));
        let untold = PodEnd { eviction_is_untold: true, ..end };
        assert!(!untold.is_removable(Reach::DeletedPods));
        let finished = PodEnd { runtime_removable: true, ..untold };
        assert!(!finished.is_removable(Reach::DeletedPods));
        assert!(finished.is_removable(Reach::FinishedPods));
    }
}
