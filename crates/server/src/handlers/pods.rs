//! `/pods` and `/runningpods/`.

use super::runtime_pods::{self, RuntimePod};
use crate::pod_json;
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use api::core::v1::Pod;
use http::StatusCode;
use ports::{PodEntry, PodSource};
use serde_json::{Value, json};
use std::sync::Arc;

/// The pods bound to this node, as the agent has them.
pub(crate) fn all(deps: &ServerDeps) -> Reply {
    let snapshot = deps.pods.watch().borrow().clone();
    let items: Vec<Value> = snapshot.pods.values().filter_map(object).collect();
    reply::json(pod_json::list(&items))
}

/// The JSON of a pod as its source has it; static pods carry the status generated here.
fn object(entry: &PodEntry) -> Option<Value> {
    let mut value = serde_json::to_value(entry.given.as_deref()?).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
        if entry.source != PodSource::Api
            && let Some(status) = &entry.status
        {
            map.insert("status".to_owned(), serde_json::to_value(&**status).unwrap_or_default());
        }
    }
    Some(value)
}

/// The pods of the runtime.
pub(crate) async fn running(deps: &ServerDeps) -> Reply {
    let pods = match runtime_pods::all(deps).await {
        Ok(pods) => pods,
        Err(error) => return reply::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    reply::json(pod_json::list(&pods.iter().map(shown).collect::<Vec<_>>()))
}

fn shown(pod: &RuntimePod) -> Value {
    let containers = pod.containers.iter().map(|c| {
        let name = c.metadata.as_ref().map(|m| m.name.as_str()).unwrap_or_default();
        let image = c.image.as_ref().map(|i| i.image.as_str()).unwrap_or_default();
        json!({"name": name, "image": image})
    });
    let metadata = json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid});
    json!({"metadata": metadata, "spec": {"containers": containers.collect::<Vec<_>>()}})
}

/// The pod of this name, from any source.
pub(crate) fn find(deps: &ServerDeps, namespace: &str, name: &str) -> Option<PodEntry> {
    let snapshot = deps.pods.watch().borrow().clone();
    let mut entries = snapshot.pods.values().filter(|entry| entry.given.is_some());
    entries.find(|entry| names(&entry.pod, namespace, name)).cloned()
}

fn names(pod: &Arc<Pod>, namespace: &str, name: &str) -> bool {
    pod.metadata.namespace.as_deref() == Some(namespace)
        && pod.metadata.name.as_deref() == Some(name)
}
