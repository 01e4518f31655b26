//! `/pods` and `/runningpods/`.

use super::runtime_pods::{self, RuntimePod};
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use api::core::v1::Pod;
use http::StatusCode;
use ports::{PodEntry, PodSource};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The pods bound to this node, as they are held.
pub(crate) fn all(deps: &ServerDeps) -> Reply {
    let snapshot = deps.pods.watch().borrow().clone();
    let items: Vec<Value> = snapshot.pods.values().filter_map(object).collect();
    reply::json_line(&list(items))
}

fn list(items: Vec<Value>) -> Value {
    let items = if items.is_empty() { Value::Null } else { Value::Array(items) };
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// The JSON of a pod that its source has; static pods carry the status that we generated.
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
    complete(&mut value);
    Some(value)
}

/// Fields that Go's types print although nothing is in them.
fn complete(pod: &mut Value) {
    let each = |pod: &mut Value, path: [&str; 2], field: &str, empty: Value| {
        let [outer, list] = path;
        let items = pod.get_mut(outer).and_then(|o| o.get_mut(list)).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            item.entry(field).or_insert_with(|| empty.clone());
        }
    };
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(pod, ["spec", list], "resources", json!({}));
    }
    for time in ["lastProbeTime", "lastTransitionTime"] {
        each(pod, ["status", "conditions"], time, Value::Null);
    }
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for state in ["state", "lastState"] {
            each(pod, ["status", list], state, json!({}));
        }
        let items =
            pod.get_mut("status").and_then(|s| s.get_mut(list)).and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(complete_times);
    }
    if let Some(map) = pod.as_object_mut() {
        map.entry("status").or_insert_with(|| json!({}));
    }
}

/// Times of a container's states that are not known.
fn complete_times(status: &mut Value) {
    let times: [(&str, &[&str]); 2] =
        [("running", &["startedAt"]), ("terminated", &["startedAt", "finishedAt"])];
    for state in ["state", "lastState"] {
        for (kind, names) in times {
            let known = status.get_mut(state).and_then(|state| state.get_mut(kind));
            let Some(known) = known.and_then(Value::as_object_mut) else { continue };
            for name in names {
                known.entry(*name).or_insert(Value::Null);
            }
        }
    }
}

/// What the runtime has, pod by pod.
pub(crate) async fn running(deps: &ServerDeps) -> Reply {
    let pods = match runtime_pods::all(deps).await {
        Ok(pods) => pods,
        Err(error) => return reply::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    reply::json_line(&list(pods.iter().map(shown).collect()))
}

fn shown(pod: &RuntimePod) -> Value {
    let containers: Vec<Value> = pod
        .containers
        .iter()
        .map(|c| {
            let name = c.metadata.as_ref().map(|m| m.name.as_str()).unwrap_or_default();
            let image = c.image.as_ref().map(|i| i.image.as_str()).unwrap_or_default();
            let mut container = known([("image", image)]);
            container.insert("name".to_owned(), name.into());
            container.insert("resources".to_owned(), json!({}));
            Value::Object(container)
        })
        .collect();
    let containers = if containers.is_empty() { Value::Null } else { Value::Array(containers) };
    let metadata =
        known([("name", &*pod.name), ("namespace", &*pod.namespace), ("uid", &*pod.uid)]);
    json!({"metadata": metadata, "spec": {"containers": containers}, "status": {}})
}

/// The fields that have a value.
fn known<const N: usize>(fields: [(&str, &str); N]) -> Map<String, Value> {
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    fields.map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// The pod of this name that a source has.
pub(crate) fn find(deps: &ServerDeps, namespace: &str, name: &str) -> Option<PodEntry> {
    let snapshot = deps.pods.watch().borrow().clone();
    let mut entries = snapshot.pods.values().filter(|entry| entry.given.is_some());
    entries.find(|entry| names(&entry.pod, namespace, name)).cloned()
}

fn names(pod: &Arc<Pod>, namespace: &str, name: &str) -> bool {
    pod.metadata.namespace.as_deref() == Some(namespace)
        && pod.metadata.name.as_deref() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_prints_without_a_value_is_there() {
        let mut pod = json!({"spec": {"containers": [{"name": "c"}]}, "status": {
            "conditions": [{"type": "Ready"}],
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 137}}}]}});
        complete(&mut pod);
        let ended = json!({"exitCode": 137, "startedAt": null, "finishedAt": null});
        let want = json!({"spec": {"containers": [{"name": "c", "resources": {}}]}, "status": {
            "conditions": [{"type": "Ready", "lastProbeTime": null, "lastTransitionTime": null}],
            "containerStatuses": [
                {"name": "c", "state": {"terminated": ended}, "lastState": {}}]}});
        assert_eq!(pod, want);
    }
}
