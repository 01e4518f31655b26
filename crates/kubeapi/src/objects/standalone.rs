//! Objects of a node without an API server: there are none.

use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use ports::{ObjectError, Objects, TokenRequest, TokenResponse};
use std::sync::Arc;

/// Fails every read with [`ObjectError::NoApiServer`]; the list of services is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandaloneObjects;

fn none<T>(what: &str) -> Result<T, ObjectError> {
    Err(ObjectError::NoApiServer(format!("{what} are not available in standalone mode")))
}

#[async_trait]
impl Objects for StandaloneObjects {
    fn register_pod(&self, _pod: &Arc<Pod>) {}

    fn forget_pod(&self, _uid: &str) {}

    async fn config_map(&self, _: &str, _: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        none("config maps")
    }

    async fn secret(&self, _: &str, _: &str) -> Result<Arc<Secret>, ObjectError> {
        none("secrets")
    }

    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>> {
        Some(Arc::default())
    }

    async fn runtime_class(&self, _: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        none("runtime classes")
    }

    async fn claim(&self, _: &str, _: &str) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        none("claims")
    }

    async fn volume(&self, _: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        none("volumes")
    }

    async fn node_now(&self) -> Result<Arc<Node>, ObjectError> {
        none("nodes")
    }

    async fn token(&self, _: &TokenRequest) -> Result<TokenResponse, ObjectError> {
        Err(ObjectError::NoApiServer(
            "cannot use TokenManager when kubelet is in standalone mode".into(),
        ))
    }
}
