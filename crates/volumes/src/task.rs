//! The task that owns the desired and the actual state of volumes: it plans, starts operations and records
//! their outcomes.
//!
//! Level-triggered: a pod change, a finished operation, a changed object or an elapsed back-off only
//! triggers another pass. Nothing here waits for a mount, a driver or the API server.

mod leftovers;
mod pod_state;
mod wait;

pub(crate) use wait::WaitState;

use crate::env::{Env, Step, StepError};
use crate::metrics::{label, truth};
use crate::ops::{self, OpReport};
use crate::orphans;
use crate::plugins::{MountInput, UnmountInput};
use crate::pool::NORMAL;
use crate::published::Published;
use crate::reconstruct::{self, Remains, Unexplained};
use crate::resolve::{self, Resolved};
use api::core::v1::Pod;
use api::ids::{PodUid, VolumeName};
use engine::volumes::{
    Action, Actual, Backoffs, Desired, DesiredPod, DeviceState, OpKey, Outcome, PlanView,
    VolumeSpec, plan,
};
use pod_state::PodState;
use ports::{ObjectChange, PodMounts, PodsSnapshot, VolumeError, Wait};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wait::ReadyWaiter;

/// How often folders of unknown pods are cleaned up (upstream's housekeeping period).
const ORPHANS_EVERY: Duration = Duration::from_secs(2);
/// When a pod whose volumes could not be resolved is retried.
const RESOLVE_AGAIN: Duration = Duration::from_secs(5);

/// A request from [`VolumesHandle`](crate::VolumesHandle).
#[derive(Debug)]
pub(crate) enum Request {
    /// Replies when every volume of the pod is mounted, or cannot be.
    Ready { pod: Arc<Pod>, reply: oneshot::Sender<Result<PodMounts, VolumeError>> },
    /// The pod's containers are gone; replies when none of its volumes is mounted.
    Released { pod: Arc<Pod>, reply: oneshot::Sender<()> },
    /// The pod's mounted volumes by their names in the pod spec.
    Mounted { uid: PodUid, reply: oneshot::Sender<Vec<(String, Arc<VolumeSpec>)>> },
    /// The mount progress of the pod's volumes.
    Describe { pod: Arc<Pod>, reply: oneshot::Sender<WaitState> },
    /// What every pod's volumes wait for, and which calls hang.
    Explain { reply: oneshot::Sender<VolumeStory> },
}

/// What pods' volumes wait for.
#[derive(Debug, Clone, Default)]
pub struct VolumeStory {
    /// By pod; only those that wait.
    pub waits: BTreeMap<PodUid, Vec<Wait>>,
    /// Calls that hang.
    pub hung: Vec<String>,
}

/// A job that runs outside the loop.
#[derive(Debug, Clone)]
enum Job {
    Resolve(PodUid),
    Op(Action, OpKey),
    OrphanNames,
    Orphans,
    ForceClean,
    Node,
}

/// The result of a [`Job`].
#[derive(Debug)]
enum JobDone {
    Resolved(PodUid, Resolved),
    Op(OpReport),
    OrphanNames(Vec<String>),
    Orphans(Option<orphans::Pass>),
    ForceClean,
    Attached(Option<BTreeMap<VolumeName, String>>),
}

/// The loop's state.
/// Many fields: what is wanted, what is there and what is under way, all owned by this one loop.
#[derive(Debug)]
pub(crate) struct VolumesTask {
    env: Arc<Env>,
    pods: watch::Receiver<PodsSnapshot>,
    requests: mpsc::Receiver<Request>,
    publisher: watch::Sender<Published>,
    changes: Option<broadcast::Receiver<ObjectChange>>,
    start: Instant,

    pod_states: BTreeMap<PodUid, PodState>,
    /// When each volume of a pod was first requested.
    requested_at: BTreeMap<(PodUid, VolumeName), Instant>,
    desired: Desired,
    actual: Actual,
    backoffs: Backoffs,
    /// The last error of each operation that has not succeeded since.
    errors: BTreeMap<OpKey, String>,
    /// Volumes whose expansion failed for good.
    growth_given_up: BTreeSet<VolumeName>,
    pending: BTreeSet<OpKey>,
    steps: BTreeMap<OpKey, Step>,
    jobs: JoinSet<JobDone>,
    running: BTreeMap<Id, Job>,
    waiters: Vec<ReadyWaiter>,
    release_waiters: Vec<(PodUid, oneshot::Sender<()>)>,

    /// All pod sources were ready in the last snapshot that was read.
    sources_ready: bool,
    /// All sources are ready and every pod's volumes have been resolved once.
    populated: bool,
    /// Volumes found on disk have been compared with the node object.
    found_checked: bool,
    unexplained: Vec<Unexplained>,
    reported_attached: BTreeSet<VolumeName>,
    orphans_at: Instant,
    orphans_reported: orphans::Pass,
    /// Pods whose folders are being removed: nothing is set up for them meanwhile.
    removing: BTreeSet<PodUid>,
    node_at: Option<Instant>,
    /// The published state must be computed again.
    recount: bool,
}

impl VolumesTask {
    pub(crate) fn new(
        env: Arc<Env>,
        pods: watch::Receiver<PodsSnapshot>,
        requests: mpsc::Receiver<Request>,
        publisher: watch::Sender<Published>,
    ) -> Self {
        let now = Instant::now();
        let changes = env.objects.changes();
        Self {
            env,
            pods,
            requests,
            publisher,
            changes,
            start: now,
            pod_states: BTreeMap::new(),
            requested_at: BTreeMap::new(),
            desired: Desired::default(),
            actual: Actual::default(),
            backoffs: Backoffs::default(),
            errors: BTreeMap::new(),
            growth_given_up: BTreeSet::new(),
            pending: BTreeSet::new(),
            steps: BTreeMap::new(),
            jobs: JoinSet::new(),
            running: BTreeMap::new(),
            waiters: Vec::new(),
            release_waiters: Vec::new(),
            sources_ready: false,
            populated: false,
            found_checked: false,
            unexplained: Vec::new(),
            reported_attached: BTreeSet::new(),
            orphans_at: now,
            orphans_reported: orphans::Pass::default(),
            removing: BTreeSet::new(),
            node_at: None,
            recount: true,
        }
    }

    /// Reads the disk, then loops until cancelled.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        self.reconstruct().await;
        self.read_pods();
        let mut node = self.env.node.clone();
        let mut csi_ready = self.env.csi_ready.subscribe();
        let mut certificates = self.env.certificates.changes();
        loop {
            let wake = self.look();
            // Every arm is cancel-safe: watches, channels, join sets and sleeps lose nothing. Biased,
            // so that a simulated run is a function of its seed; the channels drained below are not
            // starved by the first arms.
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                changed = self.pods.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.read_pods();
                }
                request = self.requests.recv() => match request {
                    Some(request) => self.answer(request),
                    None => return,
                },
                Some(done) = self.jobs.join_next_with_id() => self.pod_state(done),
                change = next_change(&mut self.changes) => self.object_changed(change),
                Ok(()) = node.changed() => self.read_node(),
                Ok(()) = csi_ready.changed() => self.recount = true,
                Ok(()) = certificates.changed() => self.certificates_changed(),
                () = tokio::time::sleep_until(wake) => {}
            }
            while let Some(done) = self.jobs.try_join_next_with_id() {
                self.pod_state(done);
            }
            while let Ok(request) = self.requests.try_recv() {
                self.answer(request);
            }
        }
    }

    async fn reconstruct(&mut self) {
        let paths = self.env.paths.clone();
        let scan = self.env.pool.run("pods", "scan", NORMAL, move || reconstruct::scan(&paths));
        let remains = match scan.await {
            Ok(Ok(remains)) => remains,
            Ok(Err(e)) => {
                tracing::error!(err = %e, "could not read the volumes on disk");
                Remains::default()
            }
            Err(e) => {
                tracing::error!(err = %e, "could not read the volumes on disk");
                Remains::default()
            }
        };
        let mut attachable = false;
        let total = remains.found.len() + remains.unexplained.len();
        for found in remains.found {
            tracing::debug!(podUID = %found.pod, volume = %found.name, "volume found on disk");
            attachable |= found.spec.is_device_mountable();
            self.actual.add_found(found.name.clone(), found.pod, found.spec);
            if !found.label.is_empty() {
                self.actual.set_found_label(&found.name, found.label);
            }
        }
        for (spec, label) in remains.devices {
            attachable = true;
            let name = spec.unique_name(&PodUid::from(""));
            self.actual.add_found_device(name.clone(), spec);
            if !label.is_empty() {
                self.actual.set_found_label(&name, label);
            }
        }
        // Only the node object tells whether a controller attached them.
        self.found_checked = !attachable || self.env.config.standalone;
        self.node_at = (!self.found_checked).then(Instant::now);
        let metrics = &self.env.metrics;
        for _ in 0..total {
            metrics.reconstructed.inc(&[]);
        }
        for _ in &remains.unexplained {
            metrics.not_reconstructed.inc(&[]);
        }
        self.unexplained = remains.unexplained;
    }

    /// Starts whatever is due; returns the time of the next pass.
    fn look(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + Duration::from_secs(60);
        self.start_resolves(now, &mut wake);
        self.check_populated();
        self.start_node_check(now, &mut wake);
        let may_unmount = self.populated && self.found_checked;
        let planned = plan(
            &PlanView {
                desired: &self.desired,
                actual: &self.actual,
                pending: &self.pending,
                backoffs: &self.backoffs,
                may_unmount,
                controller_attaches: self.env.config.controller_attaches,
                reported_attached: &self.reported_attached,
            },
            now - self.start,
        );
        if let Some(at) = planned.wake_at {
            wake = wake.min(self.start + at);
        }
        for action in planned.actions {
            let early = |pod: &PodUid| self.removing.contains(pod);
            if !matches!(&action, Action::Mount { pod, .. } if early(pod)) {
                self.begin(action);
            }
        }
        if may_unmount {
            self.clean_unexplained();
            let looking = |job: &Job| matches!(job, Job::OrphanNames | Job::Orphans);
            if now >= self.orphans_at && !self.is_running(looking) {
                self.list_orphans();
            }
            wake = wake.min(self.orphans_at.max(now + Duration::from_millis(10)));
        }
        self.settle_waiters();
        self.publish();
        wake
    }

    fn is_running(&self, which: impl Fn(&Job) -> bool) -> bool {
        self.running.values().any(which)
    }

    fn spawn(&mut self, job: Job, work: impl Future<Output = JobDone> + Send + 'static) {
        let id = self.jobs.spawn(work).id();
        self.running.insert(id, job);
    }

    fn start_resolves(&mut self, now: Instant, wake: &mut Instant) {
        let mut due = Vec::new();
        for (uid, pod_state) in &mut self.pod_states {
            if pod_state.resolving {
                continue;
            }
            match pod_state.again_at {
                Some(at) if at > now && !pod_state.dirty => *wake = (*wake).min(at),
                None if !pod_state.dirty => {}
                _ => {
                    pod_state.resolving = true;
                    pod_state.dirty = false;
                    pod_state.again_at = None;
                    pod_state.started += 1;
                    due.push((uid.clone(), Arc::clone(&pod_state.pod)));
                }
            }
        }
        for (uid, pod) in due {
            let env = Arc::clone(&self.env);
            let job = Job::Resolve(uid.clone());
            self.spawn(job, async move {
                let resolved = resolve::resolve(&env, &pod).await;
                JobDone::Resolved(uid, resolved)
            });
        }
    }

    /// Asks the API server which of the volumes found on disk are attached.
    fn start_node_check(&mut self, now: Instant, wake: &mut Instant) {
        match self.node_at {
            Some(at) if at > now => *wake = (*wake).min(at),
            Some(_) => {
                self.node_at = None;
                let env = Arc::clone(&self.env);
                self.spawn(Job::Node, async move {
                    let node = match env.objects.node_now().await {
                        Ok(node) => node,
                        Err(err) => {
                            tracing::warn!(%err, "could not read the node for volumes on disk");
                            return JobDone::Attached(None);
                        }
                    };
                    let attached = node.status.iter().flat_map(|s| s.volumes_attached.iter());
                    let devices = attached
                        .flatten()
                        .map(|v| (VolumeName::from(v.name.as_str()), v.device_path.clone()))
                        .collect();
                    JobDone::Attached(Some(devices))
                });
            }
            None => {}
        }
    }

    fn check_populated(&mut self) {
        // `sources_ready` belongs to the snapshot that was read, not to a newer one in the channel.
        if self.populated || !self.sources_ready {
            return;
        }
        self.populated = self.pod_states.values().all(|b| b.finished > 0);
    }

    fn begin(&mut self, action: Action) {
        if let Action::Forget { .. } = &action {
            self.recount = true;
            self.actual.finish(&action, &Outcome::Done, None);
            return;
        }
        let mountable = self.spec_of(&action).is_some_and(|s| s.is_device_mountable());
        let key = action.key(mountable);
        let step = Step::new(action.name());
        let work = self.work(&action, &step);
        let Some(work) = work else { return };
        self.count_as_attached(&action);
        self.actual.begin(&action, &self.desired);
        self.pending.insert(key.clone());
        self.steps.insert(key.clone(), step);
        let metrics = self.env.metrics.clone();
        let spec = self.spec_of(&action);
        let name = match counted_as(action.name(), spec.as_ref().is_some_and(|s| s.is_block())) {
            "verify_controller_attached_volume" if !self.env.config.controller_attaches => {
                "volume_attach"
            }
            name => name,
        };
        // Expansions are never counted as migrated.
        let migrated = name != "volume_fs_resize" && spec.as_ref().is_some_and(|s| s.migrated);
        let plugin = spec.map(|s| label(&s)).unwrap_or_default();
        let requested = self.requested_since(&action);
        self.spawn(Job::Op(action, key), async move {
            let started = Instant::now();
            let report = work.await;
            let status = if report.error.is_none() { "success" } else { "fail-unknown" };
            let labels = [plugin.as_str(), name, status, truth(migrated)];
            metrics.operation.observe_duration(&labels, started.elapsed());
            if name == "volume_mount" && report.error.is_none() {
                let labels = [plugin.as_str(), "overall_volume_mount"];
                metrics.end_to_end.observe_duration(&labels, requested.elapsed());
            }
            JobDone::Op(report)
        });
    }

    /// Counts a volume that needs no attach as verified attached when it is first mounted.
    fn count_as_attached(&self, action: &Action) {
        let Action::Mount { volume, pod } = action else { return };
        let wanted = self.desired.pods.get(pod).and_then(|p| p.volumes.get(volume));
        if let (Some(wanted), None) = (wanted, self.actual.volumes.get(volume)) {
            let plugin = label(&wanted.spec);
            let name = "verify_controller_attached_volume";
            let labels = [plugin.as_str(), name, "success", truth(wanted.spec.migrated)];
            self.env.metrics.operation.observe_duration(&labels, Duration::ZERO);
        }
    }

    fn work(
        &self,
        action: &Action,
        step: &Step,
    ) -> Option<futures::future::BoxFuture<'static, OpReport>> {
        let env = Arc::clone(&self.env);
        match action {
            Action::Mount { volume, pod } => {
                let input = self.mount_input(volume, pod, step)?;
                Some(Box::pin(async move { ops::mount(&env, &input).await }))
            }
            Action::Expand { volume, pod } => {
                let input = self.mount_input(volume, pod, step)?;
                Some(Box::pin(async move { ops::grow(&env, &input).await }))
            }
            Action::Unmount { volume, pod } => {
                let spec = Arc::clone(&self.actual.mount(volume, pod)?.spec);
                let input = UnmountInput { uid: pod.to_string(), spec, step: step.clone() };
                Some(Box::pin(async move { ops::unmount(&env, &input).await }))
            }
            Action::UnmountDevice { volume } => {
                let actual = self.actual.volumes.get(volume)?;
                let (spec, device) = (Arc::clone(&actual.spec), actual.device);
                let step = step.clone();
                if device == DeviceState::NotMounted {
                    return Some(Box::pin(async move { ops::detach(&env, &spec, &step).await }));
                }
                Some(Box::pin(async move { ops::unmount_device(&env, &spec, &step).await }))
            }
            Action::VerifyAttached { volume } if !self.env.config.controller_attaches => {
                let wants = |(_, p): &(&PodUid, &DesiredPod)| p.volumes.contains_key(volume);
                let (pod, _) = self.desired.pods.iter().find(wants)?;
                let input = self.mount_input(volume, pod, step)?;
                Some(Box::pin(async move { ops::attach(&env, &input).await }))
            }
            Action::VerifyAttached { volume } => {
                let (volume, step) = (volume.clone(), step.clone());
                Some(Box::pin(async move { ops::verify_attached(&env, &volume, &step).await }))
            }
            Action::Forget { .. } => None,
        }
    }

    fn mount_input(&self, volume: &VolumeName, pod: &PodUid, step: &Step) -> Option<MountInput> {
        let pod_state = self.pod_states.get(pod)?;
        let wanted = self.desired.pods.get(pod)?.volumes.get(volume)?;
        let actual = self.actual.volumes.get(volume);
        let mount = actual.and_then(|v| v.pods.get(pod));
        Some(MountInput {
            pod: Arc::clone(&pod_state.pod),
            uid: pod.to_string(),
            spec: Arc::clone(&wanted.spec),
            state: mount.map(|m| m.state),
            reconstructed: mount.is_some_and(|m| m.reconstructed),
            device_reconstructed: actual.is_some_and(|v| v.pods.values().any(|m| m.reconstructed)),
            device: actual.map(|v| v.device).unwrap_or_default(),
            device_path: actual.map(|v| v.device_path.clone()).unwrap_or_default(),
            others: actual.is_some_and(|v| v.pods.keys().any(|p| p != pod)),
            growth_given_up: self.growth_given_up.contains(volume),
            label: actual.map_or(wanted.label.mount.as_str(), |v| v.label_for(wanted)).to_owned(),
            step: step.clone(),
        })
    }

    fn spec_of(&self, action: &Action) -> Option<Arc<VolumeSpec>> {
        let volume = action.volume();
        let actual = self.actual.volumes.get(volume).map(|v| Arc::clone(&v.spec));
        actual.or_else(|| {
            let wanted = self.desired.pods.values().find_map(|p| p.volumes.get(volume))?;
            Some(Arc::clone(&wanted.spec))
        })
    }

    fn pod_state(&mut self, done: Result<(Id, JobDone), tokio::task::JoinError>) {
        let (id, done) = match done {
            Ok((id, done)) => (id, Some(done)),
            Err(e) => {
                tracing::error!(err = %e, "volume job panicked or was cancelled");
                (e.id(), None)
            }
        };
        let Some(job) = self.running.remove(&id) else { return };
        self.recount = true;
        match (job, done) {
            (Job::Op(action, key), done) => {
                let report = match done {
                    Some(JobDone::Op(report)) => report,
                    _ => OpReport::failed(StepError::uncertain("operation panicked")),
                };
                self.finish_op(&action, key, report);
            }
            (Job::Resolve(_), Some(JobDone::Resolved(uid, resolved))) => {
                self.finish_resolve(uid, resolved);
            }
            (Job::Resolve(uid), _) => {
                if let Some(pod_state) = self.pod_states.get_mut(&uid) {
                    pod_state.resolving = false;
                    pod_state.again_at = Some(Instant::now() + RESOLVE_AGAIN);
                }
            }
            (Job::OrphanNames, Some(JobDone::OrphanNames(names))) => self.remove_orphans(&names),
            (Job::OrphanNames, _) => self.orphans_at = Instant::now() + ORPHANS_EVERY,
            (Job::ForceClean, _) => {}
            (Job::Orphans, done) => {
                self.removing.clear();
                self.orphans_at = Instant::now() + ORPHANS_EVERY;
                if let Some(JobDone::Orphans(Some(pass))) = done {
                    self.report_orphans(pass);
                }
            }
            (Job::Node, Some(JobDone::Attached(attached))) => self.finish_node_check(attached),
            (Job::Node, _) => self.finish_node_check(None),
        }
    }

    fn finish_op(&mut self, action: &Action, key: OpKey, report: OpReport) {
        self.pending.remove(&key);
        self.steps.remove(&key);
        match &report.error {
            None => {
                self.errors.remove(&key);
                self.backoffs.succeeded(&key);
            }
            Some(error) => {
                let now = Instant::now() - self.start;
                let wait = self.backoffs.failed(key.clone(), action.name(), now);
                tracing::error!(operation = action.name(), volume = %key.volume(),
                    durationBeforeRetry = ?wait, err = error, "volume operation failed");
                self.errors.insert(key.clone(), error.clone());
            }
        }
        self.actual.finish(action, &report.outcome, report.device);
        if let Some(volume) = self.actual.volumes.get_mut(action.volume()) {
            volume.size = report.size.or(volume.size);
            if let Some(device) = report.device_path {
                volume.device_path = device;
            }
            volume.expansion_refused |= report.refused;
        }
        if report.given_up {
            self.growth_given_up.insert(action.volume().clone());
        }
    }
}

/// The operation's name in metrics: block volumes are mapped, others mounted.
fn counted_as(name: &'static str, block: bool) -> &'static str {
    match name {
        "volume_mount" if block => "map_volume",
        "volume_unmount" if block => "unmap_volume",
        "unmount_device" if block => "unmap_device",
        name => name,
    }
}

/// Waits for a changed object; `None` means that some changes were missed.
async fn next_change(
    changes: &mut Option<broadcast::Receiver<ObjectChange>>,
) -> Option<ObjectChange> {
    let Some(receiver) = changes else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(change) => Some(change),
        Err(broadcast::error::RecvError::Lagged(_)) => None,
        Err(broadcast::error::RecvError::Closed) => {
            *changes = None;
            std::future::pending().await
        }
    }
}
