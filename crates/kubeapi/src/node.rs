//! The node object and its lease.

use crate::connection::{Connection, Lane};
use crate::error::ApiError;
use crate::watch::{Change, Next, Selection, follow};
use api::core::v1::Node;
use http::Method;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Reads and writes this machine's node object.
#[derive(Debug, Clone)]
pub struct NodeApi {
    heartbeat: Lane,
    watches: Lane,
    name: String,
}

impl NodeApi {
    /// For the node called `name`.
    pub fn new(connection: &Connection, name: impl Into<String>) -> Self {
        Self {
            heartbeat: connection.heartbeat().clone(),
            watches: connection.watches().clone(),
            name: name.into(),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the node now.
    pub async fn get(&self) -> Result<Node, ApiError> {
        let api: Api<Node> = Api::all(self.heartbeat.client());
        self.heartbeat.ask(api.get(&self.name)).await.map(slim)
    }

    /// Registers the node.
    pub async fn create(&self, node: &Node) -> Result<Node, ApiError> {
        let api: Api<Node> = Api::all(self.heartbeat.client());
        let params = PostParams::default();
        self.heartbeat.ask(api.create(&params, node)).await.map(slim)
    }

    /// Sends a strategic merge patch to the `status` subresource.
    pub async fn patch_status(&self, patch: &Value) -> Result<Node, ApiError> {
        let api: Api<Node> = Api::all(self.heartbeat.client());
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.heartbeat.ask(api.patch_status(&self.name, &params, &patch)).await.map(slim)
    }

    /// The next request dials again.
    pub fn redial(&self) {
        self.heartbeat.redial();
    }

    /// Keeps `out` at the API server's node object: outer `None` until the first list, inner `None`
    /// while it does not exist.
    pub async fn watch(
        self,
        out: watch::Sender<Option<Option<Arc<Node>>>>,
        cancel: CancellationToken,
    ) {
        let api: Api<Node> = Api::all(self.watches.client());
        let selection =
            Selection { fields: Some(format!("metadata.name={}", self.name)), labels: None };
        follow(self.watches.source(api, selection), cancel, |change| {
            let node = match change {
                Change::Listed(all) => all.into_iter().next().map(Arc::new),
                Change::Applied(node) => Some(Arc::new(node)),
                Change::Deleted(_) => None,
            };
            out.send_replace(Some(node));
            Next::Continue
        })
        .await;
    }
}

fn slim(mut node: Node) -> Node {
    node.metadata.managed_fields = None;
    node
}

/// The lease in `kube-node-lease`. Leases are plain JSON here: they are PUT back, and unknown
/// fields must survive.
#[derive(Debug, Clone)]
pub struct LeaseApi {
    lane: Lane,
    name: String,
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

impl LeaseApi {
    /// For the node called `name`.
    pub fn new(connection: &Connection, name: impl Into<String>) -> Self {
        Self { lane: connection.heartbeat().clone(), name: name.into() }
    }

    /// The lease's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the lease.
    pub async fn get(&self) -> Result<Value, ApiError> {
        self.send(Method::GET, &format!("{LEASES}/{}", self.name), None).await
    }

    /// Creates the lease.
    pub async fn create(&self, lease: &Value) -> Result<Value, ApiError> {
        self.send(Method::POST, LEASES, Some(lease)).await
    }

    /// Replaces the lease; fails with a conflict if it changed meanwhile.
    pub async fn replace(&self, lease: &Value) -> Result<Value, ApiError> {
        self.send(Method::PUT, &format!("{LEASES}/{}", self.name), Some(lease)).await
    }

    /// The next request dials again.
    pub fn redial(&self) {
        self.lane.redial();
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let bytes = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(bytes)
            .map_err(|e| ApiError::Malformed(e.to_string()))?;
        self.lane.ask(self.lane.client().request(request)).await
    }
}
