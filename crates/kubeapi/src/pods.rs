//! Pods of this node: the watch that feeds the pod sources, and the writes of the status publisher.

use crate::connection::{Connection, Lane};
use crate::error::{ApiError, Refusal};
use crate::watch::{Change, Next, Selection, follow};
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use ports::{PodApi, PodApiError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The complete set of pods bound to this node at one point in time.
#[derive(Debug, Clone, Default)]
pub struct PodWatchEvent {
    /// Every pod, by UID. Pods that did not change keep their `Arc`.
    pub pods: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    /// Pods that were removed recently before they had terminated, in their last state. A reader
    /// that missed the state in between (a forced deletion is an update and a removal) finds it
    /// here.
    pub cut_off: Arc<BTreeMap<PodUid, Arc<Pod>>>,
}

/// How long a removed pod's last state is retained.
const LAST_STATE: Duration = Duration::from_secs(30);

/// The watched set of pods.
#[derive(Debug, Default)]
struct PodSet {
    pods: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    cut_off: BTreeMap<PodUid, (Instant, Arc<Pod>)>,
}

impl PodSet {
    fn step(&mut self, change: Change<Pod>, now: Instant) -> PodWatchEvent {
        let known = Arc::make_mut(&mut self.pods);
        self.cut_off.retain(|_, (since, _)| *since + LAST_STATE > now);
        match change {
            Change::Listed(all) => {
                *known = all.into_iter().map(|pod| adopt(known, pod)).collect();
            }
            Change::Applied(pod) => {
                let (uid, pod) = (pod.uid(), Arc::new(pod));
                // The removal of the earlier pod of this name was missed: it must have happened.
                let same = |old: &Arc<Pod>| is_namesake(old, &pod);
                let gone = known.iter().find(|(other, old)| **other != uid && same(old));
                if let Some(gone) = gone.map(|(other, _)| other.clone())
                    && let Some(old) = known.remove(&gone)
                    && !old.is_terminal()
                {
                    self.cut_off.insert(gone, (now, old));
                }
                known.insert(uid, pod);
            }
            Change::Deleted(pod) => {
                let uid = pod.uid();
                if known.remove(&uid).is_some() && !pod.is_terminal() {
                    self.cut_off.insert(uid, (now, Arc::new(pod)));
                }
            }
        }
        let last = self.cut_off.iter().map(|(uid, (_, pod))| (uid.clone(), Arc::clone(pod)));
        PodWatchEvent { pods: Arc::clone(&self.pods), cut_off: Arc::new(last.collect()) }
    }
}

fn is_namesake(one: &Pod, other: &Pod) -> bool {
    one.metadata.name == other.metadata.name && one.metadata.namespace == other.metadata.namespace
}

/// Watches the pods with `spec.nodeName` = `node_name` and keeps `out` at the complete current set
/// (`None` until the first complete list).
pub async fn watch_pods(
    connection: Connection,
    node_name: String,
    out: watch::Sender<Option<PodWatchEvent>>,
    cancel: CancellationToken,
) {
    let lane = connection.watches();
    let api = Api::all(lane.client());
    let selection = Selection { fields: Some(format!("spec.nodeName={node_name}")), labels: None };
    let mut set = PodSet::default();
    follow(lane.source(api, selection), cancel, |change| {
        out.send_replace(Some(set.step(change, Instant::now())));
        Next::Continue
    })
    .await;
}

/// Keeps the old allocation of a pod that is unchanged in a new list.
fn adopt(known: &BTreeMap<PodUid, Arc<Pod>>, pod: Pod) -> (PodUid, Arc<Pod>) {
    let uid = pod.uid();
    match known.get(&uid) {
        Some(old) if old.metadata.resource_version == pod.metadata.resource_version => {
            (uid, Arc::clone(old))
        }
        _ => (uid, Arc::new(pod)),
    }
}

/// Reads and writes pods over the API server.
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
            // The server rejects the UID in the patch: another pod has the name now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(phase: &str, grace: Option<i64>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "deletionGracePeriodSeconds": grace},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_state_of_a_pod_that_had_not_ended_is_kept_for_a_while() {
        let uid = PodUid::from("u");
        let mut set = PodSet::default();
        set.step(Change::Listed(vec![pod("Running", None)]), Instant::now());
        let event = set.step(Change::Deleted(pod("Running", Some(0))), Instant::now());
        assert!(event.pods.is_empty());
        assert_eq!(event.cut_off[&uid].metadata.deletion_grace_period_seconds, Some(0));
        tokio::time::advance(LAST_STATE).await;
        let event = set.step(Change::Listed(vec![pod("Running", None)]), Instant::now());
        assert!(event.cut_off.is_empty());
        let event = set.step(Change::Deleted(pod("Failed", Some(0))), Instant::now());
        assert!(event.cut_off.is_empty(), "it has ended");
        let event = set.step(Change::Deleted(pod("Running", Some(0))), Instant::now());
        assert!(event.cut_off.is_empty(), "nobody knew it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_the_same_name_takes_the_place_of_one_whose_end_was_missed() {
        let mut set = PodSet::default();
        set.step(Change::Listed(vec![pod("Running", None)]), Instant::now());
        let mut anew = pod("Pending", None);
        anew.metadata.uid = Some("v".into());
        let event = set.step(Change::Applied(anew), Instant::now());
        assert_eq!(Vec::from_iter(event.pods.keys()), [&PodUid::from("v")]);
        assert!(event.cut_off.contains_key(&PodUid::from("u")));
    }
}
