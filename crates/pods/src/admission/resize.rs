//! Resize conditions of pods, and what is told about resizes.

use crate::sources::desired::uid_of;
use api::core::v1::{Pod, PodCondition};
use api::ids::PodUid;
use engine::status::resize::ResizeConditions;
use ports::{Clock, Events};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Resize conditions of all pods. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Resizes {
    by_pod: Arc<Mutex<BTreeMap<PodUid, ResizeConditions>>>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn Events>,
}

impl Resizes {
    pub(crate) fn new(clock: Arc<dyn Clock>, events: Arc<dyn Events>) -> Self {
        Self { by_pod: Arc::default(), clock, events }
    }

    /// The conditions in force.
    pub(crate) fn conditions(&self, uid: &PodUid) -> Vec<PodCondition> {
        let known =
            self.by_pod.lock().ok().and_then(|all| all.get(uid).map(ResizeConditions::list));
        known.unwrap_or_default()
    }

    /// A resize was applied, or not.
    pub(crate) fn actuated(&self, pod: &Arc<Pod>, result: &Result<(), String>) {
        let _ = (&self.clock, &self.events);
        if let (Err(error), Ok(mut all)) = (result, self.by_pod.lock()) {
            let conditions = all.entry(uid_of(pod)).or_default();
            conditions.set_in_progress(Some(error), pod.metadata.generation, self.clock.now());
        }
    }
}
