//! Pods that still count (kubelet: `filterOutInactivePods`).

use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use ports::{PodEntry, PodLife, Pods};
use std::sync::Arc;

/// Pods that may hold something: all that are neither over nor refused.
pub(crate) fn active_pods(pods: &dyn Pods) -> Vec<Arc<Pod>> {
    let snapshot = pods.watch().borrow().clone();
    snapshot.pods.values().filter(|e| is_active(e)).map(|e| Arc::clone(&e.pod)).collect()
}

/// Active pods that their source has: nobody hears of the eviction of one that was deleted by force.
pub(crate) fn wanted_pods(pods: &dyn Pods) -> Vec<Arc<Pod>> {
    let snapshot = pods.watch().borrow().clone();
    let wanted = snapshot.pods.values().filter(|e| is_active(e) && e.given.is_some());
    wanted.map(|e| Arc::clone(&e.pod)).collect()
}

/// Whether the pod still counts.
pub(crate) fn is_active(entry: &PodEntry) -> bool {
    let over = |status: Option<&PodStatus>| {
        let phase = status.and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Failed" | "Succeeded"))
    };
    match entry.life {
        PodLife::Rejected | PodLife::Terminated | PodLife::Finished => false,
        PodLife::Terminating => true,
        PodLife::Pending | PodLife::Syncing => {
            !over(entry.status.as_deref()) && !over(entry.pod.status.as_ref())
        }
    }
}

/// The pod's UID.
pub(crate) fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}
