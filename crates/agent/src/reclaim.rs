//! What eviction may free before a pod has to go.

use async_trait::async_trait;
use images::ImageGc;
use pods::PodsHandle;
use ports::Reclaim;
use std::sync::Arc;

/// Dead containers and unused images.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// Whose containers.
    pub(crate) pods: PodsHandle,
    /// The collector of images.
    pub(crate) images: Arc<ImageGc>,
}

#[async_trait]
impl Reclaim for Leftovers {
    async fn dead_containers(&self) -> Result<(), String> {
        self.pods.remove_dead_containers().await
    }

    async fn unused_images(&self) -> Result<(), String> {
        self.images.delete_unused().await.map(drop).map_err(|error| error.to_string())
    }
}
