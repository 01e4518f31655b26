//! Resource claims and slices.

use crate::connection::{Connection, Lane};
use crate::objects::{slim, sorted};
use api::resource::v1::{ResourceClaim, ResourceSlice};
use async_trait::async_trait;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use ports::{ClaimApi, ObjectError};
use std::sync::Arc;

/// Resource claims and slices over the API server.
#[derive(Debug, Clone)]
pub struct ApiClaims {
    reads: Lane,
    writes: Lane,
    node_name: String,
}

impl ApiClaims {
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
impl ClaimApi for ApiClaims {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Arc<ResourceClaim>, ObjectError> {
        let api: Api<ResourceClaim> = Api::namespaced(self.reads.client(), namespace);
        self.reads.ask_referred(|| api.get(name)).await.map(slim).map_err(sorted)
    }

    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), ObjectError> {
        let api: Api<ResourceSlice> = Api::all(self.writes.client());
        let mut fields = format!("spec.nodeName={}", self.node_name);
        if let Some(driver) = driver {
            fields = format!("spec.driver={driver},{fields}");
        }
        let (params, list) = (DeleteParams::default(), ListParams::default().fields(&fields));
        let deleted = self.writes.ask(api.delete_collection(&params, &list)).await;
        deleted.map(drop).map_err(sorted)
    }
}
