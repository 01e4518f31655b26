//! The smallest strategic merge patch between two versions of a node.
//!
//! Merge lists are `conditions` (by type) and `addresses` (by type, always sent whole because a
//! type may repeat); every other list is replaced as a whole. `spec` is never touched.

use super::to_value;
use api::core::v1::Node;
use serde_json::{Map, Value, json};

/// A patch for the `status` subresource.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePatch(pub Value);

/// What to send to turn `old` into `new`; `None` if nothing.
pub fn status_patch(old: &Node, new: &Node) -> Option<NodePatch> {
    let (old, new) = (normal(to_value(old)), normal(to_value(new)));
    let mut patch = Map::new();
    let mut metadata = Map::new();
    for part in ["labels", "annotations"] {
        let none = Value::Null;
        let of = |node: &Value| node.pointer(&format!("/metadata/{part}")).unwrap_or(&none).clone();
        if let Some(changes) = merge_maps(&of(&old), &of(&new)) {
            metadata.insert(part.into(), changes);
        }
    }
    if !metadata.is_empty() {
        patch.insert("metadata".into(), metadata.into());
    }
    let empty = json!({});
    let of = |node: &Value| node.get("status").unwrap_or(&empty).clone();
    let status = status_changes(&of(&old), &of(&new));
    if !status.is_empty() {
        patch.insert("status".into(), status.into());
    }
    (!patch.is_empty()).then_some(NodePatch(patch.into()))
}

/// Whether the statuses differ in more than order and heartbeat of conditions.
pub(super) fn status_differs(old: &Node, new: &Node) -> bool {
    let comparable = |node: &Node| {
        let mut value = normal(to_value(node));
        let mut status = value.get_mut("status").map(Value::take).unwrap_or_default();
        if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
            for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
                condition.remove("lastHeartbeatTime");
            }
            conditions.sort_by_key(|c| key_of(c, "type"));
        }
        status
    };
    comparable(old) != comparable(new)
}

fn status_changes(old: &Value, new: &Value) -> Map<String, Value> {
    let mut changes = Map::new();
    let mut names: Vec<&String> = [old, new].iter().flat_map(|v| keys(v)).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        if before == after {
            continue;
        }
        match (name.as_str(), before, after) {
            ("conditions", _, Some(after)) => {
                let before = before.cloned().unwrap_or_else(|| json!([]));
                let (list, order) = merge_list(&before, after, "type");
                changes.insert("$setElementOrder/conditions".into(), order);
                changes.insert(name.clone(), list);
            }
            ("addresses", Some(_), Some(Value::Array(after))) => {
                let mut list = after.clone();
                list.push(json!({"$patch": "replace"}));
                changes.insert(name.clone(), list.into());
            }
            (_, _, None) => {
                changes.insert(name.clone(), Value::Null);
            }
            (_, Some(before @ Value::Object(_)), Some(after @ Value::Object(_))) => {
                if let Some(merged) = merge_maps(before, after) {
                    changes.insert(name.clone(), merged);
                }
            }
            (_, _, Some(after)) => {
                changes.insert(name.clone(), after.clone());
            }
        }
    }
    changes
}

/// Changed entries, removed ones as null; `None` if the maps are alike.
fn merge_maps(old: &Value, new: &Value) -> Option<Value> {
    let mut changes = Map::new();
    for key in keys(old).filter(|k| new.get(*k).is_none()) {
        changes.insert(key.clone(), Value::Null);
    }
    for key in keys(new) {
        let (before, after) = (old.get(key), new.get(key)?);
        match (before, after) {
            (Some(before), after) if before == after => {}
            (Some(before @ Value::Object(_)), after @ Value::Object(_)) => {
                if let Some(merged) = merge_maps(before, after) {
                    changes.insert(key.clone(), merged);
                }
            }
            _ => {
                changes.insert(key.clone(), after.clone());
            }
        }
    }
    (!changes.is_empty()).then(|| changes.into())
}

/// Changed elements with their key, removed ones marked, and the order of all.
fn merge_list(old: &Value, new: &Value, key: &str) -> (Value, Value) {
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let (old, new) = (items(old), items(new));
    let find = |list: &[Value], wanted: &str| {
        list.iter().find(|item| key_of(item, key) == wanted).cloned()
    };
    let mut changes = Vec::new();
    for item in &new {
        let name = key_of(item, key);
        match find(&old, &name) {
            None => changes.push(item.clone()),
            Some(before) => {
                if let Some(Value::Object(mut fields)) = merge_maps(&before, item) {
                    fields.insert(key.into(), name.into());
                    changes.push(fields.into());
                }
            }
        }
    }
    for item in &old {
        let name = key_of(item, key);
        if find(&new, &name).is_none() {
            changes.push(json!({"$patch": "delete", key: name}));
        }
    }
    let order = new.iter().map(|item| json!({key: key_of(item, key)})).collect();
    (changes.into(), Value::Array(order))
}

fn key_of(item: &Value, key: &str) -> String {
    item.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn keys(value: &Value) -> impl Iterator<Item = &String> {
    value.as_object().into_iter().flat_map(Map::keys)
}

/// Absent, null and empty are the same.
fn normal(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, normal(value)))
            .filter(|(_, value)| !is_empty(value))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.into_iter().map(normal).collect(),
        other => other,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
