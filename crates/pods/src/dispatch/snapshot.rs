//! What the dispatcher shows of one moment, for everybody who is not a pod worker.

use super::{DispatchTask, source_of};
use crate::pod_states::pod_life;
use api::core::v1::Pod;
use api::ids::PodUid;
use ports::{PodEntry, PodLife, PodsSnapshot};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Changes come in crowds: everybody else is told of them at most this often, and less often the
/// more pods there are, since everybody looks at all of them.
const PUBLISH_GAP: Duration = Duration::from_millis(10);
/// What each pod adds to the gap.
const PUBLISH_GAP_POD: Duration = Duration::from_micros(300);
/// However many there are, nobody waits longer.
const PUBLISH_GAP_MOST: Duration = Duration::from_millis(100);

impl DispatchTask {
    /// How long after one moment the next may be published.
    pub(super) fn publish_gap(&self) -> Duration {
        let pods = u32::try_from(self.published.borrow().pods.len()).unwrap_or(u32::MAX);
        (PUBLISH_GAP + PUBLISH_GAP_POD.saturating_mul(pods)).min(PUBLISH_GAP_MOST)
    }

    /// Publishes the current moment, if it differs from the last one.
    pub(super) fn publish(&mut self) {
        let mut pods = BTreeMap::new();
        for (uid, pod) in self.desired.iter() {
            pods.insert(uid.clone(), self.entry(uid, pod, Some(pod)));
        }
        let left: Vec<(PodUid, Arc<Pod>)> = self.shared.pod_states.ask(|workers| {
            workers
                .records()
                .filter(|(uid, _)| !pods.contains_key(*uid))
                .filter_map(|(uid, record)| Some((uid.clone(), Arc::clone(record.pod()?))))
                .collect()
        });
        for (uid, pod) in left {
            let entry = self.entry(&uid, &pod, None);
            pods.insert(uid, entry);
        }
        let ready = self.sources_ready();
        self.published.send_if_modified(|known| {
            if known.sources_ready == ready && same(&known.pods, &pods) {
                return false;
            }
            *known = PodsSnapshot { pods: Arc::new(pods), sources_ready: ready };
            true
        });
        if std::mem::take(&mut self.garbage) {
            self.shared.garbage.notify_one();
        }
    }

    fn entry(&self, uid: &PodUid, pod: &Arc<Pod>, given: Option<&Arc<Pod>>) -> PodEntry {
        let record = self.shared.pod_states.ask(|workers| {
            let record = workers.record(uid)?;
            Some((pod_life(record), record.is_evicted(), record.pod().cloned()))
        });
        let (life, evicted, known) = record.unwrap_or_else(|| {
            let rejected = self.rejected.contains(uid);
            (if rejected { PodLife::Rejected } else { PodLife::Pending }, false, None)
        });
        PodEntry {
            pod: self.allocated_as_known(known, pod),
            given: given.cloned(),
            source: source_of(pod),
            mirror: self.desired.mirror_of(pod).cloned(),
            life,
            status: self.shared.status.get(uid),
            evicted,
        }
    }

    /// The very object a worker has, so that equal moments share it.
    fn allocated_as_known(&self, known: Option<Arc<Pod>>, pod: &Arc<Pod>) -> Arc<Pod> {
        match known {
            Some(known) if known.metadata.resource_version == pod.metadata.resource_version => {
                known
            }
            _ => self.allocated(pod),
        }
    }
}

fn same(a: &BTreeMap<PodUid, PodEntry>, b: &BTreeMap<PodUid, PodEntry>) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((uid_a, a), (uid_b, b))| {
            uid_a == uid_b
                && a.life == b.life
                && a.evicted == b.evicted
                && a.source == b.source
                && same_object(Some(&a.pod), Some(&b.pod))
                && same_object(a.given.as_ref(), b.given.as_ref())
                && same_object(a.mirror.as_ref(), b.mirror.as_ref())
                && same_object(a.status.as_ref(), b.status.as_ref())
        })
}

/// Equal, and at no cost if it is the very same object.
fn same_object<T: PartialEq>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}
