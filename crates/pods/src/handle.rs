//! The front of the pod subsystem.

use crate::dispatch::Request;
use crate::explain;
use crate::housekeeping::{ContainerGc, Reach};
use crate::shared::Shared;
use crate::sources::ManifestFaults;
use crate::view::ViewHealth;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use ports::{
    EventSeverity, EventTarget, ExplainedPod, KillRequest, NodeEvent, PodChange, PodFeed, PodLife,
    Pods, PodsSnapshot, ShownPod,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// The pod subsystem. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PodsHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) published: watch::Receiver<PodsSnapshot>,
    pub(crate) faults: watch::Receiver<ManifestFaults>,
}

impl PodsHandle {
    /// How the runtime view is doing: whether events flow, which pods cannot be read.
    pub fn view_health(&self) -> watch::Receiver<ViewHealth> {
        self.shared.view.health()
    }

    /// Whether the loop that hands pods to their workers goes round.
    pub fn check_loop(&self) -> Result<(), String> {
        self.shared.heartbeat.check()
    }

    /// Manifest files that cannot be used, with the reason of each.
    pub fn manifest_faults(&self) -> watch::Receiver<ManifestFaults> {
        self.faults.clone()
    }

    /// What happened to every pod, and what it waits for.
    pub fn explain(&self) -> Vec<ExplainedPod> {
        let pods = self.published.borrow().clone().pods;
        let timelines = self.shared.timelines.all();
        timelines
            .into_iter()
            .map(|(uid, (name, timeline))| {
                let (steps, next_look) = timeline.read();
                explain::pod(&uid, name, pods.get(&uid), steps, next_look)
            })
            .collect()
    }

    /// Removes dead containers and sandboxes now, those of pods that will not run again included.
    pub async fn remove_dead_containers(&self) -> Result<(), String> {
        let gc = ContainerGc { shared: Arc::clone(&self.shared), pods: self.published.clone() };
        gc.collect(Reach::FinishedPods).await
    }

    /// Asks for a look at a pod, e.g. because a device's health changed.
    pub async fn look_at(&self, uid: &PodUid) {
        // The task ends only with everything.
        let _ = self.requests.send(Request::Sync(uid.clone())).await;
    }
}

#[async_trait]
impl Pods for PodsHandle {
    fn watch(&self) -> watch::Receiver<PodsSnapshot> {
        self.published.clone()
    }

    async fn kill(&self, uid: &PodUid, request: KillRequest) -> Result<(), String> {
        let pod = self.published.borrow().pods.get(uid).map(|entry| Arc::clone(&entry.pod));
        let spec_grace =
            pod.as_ref().and_then(|p| p.spec.as_ref()?.termination_grace_period_seconds);
        let grace = request.grace_seconds.or(spec_grace).unwrap_or_default();
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        let limit = grace.saturating_mul(3) / 2;
        let (answer, told) = oneshot::channel();
        let kill = Request::Kill { uid: uid.clone(), request: Box::new(request), answer };
        self.requests.send(kill).await.map_err(|_| "the agent is shutting down".to_owned())?;
        let stopped = told.await.map_err(|_| "the agent is shutting down".to_owned())??;
        match tokio::time::timeout(limit.max(Duration::from_secs(10)), stopped).await {
            Ok(_) => Ok(()),
            Err(_) => {
                if let Some(pod) = pod {
                    self.shared.events.emit(overdue(pod));
                }
                Err("timeout waiting to kill pod".to_owned())
            }
        }
    }

    async fn wait_acknowledged(&self, uid: &PodUid) {
        let entry = self.published.borrow().pods.get(uid).cloned();
        // A static pod without a mirror has nobody who could be told.
        let unseen = entry.is_some_and(|entry| entry.pod.is_static() && entry.mirror.is_none());
        if self.shared.has_api && !unseen {
            self.shared.status.wait_acknowledged(uid).await;
        }
    }
}

/// What is told of a pod that was to end and has not.
pub(crate) fn overdue(pod: Arc<Pod>) -> NodeEvent {
    NodeEvent {
        target: EventTarget::Pod { pod, field_path: None },
        severity: EventSeverity::Warning,
        reason: "ExceededGracePeriod",
        message: "Container runtime did not kill the pod within specified grace period.".to_owned(),
    }
}

impl PodFeed for PodsHandle {
    fn shown(&self) -> BTreeMap<PodUid, ShownPod> {
        let snapshot = self.published.borrow().clone();
        let given = snapshot.pods.iter().filter_map(|(uid, entry)| {
            let (pod, status) = (entry.given.clone()?, self.shared.status.get(uid));
            Some((uid.clone(), ShownPod { pod, status }))
        });
        let mut shown: BTreeMap<PodUid, ShownPod> = given.collect();
        // A pod may have its first status a moment before the snapshot has the pod.
        for (uid, pod, cached) in self.shared.status.all() {
            let life = self.shared.pod_states.life_of(&uid);
            let is_new =
                life.is_none_or(|life| matches!(life, PodLife::Pending | PodLife::Syncing));
            if !cached.finished && is_new && !snapshot.pods.contains_key(&uid) {
                shown.insert(uid, ShownPod { pod, status: Some(cached.status) });
            }
        }
        shown
    }

    fn follow(&self) -> mpsc::Receiver<PodChange> {
        self.shared.status.followers().add()
    }
}
