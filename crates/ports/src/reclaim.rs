//! Freeing unused node resources, before a pod is evicted.

use async_trait::async_trait;

/// Steps that free node resources without touching a running pod. Each is bounded by the deadlines of
/// the calls it makes.
#[async_trait]
pub trait Reclaim: Send + Sync + std::fmt::Debug {
    /// Removes dead containers and sandboxes, those of finished pods included.
    async fn dead_containers(&self) -> Result<(), String>;
    /// Removes unused images, as far as their minimum age allows.
    async fn unused_images(&self) -> Result<(), String>;
}
