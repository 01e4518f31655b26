//! The node's story, put together from those who know a part of it.

use async_trait::async_trait;
use pods::PodsHandle;
use ports::{Clock, Explained, Explains};
use std::sync::Arc;
use volumes::VolumesHandle;

/// Everybody who knows a part.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) pods: PodsHandle,
    pub(crate) volumes: VolumesHandle,
    pub(crate) clock: Arc<dyn Clock>,
}

#[async_trait]
impl Explains for Story {
    async fn explain(&self) -> Explained {
        let mut volumes = self.volumes.explain().await;
        let mut pods = self.pods.explain();
        for pod in &mut pods {
            // Volumes come before containers, in the story as in the pod.
            let mut waits = volumes.waits.remove(pod.uid.as_str()).unwrap_or_default();
            waits.append(&mut pod.waits);
            pod.waits = waits;
        }
        Explained { at: self.clock.now(), pods, hung: volumes.hung }
    }
}
