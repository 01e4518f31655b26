//! Storage objects kept in memory.

use super::fixture::FakeObjects;
use api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use api::core::v1::{Node, PersistentVolumeClaim, Secret};
use api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use async_trait::async_trait;
use ports::{ObjectError, StorageApi};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct FakeStorage {
    objects: Arc<FakeObjects>,
    pub(super) drivers: Mutex<BTreeMap<String, Arc<CSIDriver>>>,
    pub(super) attachments: Mutex<BTreeMap<String, Arc<VolumeAttachment>>>,
    pub(super) csi_node: Mutex<Option<Arc<CSINode>>>,
    pub(super) bundles: Mutex<Vec<Arc<ClusterTrustBundle>>>,
    pub(super) claim_patches: Mutex<Vec<Value>>,
    pub(super) requests: Mutex<BTreeMap<String, Arc<PodCertificateRequest>>>,
}

/// JSON merge patch (RFC 7386), which for these objects equals a strategic merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let map = target.as_object_mut().unwrap();
    for (key, value) in changes {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn patched<T: serde::Serialize + serde::de::DeserializeOwned>(object: &T, patch: &Value) -> T {
    let mut value = serde_json::to_value(object).unwrap();
    merge(&mut value, patch);
    serde_json::from_value(value).unwrap()
}

fn missing(what: &str) -> ObjectError {
    ObjectError::NotFound(format!("{what} not found"))
}

impl FakeStorage {
    pub(super) fn new(objects: Arc<FakeObjects>) -> Self {
        Self {
            objects,
            drivers: Mutex::default(),
            attachments: Mutex::default(),
            csi_node: Mutex::default(),
            bundles: Mutex::default(),
            claim_patches: Mutex::default(),
            requests: Mutex::default(),
        }
    }

    /// The signer answers a request.
    pub(super) fn answer_request(&self, name: &str, status: Value) {
        let mut requests = self.requests.lock().unwrap();
        let answered = patched(&*requests[name], &serde_json::json!({"status": status}));
        requests.insert(name.to_owned(), Arc::new(answered));
    }

    pub(super) fn set_driver(&self, name: &str, spec: Value) {
        let object: CSIDriver =
            serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "spec": spec}))
                .unwrap();
        self.drivers.lock().unwrap().insert(name.to_owned(), Arc::new(object));
    }
}

#[async_trait]
impl StorageApi for FakeStorage {
    async fn secret(&self, _ns: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        self.objects.secrets.lock().unwrap().get(name).cloned().ok_or_else(|| missing(name))
    }
    async fn csi_driver(&self, name: &str) -> Result<Arc<CSIDriver>, ObjectError> {
        self.drivers.lock().unwrap().get(name).cloned().ok_or_else(|| missing(name))
    }
    async fn volume_attachment(&self, name: &str) -> Result<Arc<VolumeAttachment>, ObjectError> {
        self.attachments.lock().unwrap().get(name).cloned().ok_or_else(|| missing(name))
    }
    async fn csi_node(&self) -> Result<Arc<CSINode>, ObjectError> {
        self.csi_node.lock().unwrap().clone().ok_or_else(|| missing("csinode"))
    }
    async fn create_csi_node(&self, object: &CSINode) -> Result<Arc<CSINode>, ObjectError> {
        let object = Arc::new(object.clone());
        *self.csi_node.lock().unwrap() = Some(Arc::clone(&object));
        Ok(object)
    }
    async fn delete_csi_node(&self) -> Result<(), ObjectError> {
        *self.csi_node.lock().unwrap() = None;
        Ok(())
    }
    async fn patch_csi_node(&self, patch: Value) -> Result<Arc<CSINode>, ObjectError> {
        let old = self.csi_node().await?;
        let new = Arc::new(patched(&*old, &patch));
        *self.csi_node.lock().unwrap() = Some(Arc::clone(&new));
        Ok(new)
    }
    async fn patch_node_status(&self, patch: Value) -> Result<Arc<Node>, ObjectError> {
        let mut node = self.objects.node.lock().unwrap();
        *node = Arc::new(patched(&**node, &patch));
        Ok(Arc::clone(&node))
    }
    async fn patch_claim_status(
        &self,
        _namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        let mut claims = self.objects.claims.lock().unwrap();
        let old = claims.get(name).cloned().ok_or_else(|| missing(name))?;
        let new = Arc::new(patched(&*old, &patch));
        claims.insert(name.to_owned(), Arc::clone(&new));
        self.claim_patches.lock().unwrap().push(patch);
        Ok(new)
    }
    async fn trust_bundles(&self) -> Result<Vec<Arc<ClusterTrustBundle>>, ObjectError> {
        Ok(self.bundles.lock().unwrap().clone())
    }
    async fn create_pod_certificate_request(
        &self,
        request: &PodCertificateRequest,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError> {
        let mut requests = self.requests.lock().unwrap();
        let name = format!("req-{}", requests.len());
        let mut request = request.clone();
        request.metadata.name = Some(name.clone());
        let request = Arc::new(request);
        requests.insert(name, Arc::clone(&request));
        Ok(request)
    }
    async fn pod_certificate_request(
        &self,
        _namespace: &str,
        name: &str,
    ) -> Result<Arc<PodCertificateRequest>, ObjectError> {
        self.requests.lock().unwrap().get(name).cloned().ok_or_else(|| missing(name))
    }
}
