//! Leftovers: pods nobody wants, folders of pods that are gone, dead containers.
//!
//! Promises: runs beside the workers and blocks none; nothing is touched before every source has
//! spoken; a folder with a mount in it, or with volumes in use, is left alone and said so once. What is done is
//! `engine::housekeeping`'s plan.

mod cgroups;
mod dirs;
mod gc;

pub(crate) use engine::housekeeping::garbage::Reach;
pub(crate) use gc::ContainerGc;

use crate::dispatch::DispatchTask;
use crate::shared::Shared;
use crate::view::RuntimePods;
use api::core::v1::Pod;
use api::ids::{ContainerId, PodUid};
use api::pod::PodExt;
use engine::housekeeping::{DesiredPod, HousekeepingView, SeenPod, Traces, earlier_versions, plan};
use engine::pod::life::{KnownPods, LifeState, PodUpdate, RunningPod, UpdateKind};
use ports::PodLife;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Folders are compared less often than records: they cost a walk.
const DIR_PERIOD: Duration = Duration::from_secs(30);

/// What housekeeping remembers between its rounds.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    shared: Arc<Shared>,
    next_dirs: Instant,
    /// Folders that could not be removed, with the reason said last.
    stuck: Arc<std::sync::Mutex<BTreeMap<PodUid, String>>>,
    /// Mirror pods being deleted now.
    deleting: Arc<std::sync::Mutex<BTreeSet<String>>>,
}

impl Housekeeping {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, next_dirs: Instant::now(), stuck: Arc::default(), deleting: Arc::default() }
    }
}

/// One round (`kubelet: HandlePodCleanups`).
pub(crate) async fn run(task: &mut DispatchTask) {
    let shared = Arc::clone(task.shared());
    let desired: BTreeSet<PodUid> = task.desired.iter().map(|(uid, _)| uid.clone()).collect();
    let known = shared.pod_states.sync_known(&desired);
    let may_run: BTreeSet<PodUid> = known
        .known
        .iter()
        .filter(|(_, pod)| pod.state != LifeState::Terminated)
        .map(|(uid, _)| uid.clone())
        .collect();
    shared.prober.retain(|uid| may_run.contains(uid));
    let kept = |uid: &PodUid| desired.contains(uid) || known.known.contains_key(uid);
    shared.status.retain(kept);
    shared.allocated.retain(kept);
    shared.actuated.retain(kept);
    shared.timelines.retain(kept);
    shared.resizes.retain(kept);
    count_pods(task, &known);
    forget_gone_containers(&shared);
    delete_orphaned_mirrors(task);
    mend_workers(task, &known);
    remove_dead_dirs(task, desired, known.known.keys().cloned().collect());
}

fn count_pods(task: &DispatchTask, known: &KnownPods) {
    let (mut desired, mut active) = ([0_u32; 2], [0_u32; 2]);
    for (uid, pod) in task.desired.iter() {
        let index = usize::from(pod.is_static());
        desired[index] += 1;
        active[index] += u32::from(task.is_active(uid, pod));
    }
    let metrics = &task.shared().metrics;
    for (index, label) in ["", "true"].into_iter().enumerate() {
        metrics.desired_pods.set(&[label], f64::from(desired[index]));
        metrics.active_pods.set(&[label], f64::from(active[index]));
    }
    let starts = &metrics.starts;
    let mut ephemeral = 0_u32;
    for (uid, pod) in task.desired.iter() {
        let life = task.shared().pod_states.life_of(uid);
        if matches!(life, Some(PodLife::Rejected | PodLife::Finished) | None) {
            continue;
        }
        let added = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref());
        ephemeral += added.map_or(0, |list| u32::try_from(list.len()).unwrap_or(u32::MAX));
    }
    for (labels, count) in known.working() {
        starts.working.set(&labels, f64::from(count));
    }
    starts.ephemeral.set(&[], f64::from(ephemeral));
    let mirrors = u32::try_from(task.desired.mirror_count()).unwrap_or(u32::MAX);
    metrics.mirror_pods.set(&[], f64::from(mirrors));
}

/// Probe results of containers that the runtime no longer has.
fn forget_gone_containers(shared: &Shared) {
    let all = Arc::clone(&shared.view.all().borrow());
    let complete = all.listed.keys().all(|uid| all.pods.contains_key(uid));
    if all.audited.is_some() && complete {
        let there: BTreeSet<&ContainerId> =
            all.pods.values().flat_map(|pod| pod.containers.iter().map(|c| &c.id)).collect();
        shared.prober.retain_containers(|id| there.contains(id));
    }
}

/// What the sources have, as the plan sees it.
fn desired_pods(task: &DispatchTask) -> BTreeMap<PodUid, DesiredPod> {
    let one = |(uid, pod): (&PodUid, &Arc<Pod>)| {
        let desired = DesiredPod {
            pod: Arc::clone(pod),
            status_is_terminal: task.shared().status.is_terminal(uid),
            held_back: task.is_held_back(uid),
            may_run: task.may_run(uid),
        };
        (uid.clone(), desired)
    };
    task.desired.iter().map(one).collect()
}

/// What the runtime has: as the last audit lists it, and what came since, which was seen by its events: a call of an
/// agent that is gone may end late.
fn seen_pods(all: &RuntimePods) -> BTreeMap<PodUid, SeenPod> {
    let listed = all.listed.iter().map(|(uid, listed)| {
        let alive = all.pods.get(uid).map_or(listed.alive, |pod| !pod.is_dead());
        let (name, namespace) = (listed.name.clone(), listed.namespace.clone());
        (uid.clone(), SeenPod { name, namespace, alive })
    });
    let since = all.pods.iter().filter(|(uid, _)| !all.listed.contains_key(*uid));
    let since = since.map(|(uid, pod)| {
        let (name, namespace) = (pod.name.clone(), pod.namespace.clone());
        (uid.clone(), SeenPod { name, namespace, alive: !pod.is_dead() })
    });
    listed.chain(since).collect()
}

/// Gives workers to pods that lack one and ends pods that nobody wants, as planned.
fn mend_workers(task: &mut DispatchTask, known: &KnownPods) {
    let desired = desired_pods(task);
    let seen = seen_pods(&task.shared().view.all().borrow());
    let view = HousekeepingView {
        desired: &desired,
        known: &known.known,
        waiting: &task.waiting(),
        seen: &seen,
    };
    let todo = plan(&view);
    for pod in todo.restart {
        let label = if pod.is_static() { "true" } else { "" };
        task.shared().metrics.restarted.inc(&[label]);
        task.push(UpdateKind::Create, &pod);
    }
    for pod in todo.finish {
        task.push(UpdateKind::Kill, &pod);
    }
    end_unwanted(task, todo.end);
}

/// What runs under the name of a static pod that has no worker yet: a version from before our start.
/// Its end is asked for first, so that the new one waits for it.
pub(crate) fn end_earlier_versions(task: &mut DispatchTask, pod: &Pod) {
    let desired: BTreeSet<PodUid> = task.desired.iter().map(|(uid, _)| uid.clone()).collect();
    let seen = seen_pods(&task.shared().view.all().borrow());
    let has_worker = |uid: &PodUid| task.shared().pod_states.life_of(uid).is_some();
    let earlier = earlier_versions(pod, &desired, has_worker, &seen);
    end_unwanted(task, earlier);
}

/// Ends pods of the runtime that have no worker.
fn end_unwanted(task: &mut DispatchTask, unwanted: Vec<RunningPod>) {
    for running in unwanted {
        let RunningPod { uid, name, namespace } = &running;
        tracing::info!(podUID = %uid, pod = %format!("{namespace}/{name}"), "ending a pod that nobody wants");
        task.shared().metrics.orphaned.inc(&[]);
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_string());
        pod.metadata.name = Some(name.clone());
        pod.metadata.namespace = Some(namespace.clone());
        task.submit(PodUpdate::kill_runtime(running), &Arc::new(pod));
    }
}

/// What is known of a pod whose cgroup or folder was found.
fn traces(
    shared: &Shared,
    uid: &PodUid,
    (desired, known): (&BTreeSet<PodUid>, &BTreeSet<PodUid>),
    running: &RuntimePods,
) -> Traces {
    Traces {
        desired: desired.contains(uid),
        has_worker: known.contains(uid) || shared.pod_states.life_of(uid).is_some(),
        listed: running.listed.contains_key(uid),
        volumes_in_use: shared.volumes.in_use(uid),
    }
}

fn delete_orphaned_mirrors(task: &mut DispatchTask) {
    for mirror in task.desired.orphaned_mirrors() {
        let name = mirror.full_name();
        if task.shared().pod_states.ask(|workers| workers.static_is_terminating(&name)) {
            continue;
        }
        let deleting = Arc::clone(&task.housekeeping.deleting);
        let begun = deleting.lock().is_ok_and(|mut names| names.insert(name.clone()));
        if !begun {
            continue;
        }
        let mirrors = task.shared().mirrors.clone();
        task.shared().tasks.spawn("mirror-delete", ports::OnExit::Fine, async move {
            mirrors.delete(&mirror).await;
            if let Ok(mut names) = deleting.lock() {
                names.remove(&name);
            }
        });
    }
}

fn remove_dead_dirs(task: &mut DispatchTask, desired: BTreeSet<PodUid>, known: BTreeSet<PodUid>) {
    let now = Instant::now();
    if now < task.housekeeping.next_dirs {
        return;
    }
    task.housekeeping.next_dirs = now + DIR_PERIOD;
    let shared = Arc::clone(&task.housekeeping.shared);
    let stuck = Arc::clone(&task.housekeeping.stuck);
    task.shared().tasks.spawn("dead-pod-dirs", ports::OnExit::Fine, async move {
        cgroups::remove_dead(&shared, &desired, &known).await;
        dirs::remove_dead(&shared, &desired, &known, &stuck).await;
    });
}
