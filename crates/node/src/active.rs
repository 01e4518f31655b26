//! Pods that are not finished (kubelet: `filterOutInactivePods`).

use api::core::v1::Pod;
use ports::Pods;
use std::sync::Arc;

/// Pods that may use resources: all that are neither terminated nor rejected.
pub(crate) fn active_pods(pods: &dyn Pods) -> Vec<Arc<Pod>> {
    let snapshot = pods.watch().borrow().clone();
    snapshot.pods.values().filter(|e| e.is_active()).map(|e| Arc::clone(&e.pod)).collect()
}

/// Active pods that their source still has: for a pod deleted by force nobody would see the
/// eviction.
pub(crate) fn wanted_pods(pods: &dyn Pods) -> Vec<Arc<Pod>> {
    let snapshot = pods.watch().borrow().clone();
    let wanted = snapshot.pods.values().filter(|e| e.is_active() && e.given.is_some());
    wanted.map(|e| Arc::clone(&e.pod)).collect()
}
