//! API objects that pods refer to.

use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Why an object could not be read. Display is the API server's text, as events and waiting
/// messages show it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    /// It does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It may exist; the API server did not return it.
    #[error("{0}")]
    Unavailable(String),
    /// There is no API server (standalone mode).
    #[error("{0}")]
    NoApiServer(String),
}

/// A request for a pod's service account token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenRequest {
    /// Namespace of pod and service account.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// The UID that the service account must have; empty for any.
    pub service_account_uid: String,
    /// Name of the pod the token is bound to.
    pub pod_name: String,
    /// UID of the pod the token is bound to.
    pub pod_uid: String,
    /// Audiences; empty means the API server's default.
    pub audiences: Vec<String>,
    /// Requested lifetime.
    pub expiration_seconds: i64,
}

/// A token as issued.
#[derive(Clone)]
pub struct TokenResponse {
    /// The bearer token.
    pub token: String,
    /// When it expires.
    pub expires_at: jiff::Timestamp,
}

impl std::fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenResponse")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Kinds of objects in change notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A config map.
    ConfigMap,
    /// A secret.
    Secret,
}

/// A referenced object was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectChange {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Read access to referenced objects. Implementations cache as configured.
#[async_trait]
pub trait Objects: Send + Sync + std::fmt::Debug {
    /// Keeps the objects that `pod` refers to up to date until [`Objects::forget_pod`].
    fn register_pod(&self, pod: &Arc<Pod>);
    /// Drops the references of the pod with this UID.
    fn forget_pod(&self, uid: &str);
    /// A config map.
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError>;
    /// A secret.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError>;
    /// All services; `None` until they have been listed once.
    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>>;
    /// A runtime class.
    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError>;
    /// A persistent volume claim.
    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError>;
    /// A persistent volume.
    async fn volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError>;
    /// This node, read from the API server now.
    async fn node_now(&self) -> Result<Arc<Node>, ObjectError>;
    /// A bound service account token, refreshed when 80 % of its lifetime is over.
    async fn token(&self, request: &TokenRequest) -> Result<TokenResponse, ObjectError>;
    /// A service account, read now.
    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<ServiceAccount>, ObjectError> {
        let text = format!("service account {namespace}/{name} cannot be read");
        Err(ObjectError::Unavailable(text))
    }
    /// Notifications of changes of registered config maps and secrets, so that volumes made of them are
    /// refreshed at once. `None` when the implementation does not watch; after a lag the receiver must
    /// refresh everything.
    fn changes(&self) -> Option<broadcast::Receiver<ObjectChange>> {
        None
    }
}
