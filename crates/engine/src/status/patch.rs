//! The smallest strategic merge patch between two pod statuses.
//!
//! Promises: applied by an API server to the old status it gives the new one; equal statuses give no patch.
//! Conditions are merged by type, pod and host IPs by ip; every other list is replaced as a whole.

use api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// Lists of the status that are merged, with their keys.
const MERGED: [(&str, &str); 3] = [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];

/// The patch of a pod's `status` subresource with a UID guard; `None` when there is nothing to write.
pub fn status_patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let old = serde_json::to_value(old).unwrap_or_default();
    let new = serde_json::to_value(new).unwrap_or_default();
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return None };
    let mut patch = Map::new();
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let key = MERGED.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
        match (old.get(name), new.get(name), key) {
            (Some(Value::Array(before)), Some(Value::Array(after)), Some(key)) => {
                merged_list(&mut patch, name, key, before, after);
            }
            (before, after, _) => put_difference(&mut patch, name, before, after),
        }
    }
    if patch.is_empty() {
        return None;
    }
    Some(json!({ "metadata": { "uid": uid }, "status": patch }))
}

fn put_difference(
    patch: &mut Map<String, Value>,
    name: &str,
    before: Option<&Value>,
    after: Option<&Value>,
) {
    if before == after {
        return;
    }
    let value = match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            Value::Object(object_difference(before, after))
        }
        (_, Some(after)) => after.clone(),
        (_, None) => Value::Null,
    };
    patch.insert(name.to_owned(), value);
}

fn object_difference(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Map<String, Value> {
    let mut patch = Map::new();
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        put_difference(&mut patch, name, before.get(name), after.get(name));
    }
    patch
}

fn merged_list(
    patch: &mut Map<String, Value>,
    name: &str,
    key: &str,
    before: &[Value],
    after: &[Value],
) {
    if before == after {
        return;
    }
    let find = |list: &[Value], id: &Value| -> Option<Value> {
        list.iter().find(|item| item.get(key) == Some(id)).cloned()
    };
    let mut items = Vec::new();
    let mut order = Vec::new();
    for item in after {
        let Some(id) = item.get(key) else { continue };
        order.push(json!({ key: id }));
        match (find(before, id), item) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let mut change = object_difference(&old, new);
                if !change.is_empty() {
                    change.insert(key.to_owned(), id.clone());
                    items.push(Value::Object(change));
                }
            }
            _ => items.push(item.clone()),
        }
    }
    for item in before {
        let Some(id) = item.get(key) else { continue };
        if find(after, id).is_none() {
            items.push(json!({ "$patch": "delete", key: id }));
        }
    }
    patch.insert(format!("$setElementOrder/{name}"), Value::Array(order));
    if !items.is_empty() {
        patch.insert(name.to_owned(), Value::Array(items));
    }
}
