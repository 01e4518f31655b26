//! What does run: the one place that asks the runtime.
//!
//! ```text
//!   runtime events ──┐
//!   own actions ─────┼─▶ look at one pod ──▶ observation of that pod ──▶ its worker
//!   audit (all pods)─┘    (own deadline)      (watch, only if changed)
//! ```
//!
//! Owns: one [`Observation`] per pod, with the sequence number at which the runtime was asked.
//!
//! Promises: an answer never replaces one that was asked for later; a hung or failing look at one
//! pod delays no other pod; an event is only a reason to look, its content is never believed, so
//! a stale or early event cannot change a decision. A worker that acts takes an [`ObservationSeq`] when its
//! action ends and waits for an observation asked for after it.
//!
//! Deliberately absent: decisions. Whether a change matters is for the reader.

mod events;
mod look;
mod settle;
mod task;
pub(crate) mod termination;
pub(crate) mod translate;

pub use task::ViewConfig;
pub(crate) use task::ViewTask;

use api::ids::PodUid;
use engine::runtime::RuntimePod;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A place in the order of questions to the runtime and ends of own actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ObservationSeq(u64);

/// What the runtime said about one pod.
#[derive(Debug, Clone)]
pub(crate) struct Observation {
    /// When it was asked.
    pub(crate) asked: ObservationSeq,
    /// Counts up whenever the content changes.
    pub(crate) version: u64,
    /// The pod, or why it could not be read.
    pub(crate) pod: Result<Arc<RuntimePod>, Arc<str>>,
}

/// All pods that the runtime has, as of the last audit or look.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimePods {
    /// Full views by UID; one may lag behind `listed` while it is being read.
    pub(crate) pods: BTreeMap<PodUid, Arc<RuntimePod>>,
    /// What the last audit listed, complete as of `audited`.
    pub(crate) listed: Arc<BTreeMap<PodUid, ListedPod>>,
    /// When everything was last asked for, if ever.
    pub(crate) audited: Option<ObservationSeq>,
}

/// One pod as an audit lists it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ListedPod {
    /// Its name.
    pub(crate) name: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// A sandbox is ready or a container runs.
    pub(crate) alive: bool,
    /// Annotations of its (ready) sandbox.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Hash annotation of each container name.
    pub(crate) hashes: BTreeMap<String, String>,
}

/// How the view is doing, for the node's Ready condition and health checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ViewHealth {
    /// Whether runtime events flow.
    pub events: bool,
    /// Whether an audit has ever succeeded.
    pub audited: bool,
    /// Why the last audit failed, if it did.
    pub audit_error: Option<String>,
    /// Pods whose last look failed or hangs, with the reason.
    pub stuck: BTreeMap<PodUid, String>,
}

/// The front of the view. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ViewHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sequence: AtomicU64,
    slots: Mutex<BTreeMap<PodUid, watch::Sender<Option<Observation>>>>,
    /// Pods to look at; `wanted` wakes the task.
    wishes: Mutex<BTreeSet<PodUid>>,
    wanted: Notify,
    all: watch::Sender<Arc<RuntimePods>>,
    health: watch::Sender<ViewHealth>,
}

impl ViewHandle {
    fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                sequence: AtomicU64::new(1),
                slots: Mutex::default(),
                wishes: Mutex::default(),
                wanted: Notify::new(),
                all: watch::Sender::new(Arc::default()),
                health: watch::Sender::new(ViewHealth::default()),
            }),
        }
    }

    /// The next place in the order of questions and actions.
    pub(crate) fn next_seq(&self) -> ObservationSeq {
        ObservationSeq(self.shared.sequence.fetch_add(1, Ordering::SeqCst))
    }

    /// Asks for a fresh look at one pod, soon.
    pub(crate) fn look(&self, uid: &PodUid) {
        if let Ok(mut wishes) = self.shared.wishes.lock() {
            wishes.insert(uid.clone());
        }
        self.shared.wanted.notify_one();
    }

    /// Follows one pod.
    pub(crate) fn subscribe(&self, uid: &PodUid) -> watch::Receiver<Option<Observation>> {
        self.with_slot(uid, watch::Sender::subscribe)
    }

    /// All pods, renewed with every change.
    pub(crate) fn all(&self) -> watch::Receiver<Arc<RuntimePods>> {
        self.shared.all.subscribe()
    }

    /// How the view is doing.
    pub(crate) fn health(&self) -> watch::Receiver<ViewHealth> {
        self.shared.health.subscribe()
    }

    /// Waits until everything was asked for once.
    pub(crate) async fn first_audit(&self) -> Arc<RuntimePods> {
        let mut all = self.all();
        match all.wait_for(|pods| pods.audited.is_some()).await {
            Ok(pods) => Arc::clone(&pods),
            // The sender lives in `self`: it cannot be gone.
            Err(_) => Arc::default(),
        }
    }

    /// Waits for an observation of the pod that was asked for after `since`. Looks at the pod by
    /// itself when none is under way.
    pub(crate) async fn newer(
        &self,
        uid: &PodUid,
        since: ObservationSeq,
        limit: Duration,
    ) -> Result<Arc<RuntimePod>, Arc<str>> {
        let mut follow = self.subscribe(uid);
        let fresh = |seen: &Option<Observation>| seen.as_ref().is_some_and(|o| o.asked > since);
        if !fresh(&follow.borrow_and_update()) {
            self.look(uid);
        }
        match tokio::time::timeout(limit, follow.wait_for(fresh)).await {
            Ok(Ok(seen)) => match &*seen {
                Some(observation) => observation.pod.clone(),
                None => Err("the runtime was not asked".into()),
            },
            Ok(Err(_)) => Err("the runtime view has ended".into()),
            Err(_) => Err(format!("the runtime did not answer within {limit:?}").into()),
        }
    }

    /// Forgets a pod nobody follows any more.
    pub(crate) fn forget(&self, uid: &PodUid) {
        if let Ok(mut slots) = self.shared.slots.lock()
            && slots.get(uid).is_some_and(|slot| slot.receiver_count() == 0)
        {
            slots.remove(uid);
        }
    }

    /// Whether somebody follows the pod.
    fn is_followed(&self, uid: &PodUid) -> bool {
        match self.shared.slots.lock() {
            Ok(slots) => slots.get(uid).is_some_and(|slot| slot.receiver_count() > 0),
            Err(_) => true,
        }
    }

    /// Every pod that somebody follows.
    fn followed(&self) -> Vec<PodUid> {
        match self.shared.slots.lock() {
            Ok(slots) => slots.keys().cloned().collect(),
            Err(_) => Vec::new(),
        }
    }

    fn with_slot<T>(
        &self,
        uid: &PodUid,
        use_slot: impl FnOnce(&watch::Sender<Option<Observation>>) -> T,
    ) -> T {
        let mut slots = match self.shared.slots.lock() {
            Ok(slots) => slots,
            Err(poisoned) => poisoned.into_inner(),
        };
        use_slot(slots.entry(uid.clone()).or_insert_with(|| watch::Sender::new(None)))
    }
}
