//! Drop-ins: files of a folder merged over the configuration, one after the other.

use crate::ConfigFiles;
use crate::document::{self, DocumentType};
use crate::kubelet::{API_VERSION, KIND};
use crate::text;
use serde_json::Value;
use units::strconv::quote;

/// Merges a patch into a document: scalars and lists replace, objects merge, null removes
/// (RFC 7386), also from objects in lists, as upstream's library has it.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = without_nulls(patch.clone());
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(object) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Without members that are null; elements of lists stay.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        Value::Object(object) => {
            let kept = object.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        scalar => scalar,
    }
}

/// What a folder of drop-ins holds.
#[derive(Debug, Default)]
pub(crate) struct DropIns {
    /// Path and content of each, in the order they apply.
    pub(crate) patches: Vec<(String, Value)>,
    /// Files that are no drop-ins.
    pub(crate) skipped: Vec<String>,
}

/// Reads every drop-in below `folder`.
pub(crate) fn read_all(files: &dyn ConfigFiles, folder: &str) -> Result<DropIns, String> {
    let mut found = DropIns::default();
    let walked = || format!("failed to walk through kubelet dropin directory {}", quote(folder));
    let paths = files.walk(folder).map_err(|e| format!("{}: {e}", walked()))?;
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or_default();
        let extension = name.rfind('.').map_or("", |dot| &name[dot..]);
        if extension != ".conf" {
            found.skipped.push(path);
            continue;
        }
        let patch = read_one(files, &path).map_err(|fault| {
            format!("{}: failed to load kubelet dropin file, path: {path}, {fault}", walked())
        })?;
        found.patches.push((path, patch));
    }
    Ok(found)
}

fn read_one(files: &dyn ConfigFiles, path: &str) -> Result<Value, String> {
    let absolute = text::absolute_path(&files.working_dir(), path);
    let data = files.read(&absolute).map_err(|e| {
        format!(
            "error: failed to read drop-in kubelet config file {}, error: {e}",
            quote(&absolute)
        )
    })?;
    if data.is_empty() {
        return Err(format!("error: kubelet config file {} was empty", quote(&absolute)));
    }
    let told = |e: String| format!("error: {e}");
    let document = document::read(&data).map_err(told)?;
    document::document_type(&document).map_err(told)?;
    // Here, unlike there, letters count as they are.
    let exact = |key: &str| {
        let value = document.value.get(key).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let found = DocumentType { api_version: exact("apiVersion"), kind: exact("kind") };
    if found.kind.is_empty() {
        let body = String::from_utf8_lossy(&data);
        return Err(format!("error: Object 'Kind' is missing in '{body}'"));
    }
    if !document.duplicates.is_empty() {
        return Err(format!("error: strict decoding error: {}", document.duplicates.join(", ")));
    }
    let wanted = DocumentType { api_version: API_VERSION.to_owned(), kind: KIND.to_owned() };
    if found != wanted {
        return Err(format!("unknown apiVersion/kind: {}", found.shown()));
    }
    let mut value = document.value;
    widen(&mut value);
    Ok(value)
}

/// Whole numbers that no `int64` holds become floats on the way.
fn widen(value: &mut Value) {
    match value {
        Value::Number(number) if !number.is_i64() => {
            if let Some(float) = number.as_f64() {
                *value = float.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(widen),
        Value::Object(object) => object.values_mut().for_each(widen),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_replaces_scalars_and_lists_merges_objects_and_removes_nulls() {
        let mut target = json!({"a": 1, "list": [1, 2], "map": {"x": 1, "y": 2}, "gone": true});
        merge(
            &mut target,
            &json!({"a": 2, "list": [3], "map": {"y": null, "z": {"n": null, "m": 1}}, "gone": null}),
        );
        assert_eq!(target, json!({"a": 2, "list": [3], "map": {"x": 1, "z": {"m": 1}}}));
        merge(&mut target, &json!({"list": [null, {"n": null, "m": [{"o": null}]}]}));
        assert_eq!(target["list"], json!([null, {"m": [{}]}]));
    }
}
