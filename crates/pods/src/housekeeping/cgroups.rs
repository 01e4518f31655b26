//! Cgroups of pods that are gone (kubelet: `cleanupOrphanedPodCgroups`).

use crate::shared::Shared;
use api::ids::PodUid;
use engine::housekeeping::{Leftover, leftover};
use std::collections::BTreeSet;

/// Removes the cgroups of pods that are neither wanted nor known nor running, with whatever is left in
/// them. One whose volumes are still mounted is left for later, with as little CPU as can be.
pub(super) async fn remove_dead(
    shared: &Shared,
    desired: &BTreeSet<PodUid>,
    known: &BTreeSet<PodUid>,
) {
    let found = shared.cgroups.all().await;
    let running = shared.view.all().borrow().clone();
    for uid in found {
        match leftover(super::traces(shared, &uid, (desired, known), &running)) {
            Leftover::Keep => {}
            Leftover::WaitForVolumes => {
                tracing::debug!(podUID = %uid, "Orphaned pod found, but volumes not yet removed.  Reducing cpu to minimum");
                if let Err(error) = shared.cgroups.starve(&uid).await {
                    tracing::info!(podUID = %uid, err = %error, "Failed to reduce cpu time for pod pending volume cleanup");
                }
            }
            Leftover::Remove => {
                tracing::info!(podUID = %uid, "Orphaned pod found, removing pod cgroups");
                if let Err(error) = shared.cgroups.remove(&uid).await {
                    tracing::warn!(podUID = %uid, err = %error, "the cgroup of a pod that is gone stays");
                }
            }
        }
    }
}
