//! Housekeeping: what is done about pods without a worker, and about what pods that are gone left behind.
//!
//! Owns: which desired pods get a worker again, which pods of the runtime are ended because nobody wants them, what
//! becomes of a cgroup or folder that was found ([`leftover`]), and which dead containers and sandboxes go
//! ([`garbage`]). Upstream: `HandlePodCleanups`, `cleanupOrphanedPodCgroups`, `containerGC`.
//!
//! Does not: remember anything between rounds. A round that is repeated on the same world plans the same.

pub mod garbage;

use crate::pod::life::{KnownPod, RunningPod};
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod that its source has.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The newest status that we made says that it is over.
    pub status_is_terminal: bool,
    /// It was refused, or is still to be judged.
    pub held_back: bool,
    /// The runtime shows something alive of it, or cannot tell.
    pub may_run: bool,
}

/// A pod as the runtime shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// A sandbox is ready or a container runs.
    pub alive: bool,
}

/// What a round looks at.
#[derive(Debug, Clone)]
pub struct HousekeepingView<'a> {
    /// What the sources have.
    pub desired: &'a BTreeMap<PodUid, DesiredPod>,
    /// What has a worker.
    pub known: &'a BTreeMap<PodUid, KnownPod>,
    /// Pods that are still to be judged: what runs of them may be wanted.
    pub waiting: &'a BTreeSet<PodUid>,
    /// What the runtime has.
    pub seen: &'a BTreeMap<PodUid, SeenPod>,
}

/// What a round does, in this order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HousekeepingPlan {
    /// Desired pods that get a worker: static pods that finished and are wanted again.
    pub restart: Vec<Arc<Pod>>,
    /// Pods that were over before we started and only wait for their API object to go.
    pub finish: Vec<Arc<Pod>>,
    /// Pods that run although nobody wants them.
    pub end: Vec<RunningPod>,
}

/// Plans a round.
pub fn plan(view: &HousekeepingView<'_>) -> HousekeepingPlan {
    let mut plan = HousekeepingPlan::default();
    let mut gets_worker = BTreeSet::new();
    for (uid, one) in view.desired.iter().filter(|(uid, _)| !view.known.contains_key(*uid)) {
        let pod = &one.pod;
        let over = pod.is_terminal() || one.status_is_terminal;
        if !over && !one.held_back {
            plan.restart.push(Arc::clone(pod));
            gets_worker.insert(uid);
        } else if pod.metadata.deletion_timestamp.is_some() && pod.is_terminal() && !one.may_run {
            plan.finish.push(Arc::clone(pod));
            gets_worker.insert(uid);
        }
    }
    let has_worker = |uid: &PodUid| view.known.contains_key(uid) || gets_worker.contains(uid);
    let unwanted = view
        .seen
        .iter()
        .filter(|(uid, seen)| seen.alive && !has_worker(uid) && !view.waiting.contains(*uid));
    plan.end.extend(unwanted.map(|(uid, seen)| seen.running(uid)));
    plan
}

/// What runs under the name of a static pod that has no worker yet: versions from before our start. Their end is
/// asked for first, so that the new one waits for it.
pub fn earlier_versions(
    pod: &Pod,
    desired: &BTreeSet<PodUid>,
    has_worker: impl Fn(&PodUid) -> bool,
    seen: &BTreeMap<PodUid, SeenPod>,
) -> Vec<RunningPod> {
    let own = pod.uid();
    let namesake = |seen: &SeenPod| {
        pod.metadata.name.as_deref() == Some(seen.name.as_str())
            && pod.metadata.namespace.as_deref() == Some(seen.namespace.as_str())
    };
    let earlier = seen.iter().filter(|(uid, seen)| {
        seen.alive && **uid != own && !desired.contains(*uid) && namesake(seen) && !has_worker(uid)
    });
    earlier.map(|(uid, seen)| seen.running(uid)).collect()
}

impl SeenPod {
    fn running(&self, uid: &PodUid) -> RunningPod {
        let (name, namespace) = (self.name.clone(), self.namespace.clone());
        RunningPod { uid: uid.clone(), name, namespace }
    }
}

/// What is known of a pod whose cgroup or folder was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traces {
    /// A source has it.
    pub desired: bool,
    /// It has a worker.
    pub has_worker: bool,
    /// The runtime lists it.
    pub listed: bool,
    /// Something of it is mounted, or is about to be.
    pub volumes_in_use: bool,
}

/// What is done about a cgroup or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// It is somebody's.
    Keep,
    /// Nobody's, but volumes must go first.
    WaitForVolumes,
    /// It goes.
    Remove,
}

/// What is done about the cgroup or folder of a pod.
pub fn leftover(traces: Traces) -> Leftover {
    match traces {
        Traces { desired: false, has_worker: false, listed: false, volumes_in_use } => {
            if volumes_in_use {
                Leftover::WaitForVolumes
            } else {
                Leftover::Remove
            }
        }
        _ => Leftover::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::life::LifeState;
    use api::core::v1::PodStatus;
    use api::machinery::apis::meta::v1::Time;

    fn pod(uid: &str, phase: Option<&str>, deleted: bool) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("shop".to_owned());
        pod.metadata.deletion_timestamp = deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        let phase = phase.map(str::to_owned);
        pod.status = Some(PodStatus { phase, ..PodStatus::default() });
        Arc::new(pod)
    }

    fn desired(pod: &Arc<Pod>) -> DesiredPod {
        DesiredPod {
            pod: Arc::clone(pod),
            status_is_terminal: false,
            held_back: false,
            may_run: false,
        }
    }

    fn seen(alive: bool) -> SeenPod {
        SeenPod { name: "web".to_owned(), namespace: "shop".to_owned(), alive }
    }

    fn worker() -> KnownPod {
        let state = LifeState::Syncing;
        KnownPod { state, orphan: false, has_config: true, is_static: false }
    }

    #[derive(Default)]
    struct World {
        desired: BTreeMap<PodUid, DesiredPod>,
        known: BTreeMap<PodUid, KnownPod>,
        waiting: BTreeSet<PodUid>,
        seen: BTreeMap<PodUid, SeenPod>,
    }

    impl World {
        fn plan(&self) -> HousekeepingPlan {
            plan(&HousekeepingView {
                desired: &self.desired,
                known: &self.known,
                waiting: &self.waiting,
                seen: &self.seen,
            })
        }
    }

    #[test]
    fn a_desired_pod_without_a_worker_gets_one_unless_it_is_over_or_held_back() {
        let fresh = pod("a", Some("Running"), false);
        let mut world = World::default();
        world.desired.insert("a".into(), desired(&fresh));
        assert_eq!(world.plan().restart, [Arc::clone(&fresh)]);
        world.known.insert("a".into(), worker());
        assert_eq!(world.plan(), HousekeepingPlan::default());
        world.known.clear();
        let refused = DesiredPod { held_back: true, ..desired(&fresh) };
        world.desired.insert("a".into(), refused);
        assert_eq!(world.plan(), HousekeepingPlan::default());
        let over = DesiredPod { status_is_terminal: true, ..desired(&fresh) };
        world.desired.insert("a".into(), over);
        assert_eq!(world.plan(), HousekeepingPlan::default());
    }

    #[test]
    fn a_pod_that_was_over_before_we_started_is_finished_once_nothing_of_it_can_run() {
        let gone = pod("a", Some("Failed"), true);
        let mut world = World::default();
        world.desired.insert("a".into(), desired(&gone));
        assert_eq!(world.plan().finish, [Arc::clone(&gone)]);
        world.desired.insert("a".into(), DesiredPod { may_run: true, ..desired(&gone) });
        assert_eq!(world.plan(), HousekeepingPlan::default());
        world.desired.insert("a".into(), desired(&pod("a", Some("Failed"), false)));
        assert_eq!(world.plan(), HousekeepingPlan::default(), "its object stays");
    }

    #[test]
    fn what_runs_without_worker_and_wish_is_ended() {
        let mut world = World::default();
        world.seen.insert("a".into(), seen(true));
        world.seen.insert("dead".into(), seen(false));
        let ended: Vec<PodUid> = world.plan().end.into_iter().map(|pod| pod.uid).collect();
        assert_eq!(ended, ["a".into()]);
        world.waiting.insert("a".into());
        assert!(world.plan().end.is_empty(), "it may be wanted");
        world.waiting.clear();
        world.known.insert("a".into(), worker());
        assert!(world.plan().end.is_empty());
        world.known.clear();
        world.desired.insert("a".into(), desired(&pod("a", Some("Running"), false)));
        assert!(world.plan().end.is_empty(), "its worker begins in the same round");
    }

    #[test]
    fn earlier_versions_of_a_static_pod_bear_its_name_and_nobody_wants_them() {
        let new = pod("new", None, false);
        let mut all = BTreeMap::new();
        for uid in ["new", "old", "wanted", "worked"] {
            all.insert(PodUid::from(uid), seen(true));
        }
        all.insert("dead".into(), seen(false));
        all.insert("other".into(), SeenPod { name: "db".to_owned(), ..seen(true) });
        let wanted = BTreeSet::from(["wanted".into()]);
        let found = earlier_versions(&new, &wanted, |uid| uid.as_str() == "worked", &all);
        let found: Vec<PodUid> = found.into_iter().map(|pod| pod.uid).collect();
        assert_eq!(found, ["old".into()]);
    }

    #[test]
    fn a_leftover_goes_when_nobody_has_its_pod_and_no_volume_holds_it() {
        assert_eq!(leftover(Traces::default()), Leftover::Remove);
        let mounted = Traces { volumes_in_use: true, ..Traces::default() };
        assert_eq!(leftover(mounted), Leftover::WaitForVolumes);
        for owned in [
            Traces { desired: true, ..mounted },
            Traces { has_worker: true, ..mounted },
            Traces { listed: true, ..mounted },
        ] {
            assert_eq!(leftover(owned), Leftover::Keep, "{owned:?}");
        }
    }
}
