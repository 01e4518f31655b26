//! Storage API objects for CSI volumes.

use crate::connection::{Connection, Lane};
use crate::objects::{slim, sorted};
use api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use api::core::v1::{Node, PersistentVolumeClaim, Secret};
use api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use async_trait::async_trait;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use ports::{ObjectError, StorageApi};
use serde_json::Value;
use std::sync::Arc;

/// Storage objects over the API server.
#[derive(Debug, Clone)]
pub struct ApiStorage {
    reads: Lane,
    writes: Lane,
    node_name: String,
}

impl ApiStorage {
    /// For the node called `node_name`.
    pub fn new(connection: &Connection, node_name: impl Into<String>) -> Self {
        Self {
            reads: connection.reads().clone(),
            writes: connection.writes().clone(),
            node_name: node_name.into(),
        }
    }
}

#[async_trait]
impl StorageApi for ApiStorage {
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let api: Api<Secret> = Api::namespaced(self.reads.client(), namespace);
        self.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn csi_driver(&self, name: &str) -> Result<Arc<CSIDriver>, ObjectError> {
        let api: Api<CSIDriver> = Api::all(self.reads.client());
        self.reads.ask(api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn volume_attachment(&self, name: &str) -> Result<Arc<VolumeAttachment>, ObjectError> {
        let api: Api<VolumeAttachment> = Api::all(self.reads.client());
        self.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn csi_node(&self) -> Result<Arc<CSINode>, ObjectError> {
        let api: Api<CSINode> = Api::all(self.reads.client());
        self.reads.ask(api.get(&self.node_name)).await.map(slim).map_err(sorted)
    }

    async fn create_csi_node(&self, object: &CSINode) -> Result<Arc<CSINode>, ObjectError> {
        let api: Api<CSINode> = Api::all(self.writes.client());
        let params = PostParams::default();
        self.writes.ask(api.create(&params, object)).await.map(slim).map_err(sorted)
    }

    async fn delete_csi_node(&self) -> Result<(), ObjectError> {
        let api: Api<CSINode> = Api::all(self.writes.client());
        let params = DeleteParams::default();
        self.writes.ask(api.delete(&self.node_name, &params)).await.map(|_| ()).map_err(sorted)
    }

    async fn patch_csi_node(&self, patch: Value) -> Result<Arc<CSINode>, ObjectError> {
        let api: Api<CSINode> = Api::all(self.writes.client());
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let request = api.patch(&self.node_name, &params, &patch);
        self.writes.ask(request).await.map(slim).map_err(sorted)
    }

    async fn patch_node_status(&self, patch: Value) -> Result<Arc<Node>, ObjectError> {
        let api: Api<Node> = Api::all(self.writes.client());
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        let request = api.patch_status(&self.node_name, &params, &patch);
        self.writes.ask(request).await.map(slim).map_err(sorted)
    }

    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.writes.client(), namespace);
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        self.writes.ask(api.patch_status(name, &params, &patch)).await.map(slim).map_err(sorted)
    }

    async fn trust_bundles(&self) -> Result<Vec<Arc<ClusterTrustBundle>>, ObjectError> {
        let api: Api<ClusterTrustBundle> = Api::all(self.reads.client());
        let list = self.reads.ask(api.list(&ListParams::default())).await.map_err(sorted)?;
        Ok(list.items.into_iter().map(slim).collect())
    }

    async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError> {
        let namespace = request.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<PodCertificateRequest> = Api::namespaced(self.writes.client(), namespace);
        let params = PostParams::default();
        self.writes.ask_referred(|| api.create(&params, request)).await.map(slim).map_err(sorted)
    }

    async fn pod_certificate_request(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError> {
        let api: Api<PodCertificateRequest> = Api::namespaced(self.reads.client(), namespace);
        self.reads.ask(api.get(name)).await.map(slim).map_err(sorted)
    }
}
