//! The task between sources and workers: it owns what should run.
//!
//! Owns: the merged sets of all sources, static and mirror pairs, and which pods were refused.
//!
//! Promises: additions are admitted in order of creation; nothing is removed before every configured
//! source has spoken; what it publishes is one consistent moment.

mod admit;
mod requests;
mod resizes;
mod snapshot;

pub(crate) use requests::Request;

use crate::admission::Admission;
use crate::metrics::resize::RetryTrigger;
use crate::pod_states::WorkerSignals;
use crate::shared::Shared;
use crate::shared::until;
use crate::sources::SourceSet;
use crate::sources::desired::DesiredPods;
use crate::sources::merge::{Change, MergeState};
use crate::worker::PodWorker;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::allocation::{requested_resizes, wishes_otherwise};
use engine::pod::life::{PodUpdate, UpdateKind};
use ports::{ActivePods, EventSeverity, EventTarget, NodeEvent, PodSource, PodsSnapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::Instrument;

/// How often leftovers are looked for (`kubelet: housekeepingPeriod`).
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// How often waiting resizes are tried when nothing else gives a reason.
const RESIZE_RETRY: Duration = Duration::from_secs(180);

/// The dispatcher.
/// Many fields: what comes in from elsewhere, and what only this task remembers of pods.
#[derive(Debug)]
pub(crate) struct DispatchTask {
    shared: Arc<Shared>,
    admission: Admission,
    configured: BTreeSet<PodSource>,
    merge: MergeState,
    pub(crate) desired: DesiredPods,
    rejected: BTreeSet<PodUid>,
    /// Pods that wait for others to end.
    preempting: BTreeSet<PodUid>,
    /// Pods that wait for devices, or for the answer of a device plugin, before they are judged.
    late: BTreeSet<PodUid>,
    /// Pods that wish other resources than they have.
    resizing: BTreeSet<PodUid>,
    /// Critical pods for whose resize others end.
    making_room: BTreeMap<PodUid, Room>,
    next_resizes: Instant,
    /// The API's newest set, while its node is not known.
    held: Option<SourceSet>,
    /// The API's node was seen.
    registered: bool,
    /// Our own inbox, for tasks that report back.
    again: mpsc::Sender<Request>,
    sets: mpsc::Receiver<SourceSet>,
    requests: mpsc::Receiver<Request>,
    published: watch::Sender<PodsSnapshot>,
    /// What is published next lets containers go.
    garbage: bool,
    next_housekeeping: Instant,
    pub(crate) housekeeping: crate::housekeeping::Housekeeping,
}

/// How far it is with those who must end for a resize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// They were asked to.
    Asked,
    /// They have, or had their time.
    Made,
}

/// What the dispatcher is built from.
#[derive(Debug)]
pub(crate) struct DispatchParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) admission: Admission,
    pub(crate) configured: BTreeSet<PodSource>,
    pub(crate) sets: mpsc::Receiver<SourceSet>,
    pub(crate) requests: mpsc::Receiver<Request>,
    pub(crate) again: mpsc::Sender<Request>,
    pub(crate) published: watch::Sender<PodsSnapshot>,
}

impl DispatchTask {
    pub(crate) fn new(parts: DispatchParts) -> Self {
        let DispatchParts { shared, admission, configured, sets, requests, again, published } =
            parts;
        Self {
            housekeeping: crate::housekeeping::Housekeeping::new(Arc::clone(&shared)),
            shared,
            admission,
            configured,
            merge: MergeState::default(),
            desired: DesiredPods::default(),
            rejected: BTreeSet::new(),
            preempting: BTreeSet::new(),
            late: BTreeSet::new(),
            resizing: BTreeSet::new(),
            making_room: BTreeMap::new(),
            next_resizes: Instant::now() + RESIZE_RETRY,
            held: None,
            registered: false,
            again,
            sets,
            requests,
            published,
            garbage: false,
            next_housekeeping: Instant::now() + HOUSEKEEPING,
        }
    }

    pub(crate) async fn run(mut self) {
        let cancel = self.shared.tasks.token();
        let mut pod_states = self.shared.pod_states.changed();
        let mut statuses = self.shared.status.changed();
        // Whoever acts on pods must know what runs first: a restart changes nothing by itself.
        tokio::select! {
            () = cancel.cancelled() => return, // cancel-safe: a token
            _ = self.shared.view.first_audit() => {} // cancel-safe: a watch
        }
        // Without a node every pod would be refused, also those that have run here for months.
        let mut node = self.shared.node.clone();
        tokio::select! {
            () = cancel.cancelled() => return, // cancel-safe: a token
            _ = node.wait_for(|view| view.node.is_some()) => {} // cancel-safe: a watch
        }
        crate::resolver::check(&self.shared).await;
        self.publish();
        let (mut published_at, mut due) = (Instant::now(), None);
        let runtime = self.shared.view.health();
        loop {
            // As upstream, whose loop stands still while the runtime does not answer.
            if runtime.borrow().audit_error.is_none() {
                self.shared.heartbeat.beat();
            }
            tokio::select! {
                () = cancel.cancelled() => return, // cancel-safe: a token
                Some(set) = self.sets.recv() => self.offer_set(set).await, // cancel-safe: mpsc
                Ok(()) = node.changed() => self.node_changed().await, // cancel-safe: a watch
                Some(request) = self.requests.recv() => self.take_request(request).await, // cancel-safe: mpsc
                Ok(()) = pod_states.changed() => {} // cancel-safe: a watch
                Ok(()) = statuses.changed() => {} // cancel-safe: a watch
                () = until(due) => {} // cancel-safe: a timer
                () = tokio::time::sleep_until(self.next_housekeeping) => { // cancel-safe: a field
                    if self.sources_ready() {
                        self.housekeep().await;
                    }
                    if Instant::now() >= self.next_resizes {
                        self.retry_resizes(RetryTrigger::Periodic).await;
                    }
                    self.next_housekeeping = Instant::now() + HOUSEKEEPING;
                }
            }
            let now = Instant::now();
            let next = published_at + self.publish_gap();
            if now < next {
                due = Some(next);
            } else {
                self.publish();
                (published_at, due) = (now, None);
            }
        }
    }

    pub(crate) fn sources_ready(&self) -> bool {
        self.configured.iter().all(|source| self.merge.has_delivered(*source))
    }

    /// Pods of the API wait until the API's own node is known: its labels and taints decide about them.
    async fn offer_set(&mut self, set: SourceSet) {
        if set.source == PodSource::Api && !self.node_registered() {
            self.held = Some(set);
        } else {
            self.take_set(set).await;
        }
    }

    async fn node_changed(&mut self) {
        if self.registered || !self.node_registered() {
            return;
        }
        self.registered = true;
        if let Some(set) = self.held.take() {
            self.take_set(set).await;
        }
        // Mirrors name the node as their owner: now they can be made.
        let statics: Vec<Arc<Pod>> = self
            .desired
            .iter()
            .map(|(_, pod)| pod)
            .filter(|pod| pod.is_static())
            .cloned()
            .collect();
        for pod in statics {
            self.push(UpdateKind::Sync, &pod);
        }
    }

    fn node_registered(&self) -> bool {
        let view = self.shared.node.borrow();
        let uid = view.node.as_ref().and_then(|node| node.metadata.uid.as_deref());
        uid.is_some_and(|uid| !uid.is_empty())
    }

    async fn take_set(&mut self, set: SourceSet) {
        let now = self.shared.clock.now();
        if set.source == PodSource::Api {
            self.shared.metrics.starts.observed(set.pods.iter(), now);
        }
        let merged = self.merge.merge(set.source, set.pods, now);
        for pod in merged.duplicates {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let message = format!(
                "Error validating pod {} from {} due to duplicate pod name {name:?}, ignoring",
                pod.display_name(),
                set.source.as_str()
            );
            self.event(&pod, EventSeverity::Warning, "FailedValidation", message);
        }
        let (mut adds, mut others) = (Vec::new(), Vec::new());
        let trigger = resizes::trigger(&merged.changes);
        for change in merged.changes {
            match change {
                Change::Add(pod) => adds.push(pod),
                Change::Remove(pod) => self.remove(&pod),
                other => others.push(other),
            }
        }
        adds.sort_by_key(|pod| {
            pod.metadata.creation_timestamp.as_ref().map_or(now, |created| created.0)
        });
        for pod in adds {
            self.add(pod).await;
        }
        for change in others {
            match change {
                Change::Update(pod) | Change::Delete(pod) => self.update(&pod),
                Change::Reconcile(pod) => self.reconcile(&pod),
                Change::Add(_) | Change::Remove(_) => {}
            }
        }
        self.retry_resizes(trigger).await;
    }

    async fn add(&mut self, pod: Arc<Pod>) {
        self.desired.upsert(&pod);
        if pod.is_mirror() {
            self.mirror_changed(&pod);
            return;
        }
        let uid = pod.uid();
        self.shared.timelines.of(&pod).note("seen", source_of(&pod).as_str());
        self.shared.resizes.seed(&pod);
        let ending = self.shared.pod_states.ask(|workers| workers.termination_requested(&uid));
        if ending || pod.is_terminal() {
            self.push(UpdateKind::Create, &pod);
        } else {
            self.admit(pod).await;
        }
    }

    fn update(&mut self, pod: &Arc<Pod>) {
        let mut wishes = true;
        let mut lacking = None;
        if let Some(old) = self.desired.get(&pod.uid()) {
            self.shared.metrics.resize.requested(&requested_resizes(old, pod));
            wishes = wishes_otherwise(old, pod);
            lacking = self.admission.update_fault(old, pod);
        }
        self.desired.upsert(pod);
        if pod.is_mirror() {
            self.mirror_changed(pod);
            return;
        }
        if self.late.contains(&pod.uid()) {
            self.late_changed(pod);
            return;
        }
        if let Some(message) = lacking {
            let reason = "FailedNodeDeclaredFeaturesCheck";
            self.event(pod, EventSeverity::Warning, reason, message);
        }
        // What was judged stays so until other resources are wished.
        if wishes {
            self.change_wish(pod);
        }
        // A wish is judged next, and the pod is pushed with the outcome.
        if !self.resizing.contains(&pod.uid()) || !self.sources_ready() {
            self.push(UpdateKind::Update, pod);
        }
    }

    fn reconcile(&mut self, pod: &Arc<Pod>) {
        self.desired.upsert(pod);
        if pod.is_mirror() {
            return;
        }
        if self.shared.status.gates_differ(pod) {
            self.push(UpdateKind::Sync, pod);
        }
        // The world knows how its containers ended: they need not stay for that.
        self.garbage |= is_evicted(pod);
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        self.desired.remove(pod);
        self.shared.metrics.starts.note(|startups| startups.forget(&pod.uid()));
        if pod.is_mirror() {
            self.mirror_changed(pod);
            return;
        }
        self.rejected.remove(&pod.uid());
        self.preempting.remove(&pod.uid());
        if self.late.remove(&pod.uid()) {
            self.shared.placement.abandon(pod.uid().as_str());
        }
        self.resizing.remove(&pod.uid());
        self.shared.timelines.of(pod).note("removed from its source", "");
        // Before every source has spoken a missing pod may only be late; housekeeping repeats this.
        if self.sources_ready() {
            self.push(UpdateKind::Kill, pod);
        }
    }

    /// Any change of a mirror pod is a reason to look at its static pod.
    fn mirror_changed(&mut self, mirror: &Arc<Pod>) {
        if let Some(pod) = self.desired.static_of(mirror).cloned() {
            self.push(UpdateKind::Update, &pod);
        }
    }

    /// Hands an update to the pod's worker, which is started if needed.
    pub(crate) fn push(&mut self, kind: UpdateKind, pod: &Arc<Pod>) {
        let uid = pod.uid();
        if self.waits(&uid) || (self.rejected.contains(&uid) && kind == UpdateKind::Sync) {
            return;
        }
        if pod.is_static() && self.shared.pod_states.life_of(&uid).is_none() {
            crate::housekeeping::end_earlier_versions(self, pod);
        }
        let mut update = PodUpdate::of(kind, self.allocated(pod));
        update.mirror = self.desired.mirror_of(pod).cloned();
        // Upstream does not time what it ends itself.
        update.seen_at = (kind != UpdateKind::Kill).then(|| self.shared.clock.now());
        self.submit(update, pod);
    }

    pub(crate) fn submit(&mut self, update: PodUpdate, pod: &Arc<Pod>) {
        let uid = pod.uid();
        let may_run = self.may_run(&uid);
        if let Some(signals) = self.shared.pod_states.update(update, may_run) {
            self.spawn_worker(pod, signals);
        }
    }

    fn spawn_worker(&self, pod: &Arc<Pod>, signals: WorkerSignals) {
        let uid = pod.uid();
        let span = tracing::info_span!("pod", pod = %pod.key(), podUID = %uid);
        let timeline = self.shared.timelines.of(pod);
        let shared = Arc::clone(&self.shared);
        let mut again = false;
        // A fault in our own code must not leave a pod without its worker.
        self.shared.tasks.spawn_finishing_anew("pod-worker", move || {
            if std::mem::replace(&mut again, true) {
                timeline.note("worker panicked", "");
                shared.pod_states.look_again(&uid);
            }
            let worker =
                PodWorker::new(uid.clone(), Arc::clone(&shared), signals.clone(), timeline.clone());
            worker.run().instrument(span.clone())
        });
    }

    /// The pod with the resources that were admitted.
    pub(crate) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.shared.allocated.applied_to(pod) {
            Some(changed) => Arc::new(changed),
            None => Arc::clone(pod),
        }
    }

    /// Whether the runtime shows something alive of the pod, or cannot tell.
    pub(crate) fn may_run(&self, uid: &PodUid) -> bool {
        let all = self.shared.view.all();
        let all = all.borrow();
        match all.pods.get(uid) {
            Some(pod) => !pod.is_dead(),
            None => all.listed.get(uid).map_or(all.audited.is_none(), |pod| pod.alive),
        }
    }

    /// Pods that hold resources, but for one, with what they were admitted with.
    fn active_pods(&self, but: &PodUid) -> Vec<Arc<Pod>> {
        self.desired
            .iter()
            .filter(|(uid, _)| *uid != but)
            .filter(|(uid, pod)| self.is_active(uid, pod))
            .map(|(_, pod)| self.allocated(pod))
            .collect()
    }

    /// Complete once the sets of every source were taken in whole: what was published says so.
    fn active<'a>(&self, others: &'a [Arc<Pod>]) -> ActivePods<'a> {
        ActivePods { others, complete: self.published.borrow().sources_ready }
    }

    pub(crate) fn is_active(&self, uid: &PodUid, pod: &Pod) -> bool {
        let (terminated, requested) = self
            .shared
            .pod_states
            .ask(|workers| (workers.known_terminated(uid), workers.termination_requested(uid)));
        if terminated {
            return false;
        }
        let over = pod.is_terminal() || self.shared.status.is_terminal(uid);
        !over || requested
    }

    pub(crate) fn event(
        &self,
        pod: &Arc<Pod>,
        severity: EventSeverity,
        reason: &'static str,
        message: String,
    ) {
        let target = EventTarget::Pod { pod: Arc::clone(pod), field_path: None };
        self.shared.events.emit(NodeEvent { target, severity, reason, message });
    }

    async fn housekeep(&mut self) {
        crate::housekeeping::run(self).await;
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether the pod must not get a worker by itself.
    pub(crate) fn is_held_back(&self, uid: &PodUid) -> bool {
        self.rejected.contains(uid) || self.waits(uid)
    }

    /// Pods that are still to be judged.
    pub(crate) fn waiting(&self) -> BTreeSet<PodUid> {
        self.preempting.union(&self.late).cloned().collect()
    }

    /// Whether the pod is still to be judged.
    fn waits(&self, uid: &PodUid) -> bool {
        self.preempting.contains(uid) || self.late.contains(uid)
    }
}

/// Where the pod came from.
pub(crate) fn source_of(pod: &Pod) -> PodSource {
    match pod.annotation(api::pod::SOURCE_ANNOTATION) {
        Some("file") => PodSource::File,
        Some("http") => PodSource::Http,
        _ => PodSource::Api,
    }
}

/// Whether the API shows the pod as evicted (upstream: `eviction.PodIsEvicted`).
fn is_evicted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| {
        status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted")
    })
}
