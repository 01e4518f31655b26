//! Housekeeping: workers of pods that are no longer configured.

use super::{Completion, LifeState, Workers};
use api::ids::PodUid;
use api::pod::PodExt;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// A pod that has a worker after housekeeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPod {
    /// Where it is.
    pub state: LifeState,
    /// It is not configured any more.
    pub orphan: bool,
    /// Its spec is known (not only the runtime's metadata).
    pub has_config: bool,
    /// It is a static pod.
    pub is_static: bool,
}

/// What housekeeping found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownPods {
    /// Pods that still have a worker.
    pub known: BTreeMap<PodUid, KnownPod>,
    /// Records that were dropped: end their workers.
    pub removed: Vec<PodUid>,
    /// Workers to wake.
    pub wake: Vec<PodUid>,
    /// Tokens to hand back.
    pub completed: Vec<Completion>,
}

impl KnownPods {
    /// How many pods there are by the labels of `kubelet_working_pods`: life cycle, configuration, static.
    /// Every possible combination is included, also those with a count of 0.
    #[must_use]
    pub fn working(&self) -> BTreeMap<[&'static str; 3], u32> {
        let kinds = [
            ["desired", ""],
            ["desired", "true"],
            ["orphan", ""],
            ["orphan", "true"],
            ["runtime_only", "unknown"],
        ];
        let states = [LifeState::Syncing, LifeState::Terminating, LifeState::Terminated];
        let mut counts: BTreeMap<_, _> = states
            .into_iter()
            .flat_map(|state| kinds.map(|[config, label]| ([state.as_str(), config, label], 0)))
            .collect();
        for pod in self.known.values() {
            let (config, label) = match (pod.has_config, pod.orphan, pod.is_static) {
                (false, ..) => ("runtime_only", "unknown"),
                (true, true, true) => ("orphan", "true"),
                (true, true, false) => ("orphan", ""),
                (true, false, true) => ("desired", "true"),
                (true, false, false) => ("desired", ""),
            };
            *counts.entry([pod.state.as_str(), config, label]).or_default() += 1;
        }
        counts
    }
}

impl Workers {
    /// Compares the records with the configured pods (upstream: `SyncKnownPods`).
    pub fn sync_known(&mut self, desired: &BTreeSet<PodUid>, now: Timestamp) -> KnownPods {
        self.pods_synced = true;
        let mut found = KnownPods::default();
        for (uid, record) in &mut self.records {
            let orphan = !desired.contains(uid);
            let candidate = orphan || record.restart_requested;
            if candidate && record.finished {
                found.removed.push(uid.clone());
                continue;
            }
            if orphan {
                record.deleted = true;
                if record.started_at.is_none() && !record.observed_runtime {
                    found.removed.push(uid.clone());
                    continue;
                }
                if !record.termination_requested() {
                    record.terminating_at = Some(now);
                    let pod = record.active.as_ref().filter(|a| !a.runtime_only);
                    let grace = pod.map(|a| record.effective_grace(&a.pod, None));
                    record.grace_seconds = grace.unwrap_or(1);
                }
                if record.requeue() {
                    found.wake.push(uid.clone());
                }
            }
            let known = record.known_pod();
            found.known.insert(
                uid.clone(),
                KnownPod {
                    state: record.state(),
                    orphan,
                    has_config: known.is_some(),
                    is_static: known.is_some_and(|pod| pod.is_static()),
                },
            );
        }
        for uid in &found.removed {
            if let Some(mut record) = self.records.remove(uid) {
                found.completed.append(&mut record.completions);
                self.static_names.release(&record.full_name, uid);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_pods_are_counted_by_every_combination_of_labels() {
        let pod = |state, orphan, has_config, is_static| KnownPod {
            state,
            orphan,
            has_config,
            is_static,
        };
        let mut known = KnownPods::default();
        for (uid, pod) in [
            ("a", pod(LifeState::Syncing, false, true, true)),
            ("b", pod(LifeState::Syncing, false, true, true)),
            ("c", pod(LifeState::Terminating, true, true, false)),
            ("d", pod(LifeState::Terminating, true, false, false)),
        ] {
            known.known.insert(uid.into(), pod);
        }
        let counts = known.working();
        assert_eq!(counts.len(), 15);
        assert_eq!(counts[&["sync", "desired", "true"]], 2);
        assert_eq!(counts[&["terminating", "orphan", ""]], 1);
        assert_eq!(counts[&["terminating", "runtime_only", "unknown"]], 1);
        assert_eq!(counts.values().sum::<u32>(), 4);
    }
}
