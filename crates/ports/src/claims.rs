//! ResourceClaims and ResourceSlices of the API server.

use crate::ObjectError;
use api::resource::v1::ResourceClaim;
use async_trait::async_trait;
use std::sync::Arc;

/// Claims of pods, and slices of this node's drivers.
#[async_trait]
pub trait ClaimApi: Send + Sync + std::fmt::Debug {
    /// A claim, read now.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Arc<ResourceClaim>, ObjectError>;
    /// Deletes the slices of this node, of all drivers or of one.
    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), ObjectError>;
}
