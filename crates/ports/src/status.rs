//! Pod writes to the API server, for the status publisher and mirror pods.

use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use std::sync::Arc;

/// Why a write failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PodApiError {
    /// The pod is gone, or another pod has its name.
    #[error("{0}")]
    NotFound(String),
    /// The object changed meanwhile, or a precondition failed.
    #[error("{0}")]
    Conflict(String),
    /// The server rejected the content: retrying the same is useless.
    #[error("{0}")]
    Invalid(String),
    /// The server forbids the write.
    #[error("{0}")]
    Forbidden(String),
    /// Not reached or overloaded: try later.
    #[error("{0}")]
    Unavailable(String),
}

/// Pod writes. Standalone mode has none.
#[async_trait]
pub trait PodApi: Send + Sync + std::fmt::Debug {
    /// Reads the pod from the API server.
    async fn get(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, PodApiError>;
    /// Sends a strategic merge patch to the `status` subresource.
    async fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        patch: serde_json::Value,
    ) -> Result<Arc<Pod>, PodApiError>;
    /// Creates a (mirror) pod.
    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, PodApiError>;
    /// Deletes with grace 0 and a UID precondition.
    async fn delete_now(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<(), PodApiError>;
}
