//! Clean-up: folders of unknown pods, volumes that no plugin can reconstruct, old failures.

use super::{Job, JobDone, VolumesTask};
use crate::orphans;
use crate::pool::NORMAL;
use crate::reconstruct;
use api::ids::PodUid;
use engine::volumes::OpKey;
use std::collections::BTreeSet;
use std::sync::Arc;

impl VolumesTask {
    /// Drops the failures of volumes that are neither desired nor mounted.
    pub(super) fn forget_failures(&mut self) {
        let (desired, actual) = (&self.desired, &self.actual);
        let kept = |key: &OpKey| match key {
            OpKey::Volume(volume) => {
                actual.volumes.contains_key(volume) || desired.wants_volume(volume)
            }
            OpKey::Pod(volume, pod) => {
                desired.pods.contains_key(pod) || actual.mount(volume, pod).is_some()
            }
        };
        self.backoffs.retain(kept);
        self.errors.retain(|key, _| kept(key));
    }

    pub(super) fn clean_unexplained(&mut self) {
        for left in std::mem::take(&mut self.unexplained) {
            if self.pod_states.contains_key(&left.pod) {
                // A known pod's volume is mounted again by its worker.
                continue;
            }
            let env = Arc::clone(&self.env);
            let key = left.path.to_string_lossy().into_owned();
            self.spawn(Job::ForceClean, async move {
                let path = left.path.clone();
                let cleaned = env
                    .pool
                    .run(&key, "force clean", NORMAL, move || reconstruct::force_clean(&path))
                    .await;
                let error = match cleaned {
                    Ok(Ok(())) => None,
                    Ok(Err(e)) => Some(e.to_string()),
                    Err(e) => Some(e.to_string()),
                };
                env.metrics.forced.inc(&[]);
                if let Some(err) = error {
                    env.metrics.not_forced.inc(&[]);
                    tracing::error!(path = %left.path.display(), err,
                        "could not clean up a volume that no plugin can reconstruct");
                }
                JobDone::ForceClean
            });
        }
    }

    /// Lists the folders of pods. Which pods are known is read afterwards, so that a pod that arrives in
    /// between is either not in the list, or known.
    pub(super) fn list_orphans(&mut self) {
        let env = Arc::clone(&self.env);
        self.spawn(Job::OrphanNames, async move {
            let paths = env.paths.clone();
            let listed =
                env.pool.run("pods", "list pods", NORMAL, move || orphans::names(&paths)).await;
            JobDone::OrphanNames(listed.ok().and_then(Result::ok).unwrap_or_default())
        });
    }

    pub(super) fn remove_orphans(&mut self, names: &[String]) {
        let snapshot = self.pods.borrow().clone();
        let known =
            |uid: &PodUid| snapshot.pods.contains_key(uid) || self.pod_states.contains_key(uid);
        let held = |uid: &PodUid| {
            self.actual.volumes.values().any(|volume| volume.pods.contains_key(uid))
                || self.pending.iter().any(|key| matches!(key, OpKey::Pod(_, pod) if pod == uid))
        };
        let all = names.iter().map(|name| PodUid::from(name.as_str()));
        let (held, free): (BTreeSet<PodUid>, BTreeSet<PodUid>) =
            all.filter(|uid| !known(uid)).partition(held);
        self.removing = free;
        let (env, orphans) = (Arc::clone(&self.env), self.removing.clone());
        self.spawn(Job::Orphans, async move {
            let paths = env.paths.clone();
            let pass = env
                .pool
                .run("pods", "clean orphans", NORMAL, move || {
                    orphans::clean(&paths, &orphans, &held)
                })
                .await;
            JobDone::Orphans(pass.ok().and_then(Result::ok))
        });
    }

    /// Sets the metrics and logs a pass if it differs from the one before.
    #[expect(clippy::cast_precision_loss, reason = "counts of folders are small")]
    pub(super) fn report_orphans(&mut self, pass: orphans::Pass) {
        self.env.metrics.orphans.set(&[], pass.seen as f64);
        self.env.metrics.orphan_errors.set(&[], pass.kept as f64);
        if pass == self.orphans_reported {
            return;
        }
        for uid in &pass.mounted {
            tracing::debug!(podUID = uid, "Orphaned pod found, but volumes are not cleaned up");
        }
        for errors in [&pass.volume_errors, &pass.removal_errors] {
            if let Some(first) = errors.first() {
                tracing::error!(
                    err = first,
                    numErrs = errors.len(),
                    "There were many similar errors. Turn up verbosity to see them."
                );
            }
            for err in errors {
                tracing::trace!(err, "Orphan pod");
            }
        }
        self.orphans_reported = pass;
    }
}
