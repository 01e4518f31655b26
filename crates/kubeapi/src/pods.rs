//! Pods of this node: the watch that feeds the pod sources, and the writes of the status publisher.

use crate::connection::{Connection, Lane};
use crate::error::{ApiError, Refusal};
use crate::watch::{Change, Next, Selection, follow};
use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use ports::{PodApi, PodApiError};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The complete set of pods bound to this node, as of one moment.
#[derive(Debug, Clone, Default)]
pub struct PodWatchEvent {
    /// Every pod, by UID. Pods that did not change keep their `Arc`.
    pub pods: Arc<BTreeMap<PodUid, Arc<Pod>>>,
}

/// Follows the pods with `spec.nodeName` = `node_name` and keeps `out` at the complete current set
/// (`None` until the first complete list).
pub async fn watch_pods(
    connection: Connection,
    node_name: String,
    out: watch::Sender<Option<PodWatchEvent>>,
    cancel: CancellationToken,
) {
    let api = Api::all(connection.reads().client());
    let selection = Selection { fields: Some(format!("spec.nodeName={node_name}")), labels: None };
    let mut pods: Arc<BTreeMap<PodUid, Arc<Pod>>> = Arc::default();
    follow(connection.reads().source(api, selection), cancel, |change| {
        let known = Arc::make_mut(&mut pods);
        match change {
            Change::Listed(all) => {
                *known = all.into_iter().map(|pod| adopt(known, pod)).collect();
            }
            Change::Applied(pod) => {
                let (uid, pod) = (uid_of(&pod), Arc::new(pod));
                known.insert(uid, pod);
            }
            Change::Deleted(pod) => {
                known.remove(&uid_of(&pod));
            }
        }
        out.send_replace(Some(PodWatchEvent { pods: Arc::clone(&pods) }));
        Next::Continue
    })
    .await;
}

/// Keeps the old allocation of a pod that a new list shows unchanged.
fn adopt(known: &BTreeMap<PodUid, Arc<Pod>>, pod: Pod) -> (PodUid, Arc<Pod>) {
    let uid = uid_of(&pod);
    match known.get(&uid) {
        Some(old) if old.metadata.resource_version == pod.metadata.resource_version => {
            (uid, Arc::clone(old))
        }
        _ => (uid, Arc::new(pod)),
    }
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// Pod reads and writes over the API server.
#[derive(Debug, Clone)]
pub struct ApiPods {
    lane: Lane,
}

impl ApiPods {
    /// Uses the connection's lane for writes.
    pub fn new(connection: &Connection) -> Self {
        Self { lane: connection.writes().clone() }
    }

    fn api(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.lane.client(), namespace)
    }
}

#[async_trait]
impl PodApi for ApiPods {
    async fn get(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, PodApiError> {
        let api = self.api(namespace);
        Ok(slim(self.lane.ask(api.get(name)).await.map_err(sorted)?))
    }

    async fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        mut patch: serde_json::Value,
    ) -> Result<Arc<Pod>, PodApiError> {
        if let Some(body) = patch.as_object_mut() {
            let metadata = body.entry("metadata").or_insert_with(|| serde_json::json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("uid".into(), uid.as_str().into());
            }
        }
        let api = self.api(namespace);
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        let answer = self.lane.ask(api.patch_status(name, &params, &patch)).await;
        match answer.map_err(sorted) {
            Ok(pod) => Ok(slim(pod)),
            // The UID in the patch is the server's reason: another pod has the name now.
            Err(PodApiError::Invalid(text)) if text.contains("metadata.uid: ") => {
                Err(PodApiError::NotFound(text))
            }
            Err(error) => Err(error),
        }
    }

    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, PodApiError> {
        let api = self.api(pod.metadata.namespace.as_deref().unwrap_or("default"));
        let params = PostParams::default();
        Ok(slim(self.lane.ask(api.create(&params, pod)).await.map_err(sorted)?))
    }

    async fn delete_now(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<(), PodApiError> {
        let api = self.api(namespace);
        let preconditions = Preconditions { uid: Some(uid.to_string()), resource_version: None };
        let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
        self.lane.ask(api.delete(name, &params)).await.map_err(sorted)?;
        Ok(())
    }
}

fn slim(mut pod: Pod) -> Arc<Pod> {
    pod.meta_mut().managed_fields = None;
    Arc::new(pod)
}

fn sorted(error: ApiError) -> PodApiError {
    let text = error.to_string();
    match error.refusal() {
        Some(Refusal::NotFound) => PodApiError::NotFound(text),
        Some(Refusal::Conflict | Refusal::AlreadyExists) => PodApiError::Conflict(text),
        Some(Refusal::Invalid) => PodApiError::Invalid(text),
        Some(Refusal::Forbidden) => PodApiError::Forbidden(text),
        _ => PodApiError::Unavailable(text),
    }
}
