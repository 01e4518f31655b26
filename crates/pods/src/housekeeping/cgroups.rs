//! Cgroups of pods that are gone (kubelet: `cleanupOrphanedPodCgroups`).

use crate::shared::Shared;
use api::ids::PodUid;
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
        let wanted = desired.contains(&uid) || known.contains(&uid);
        if wanted || running.listed.contains_key(&uid) || shared.lives.life_of(&uid).is_some() {
            continue;
        }
        if shared.volumes.in_use(&uid) {
            tracing::debug!(podUID = %uid, "Orphaned pod found, but volumes not yet removed.  Reducing cpu to minimum");
            if let Err(error) = shared.cgroups.starve(&uid).await {
                tracing::info!(podUID = %uid, err = %error, "Failed to reduce cpu time for pod pending volume cleanup");
            }
            continue;
        }
        tracing::info!(podUID = %uid, "Orphaned pod found, removing pod cgroups");
        if let Err(error) = shared.cgroups.remove(&uid).await {
            tracing::warn!(podUID = %uid, err = %error, "the cgroup of a pod that is gone stays");
        }
    }
}
