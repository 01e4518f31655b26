//! Storage objects of the API server, as the CSI side of the volume subsystem uses them.

use crate::ObjectError;
use api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use api::core::v1::{Node, PersistentVolumeClaim, Secret};
use api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use async_trait::async_trait;
use std::sync::Arc;

/// Reads and writes of storage objects. Every call has a deadline of its own; standalone mode
/// answers [`ObjectError::NoApiServer`].
#[async_trait]
pub trait StorageApi: Send + Sync + std::fmt::Debug {
    /// A secret that a persistent volume names, read now (no pod refers to it, so it is not cached).
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError>;
    /// A CSI driver object; may come from a cache.
    async fn csi_driver(&self, name: &str) -> Result<Arc<CSIDriver>, ObjectError>;
    /// A volume attachment, read now.
    async fn volume_attachment(&self, name: &str) -> Result<Arc<VolumeAttachment>, ObjectError>;
    /// This node's `CSINode`, read now.
    async fn csi_node(&self) -> Result<Arc<CSINode>, ObjectError>;
    /// Creates this node's `CSINode`.
    async fn create_csi_node(&self, object: &CSINode) -> Result<Arc<CSINode>, ObjectError>;
    /// Deletes this node's `CSINode`.
    async fn delete_csi_node(&self) -> Result<(), ObjectError>;
    /// Sends a JSON merge patch to this node's `CSINode`.
    async fn patch_csi_node(&self, patch: serde_json::Value) -> Result<Arc<CSINode>, ObjectError>;
    /// Sends a strategic merge patch to this node's `status` subresource (metadata included).
    async fn patch_node_status(&self, patch: serde_json::Value) -> Result<Arc<Node>, ObjectError>;
    /// Sends a strategic merge patch to a claim's `status` subresource.
    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: serde_json::Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError>;
    /// All cluster trust bundles; may come from a cache.
    async fn trust_bundles(&self) -> Result<Vec<Arc<ClusterTrustBundle>>, ObjectError>;
    /// Creates a pod certificate request.
    async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError>;
    /// A pod certificate request, read now.
    async fn pod_certificate_request(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError>;
}
