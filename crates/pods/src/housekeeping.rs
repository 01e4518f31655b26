//! Leftovers: pods nobody wants, folders of pods that are gone, dead containers.
//!
//! Promises: runs beside the workers and blocks none; nothing is touched before every source has
//! spoken; a folder with a mount in it, or with volumes in use, is left alone and said so once.

mod cgroups;
mod dirs;
mod gc;

pub(crate) use gc::{ContainerGc, Reach};

use crate::dispatch::{DispatchTask, api_terminal};
use crate::shared::Shared;
use crate::sources::desired::is_static;
use crate::view::ListedPod;
use api::ids::{ContainerId, PodUid};
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
    let known = shared.lives.sync_known(&desired);
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
    restart_missing_workers(task, &known.known.keys().cloned().collect());
    end_unknown_pods(task, &known.known.keys().cloned().collect());
    remove_dead_dirs(task, desired, known.known.keys().cloned().collect());
}

fn count_pods(task: &DispatchTask, known: &KnownPods) {
    let (mut desired, mut active) = ([0_u32; 2], [0_u32; 2]);
    for (uid, pod) in task.desired.iter() {
        let index = usize::from(is_static(pod));
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
        let life = task.shared().lives.life_of(uid);
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

/// Desired pods without a worker: static pods that finished and are wanted again, and pods that
/// were over before we started and only wait for their API object to go.
fn restart_missing_workers(task: &mut DispatchTask, known: &BTreeSet<PodUid>) {
    let missing: Vec<_> = task
        .desired
        .iter()
        .filter(|(uid, _)| !known.contains(*uid))
        .map(|(uid, pod)| (uid.clone(), Arc::clone(pod)))
        .collect();
    for (uid, pod) in missing {
        let over = api_terminal(&pod) || task.shared().status.is_terminal(&uid);
        if !over && !task.is_held_back(&uid) {
            let label = if is_static(&pod) { "true" } else { "" };
            task.shared().metrics.restarted.inc(&[label]);
            task.push(UpdateKind::Create, &pod);
        } else if pod.metadata.deletion_timestamp.is_some()
            && api_terminal(&pod)
            && !task.may_run(&uid)
        {
            task.push(UpdateKind::Kill, &pod);
        }
    }
}

/// Pods that run although nobody wants them. What is left of one that is still to be judged may be wanted.
fn end_unknown_pods(task: &mut DispatchTask, known: &BTreeSet<PodUid>) {
    let waiting = task.waiting();
    end_unwanted(task, |uid, _| !known.contains(uid) && !waiting.contains(uid));
}

/// What runs under the name of a static pod that has no worker yet: a version from before our start.
/// Its end is asked for first, so that the new one waits for it.
pub(crate) fn end_earlier_versions(task: &mut DispatchTask, pod: &api::core::v1::Pod) {
    let meta = &pod.metadata;
    let own = meta.uid.as_deref();
    let wanted: BTreeSet<PodUid> = task.desired.iter().map(|(uid, _)| uid.clone()).collect();
    end_unwanted(task, |uid, listed| {
        Some(uid.as_str()) != own
            && !wanted.contains(uid)
            && meta.name.as_deref() == Some(listed.name.as_str())
            && meta.namespace.as_deref() == Some(listed.namespace.as_str())
    });
}

/// Ends pods of the runtime that have no worker.
fn end_unwanted(task: &mut DispatchTask, unwanted: impl Fn(&PodUid, &ListedPod) -> bool) {
    let all = Arc::clone(&task.shared().view.all().borrow());
    for (uid, listed) in all.listed.iter() {
        if !unwanted(uid, listed) || task.shared().lives.life_of(uid).is_some() {
            continue;
        }
        let alive = all.pods.get(uid).map_or(listed.alive, |pod| !pod.is_dead());
        if !alive {
            continue;
        }
        tracing::info!(podUID = %uid, pod = %format!("{}/{}", listed.namespace, listed.name), "ending a pod that nobody wants");
        task.shared().metrics.orphaned.inc(&[]);
        let running = RunningPod {
            uid: uid.clone(),
            name: listed.name.clone(),
            namespace: listed.namespace.clone(),
        };
        let mut pod = api::core::v1::Pod::default();
        pod.metadata.uid = Some(uid.to_string());
        pod.metadata.name = Some(listed.name.clone());
        pod.metadata.namespace = Some(listed.namespace.clone());
        task.submit(PodUpdate::kill_runtime(running), &Arc::new(pod));
    }
}

fn delete_orphaned_mirrors(task: &mut DispatchTask) {
    for mirror in task.desired.orphaned_mirrors() {
        let name = crate::sources::desired::full_name(&mirror);
        if task.shared().lives.ask(|workers| workers.static_is_terminating(&name)) {
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
