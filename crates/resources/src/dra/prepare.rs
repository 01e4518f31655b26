//! Preparing claims before a pod starts and unpreparing them when it has ended.

use super::Claims;
use super::drivers::Instance;
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::claims::{ClaimKey, PreparedDevice, check, claim_entry, pod_claims};
use proto::dra_v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

impl Claims {
    /// Prepares every claim of the pod; the error is the message of the pod's event.
    pub(super) async fn prepare_pod(&self, pod: &Pod) -> Result<(), String> {
        let began = Instant::now();
        let done = self.try_prepare(pod).await;
        self.observe("PrepareResources", done.is_err(), began);
        done.map_err(|error| format!("prepare dynamic resources: {error}"))
    }

    /// Unprepares every claim of the pod that no other pod uses.
    pub(super) async fn unprepare_pod(&self, pod: &Pod) -> Result<(), String> {
        let began = Instant::now();
        let done = self.try_unprepare(pod).await;
        self.observe("UnprepareResources", done.is_err(), began);
        done.map_err(|error| format!("unprepare dynamic resources: {error}"))
    }

    fn observe(&self, operation: &str, failed: bool, began: Instant) {
        let labels = [operation, if failed { "true" } else { "false" }];
        self.inner.deps.metrics.operations.observe_duration(&labels, began.elapsed());
    }

    async fn try_prepare(&self, pod: &Pod) -> Result<(), String> {
        let rules = self.inner.config.rules;
        let namespace = pod.namespace_str();
        let uid = pod.uid_str();
        let wanted = pod_claims(pod, rules).map_err(|error| error.to_string())?;
        if wanted.is_empty() {
            return Ok(());
        }
        let Some(api) = &self.inner.deps.api else {
            return Err("dynamic resources need an API server".to_owned());
        };
        // Nothing is recorded before all claims and drivers are found: a pod that cannot start must not need
        // unpreparing to terminate.
        let mut claims = Vec::new();
        let mut drivers: BTreeMap<String, Arc<Instance>> = BTreeMap::new();
        for claim in &wanted {
            let object = api.claim(namespace, &claim.name).await;
            let object =
                object.map_err(|error| format!("fetch ResourceClaim {}: {error}", claim.name))?;
            check(pod, claim, &object, rules).map_err(|error| error.to_string())?;
            let entry = claim_entry(&object).map_err(|error| error.to_string())?;
            for driver in entry.drivers.keys() {
                drivers.insert(driver.clone(), self.driver(driver)?);
            }
            claims.push(entry);
        }
        let reserved = self.state(|state| state.reserve(uid, claims));
        self.save("cache").await?;
        let missing = reserved.map_err(|error| error.to_string())?;
        let mut batches: BTreeMap<&str, Vec<Claim>> = BTreeMap::new();
        for claim in &missing {
            for driver in claim.drivers.keys() {
                batches.entry(driver).or_default().push(Claim {
                    namespace: claim.namespace.clone(),
                    uid: claim.uid.clone(),
                    name: claim.name.clone(),
                });
            }
        }
        for (driver, batch) in batches {
            let instance = match drivers.get(driver) {
                Some(instance) => Arc::clone(instance),
                None => self.driver(driver)?,
            };
            self.prepare_batch(&instance, batch).await?;
        }
        let keys: Vec<ClaimKey> = missing.iter().map(|claim| claim.key()).collect();
        self.state(|state| state.prepared(&keys)).map_err(|error| error.to_string())?;
        self.show_claims();
        self.save("state").await
    }

    async fn prepare_batch(&self, instance: &Instance, batch: Vec<Claim>) -> Result<(), String> {
        let request = NodePrepareResourcesRequest { claims: batch.clone() };
        let answer = self.prepare_rpc(instance, request).await?;
        let answered = answer.claims.len();
        for (uid, result) in answer.claims {
            let Some(claim) = batch.iter().find(|claim| claim.uid == uid) else {
                return Err(format!(
                    "NodePrepareResources returned result for unknown claim UID {uid}"
                ));
            };
            if !result.error.is_empty() {
                return Err(format!(
                    "NodePrepareResources failed for ResourceClaim {}: {}",
                    claim.name, result.error
                ));
            }
            let device = |device: proto::dra_v1::Device| PreparedDevice {
                pool: device.pool_name,
                name: device.device_name,
                share: device.share_id,
                requests: device.request_names,
                cdi: device.cdi_device_ids,
            };
            let devices = result.devices.into_iter().map(device).collect();
            let key = (claim.namespace.clone(), claim.name.clone());
            let given = self.state(|state| state.given(&key, &instance.driver, devices));
            given.map_err(|error| error.to_string())?;
        }
        match batch.len().saturating_sub(answered) {
            0 => Ok(()),
            skipped => Err(format!("NodePrepareResources skipped {skipped} ResourceClaims")),
        }
    }

    async fn try_unprepare(&self, pod: &Pod) -> Result<(), String> {
        let namespace = pod.namespace_str();
        let uid = pod.uid_str();
        let claims = pod_claims(pod, self.inner.config.rules).map_err(|error| error.to_string())?;
        let names: Vec<String> = claims.into_iter().map(|claim| claim.name).collect();
        if names.is_empty() {
            return Ok(());
        }
        self.unprepare(uid, namespace, &names).await
    }

    /// Unprepares claims that only this pod uses.
    pub(super) async fn unprepare(
        &self,
        uid: &str,
        namespace: &str,
        names: &[String],
    ) -> Result<(), String> {
        let todo = self.state(|state| state.leave(uid, namespace, names));
        for (driver, batch) in todo.by_driver {
            let claim = |(uid, name): &(String, String)| Claim {
                namespace: namespace.to_owned(),
                uid: uid.clone(),
                name: name.clone(),
            };
            let claims: Vec<Claim> = batch.iter().map(claim).collect();
            let instance = self.driver(&driver)?;
            let request = NodeUnprepareResourcesRequest { claims };
            let answer = self.unprepare_rpc(&instance, request).await?;
            for (uid, result) in &answer.claims {
                let Some((_, name)) = batch.iter().find(|(known, _)| known == uid) else {
                    return Err(format!(
                        "NodeUnprepareResources returned result for unknown claim UID {uid}"
                    ));
                };
                if !result.error.is_empty() {
                    return Err(format!(
                        "NodeUnprepareResources failed for ResourceClaim {name}: {}",
                        result.error
                    ));
                }
            }
            let skipped = batch.len().saturating_sub(answer.claims.len());
            if skipped != 0 {
                return Err(format!("NodeUnprepareResources skipped {skipped} ResourceClaims"));
            }
        }
        self.state(|state| state.forget(&todo.claims));
        self.show_claims();
        self.save("state").await
    }

    /// Updates the gauge of claims in use.
    pub(super) fn show_claims(&self) {
        let counts = self.state(|state| state.in_use());
        self.inner.deps.metrics.show(&counts);
    }
}
