//! Applying merge patches.

use serde_json::{Map, Value};

/// Lists that a strategic patch merges, and by which key.
const MERGE_KEYS: [(&str, &str); 9] = [
    ("conditions", "type"),
    ("addresses", "type"),
    ("podIPs", "ip"),
    ("hostIPs", "ip"),
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("ownerReferences", "uid"),
    ("drivers", "name"),
];

/// RFC 7386.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    let map = as_map(target);
    for (key, change) in changes {
        if change.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// Strategic merge: as above, with keyed lists and directives.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    let map = as_map(target);
    for (key, change) in changes.iter().filter(|(key, _)| !key.starts_with('$')) {
        let merge_key = MERGE_KEYS.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
        match (change, merge_key) {
            (Value::Null, _) => {
                map.remove(key);
            }
            (Value::Array(items), Some(by)) => {
                let slot = map.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
                merge_list(slot, items, by);
                if let Some(order) = changes.get(&format!("$setElementOrder/{key}")) {
                    reorder(slot, order, by);
                }
            }
            (Value::Object(_), _) => {
                strategic(map.entry(key.clone()).or_insert(Value::Null), change);
            }
            _ => {
                map.insert(key.clone(), change.clone());
            }
        }
    }
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("just made an object"),
    }
}

fn merge_list(slot: &mut Value, items: &[Value], by: &str) {
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    let list = match slot {
        Value::Array(list) => list,
        other => {
            *other = Value::Array(Vec::new());
            return merge_list(other, items, by);
        }
    };
    if items.iter().any(|i| directive(i).as_deref() == Some("replace")) {
        *list = items.iter().filter(|i| directive(i).is_none()).cloned().collect();
        return;
    }
    for item in items {
        let at = list.iter().position(|known| known.get(by) == item.get(by));
        match (directive(item).as_deref(), at) {
            (Some("delete"), Some(at)) => {
                list.remove(at);
            }
            (Some("delete"), None) => {}
            (_, Some(at)) => {
                if let Some(known) = list.get_mut(at) {
                    strategic(known, item);
                }
            }
            (_, None) => list.push(item.clone()),
        }
    }
}

fn reorder(slot: &mut Value, order: &Value, by: &str) {
    let keys: Vec<Option<&Value>> =
        order.as_array().into_iter().flatten().map(|o| o.get(by).or(Some(o))).collect();
    if let Value::Array(list) = slot {
        list.sort_by_key(|item| keys.iter().position(|k| *k == item.get(by)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keyed_lists_are_merged_deleted_and_ordered() {
        let mut target = json!({"conditions": [
            {"type": "A", "status": "True"}, {"type": "B", "status": "True", "reason": "r"}]});
        let patch = json!({
            "$setElementOrder/conditions": [{"type": "C"}, {"type": "B"}],
            "conditions": [
                {"type": "B", "status": "False", "reason": null},
                {"type": "C", "status": "True"},
                {"$patch": "delete", "type": "A"}],
        });
        strategic(&mut target, &patch);
        assert_eq!(
            target,
            json!({"conditions": [
                {"type": "C", "status": "True"}, {"type": "B", "status": "False"}]})
        );
    }

    #[test]
    fn a_replaced_list_loses_what_it_had() {
        let mut target = json!({"addresses": [{"type": "InternalIP", "address": "a"}]});
        let patch = json!({"addresses": [
            {"type": "Hostname", "address": "h"}, {"$patch": "replace"}]});
        strategic(&mut target, &patch);
        assert_eq!(target, json!({"addresses": [{"type": "Hostname", "address": "h"}]}));
    }

    #[test]
    fn null_removes_and_unkeyed_lists_are_replaced() {
        let mut target = json!({"a": 1, "list": [1, 2], "deep": {"x": 1, "y": 2}});
        strategic(&mut target, &json!({"a": null, "list": [3], "deep": {"y": 3}}));
        assert_eq!(target, json!({"list": [3], "deep": {"x": 1, "y": 3}}));
        merge(&mut target, &json!({"deep": {"x": null}}));
        assert_eq!(target, json!({"list": [3], "deep": {"y": 3}}));
    }
}
