//! The UID of a static pod: the one that the Go kubelet gives the same manifest from the same origin, so that each of
//! the two adopts what the other started.
//!
//! It is the 128-bit FNV-1a hash of a dump of the Go object (upstream: `applyDefaults`, `DeepHashObject`): every field
//! of the API's internal types by name, type and value, after defaults. `go_types.tsv` lists those types as of v1.36:
//! an unindented line names a struct; below it are its fields with Go type, shape (`=`: as the type says; `*`: may be
//! nil; `[]`: list; `map:`: map), and the key in JSON (`.`: the same object; `-`: never set).
//!
//! Not reproduced: a manifest that contains timestamps, whose dump has Go's table of time zones; pod-level requests
//! that the defaults add up, of which Go caches no text.

use super::StaticOrigin;
use api::core::v1::Pod;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;
use units::{HeldQuantity, fnv1a_128};

static TYPES: LazyLock<HashMap<&str, Vec<Field>>> =
    LazyLock::new(|| read_types(include_str!("go_types.tsv")));

/// One field of a Go struct.
struct Field {
    name: &'static str,
    go_type: &'static str,
    shape: &'static str,
    key: &'static str,
}

fn read_types(table: &'static str) -> HashMap<&'static str, Vec<Field>> {
    let mut types: HashMap<&str, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in table.lines() {
        let Some(field) = line.strip_prefix('\t') else {
            current = line;
            continue;
        };
        let mut cells = field.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (name, go_type, shape, key) = (cell(), cell(), cell(), cell());
        let shape = if shape == "=" { go_type } else { shape };
        types.entry(current).or_default().push(Field { name, go_type, shape, key });
    }
    types
}

/// The UID of a pod with its defaults filled in and nothing else changed.
pub(super) fn uid_of(pod: &Pod, origin: &StaticOrigin<'_>, node: &str) -> String {
    let place = match origin {
        StaticOrigin::File(path) => format!("host:{node}file:{path}"),
        StaticOrigin::Url(url) | StaticOrigin::UrlList(url) => format!("url:{url}"),
    };
    format!("{:032x}", fnv1a_128(format!("{}{place}", dump(pod)).as_bytes()))
}

/// The Go object's dump.
fn dump(pod: &Pod) -> String {
    let mut value = serde_json::to_value(pod).unwrap_or_default();
    if let Some(spec) = value.get_mut("spec") {
        to_internal(spec);
    }
    let mut text = "(*core.Pod)".to_owned();
    write_value(&mut text, "core.Pod", &value);
    text
}

/// Moves the fields that the internal types have elsewhere than the API.
fn to_internal(spec: &mut Value) {
    let named =
        spec.get("serviceAccountName").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    if !named && let Some(older) = spec.get("serviceAccount").cloned() {
        spec["serviceAccountName"] = older;
    }
    for key in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        if let Some(value) = spec.get(key).cloned() {
            spec["securityContext"][key] = value;
        }
    }
}

fn write_value(text: &mut String, shape: &str, value: &Value) {
    if let Some(target) = shape.strip_prefix('*') {
        match value {
            Value::Null => text.push_str("<nil>"),
            value => write_value(text, target, value),
        }
    } else if let Some(item) = shape.strip_prefix("[]") {
        match value {
            Value::Array(items) => write_list(text, item, items),
            _ => text.push_str("<nil>"),
        }
    } else if let Some(item) = shape.strip_prefix("map:") {
        match value {
            Value::Object(pairs) => write_map(text, item, pairs),
            _ => text.push_str("<nil>"),
        }
    } else {
        write_plain(text, shape, value);
    }
}

fn write_plain(text: &mut String, shape: &str, value: &Value) {
    match shape {
        "string" => text.push_str(value.as_str().unwrap_or_default()),
        "bool" => text.push_str(if value.as_bool() == Some(true) { "true" } else { "false" }),
        "int32" | "int64" => append(text, value.as_i64().unwrap_or_default()),
        "intstr.IntOrString" => {
            let (kind, number) = (u8::from(value.is_string()), value.as_i64().unwrap_or_default());
            let word = value.as_str().unwrap_or_default();
            append(
                text,
                format_args!(
                    "{{Type:(intstr.Type){kind} IntVal:(int32){number} StrVal:(string){word}}}"
                ),
            );
        }
        "v1.TypeMeta" => text.push_str("{Kind:(string) APIVersion:(string)}"),
        "v1.Time" => {
            text.push_str("{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)");
            text.push_str(value.as_str().unwrap_or("<nil>"));
            text.push_str("}}");
        }
        "resource.Quantity" => match value.as_str().map(HeldQuantity::parse) {
            Some(Ok(quantity)) => append(text, quantity),
            _ => text.push_str(NO_QUANTITY),
        },
        _ => {
            text.push('{');
            for (index, field) in TYPES.get(shape).into_iter().flatten().enumerate() {
                let space = if index == 0 { "" } else { " " };
                append(text, format_args!("{space}{}:({})", field.name, field.go_type));
                let inner = match field.key {
                    "." => value,
                    key => value.get(key).unwrap_or(&Value::Null),
                };
                write_value(text, field.shape, inner);
            }
            text.push('}');
        }
    }
}

/// A quantity that was never set.
const NO_QUANTITY: &str = "{i:(resource.int64Amount){value:(int64)0 scale:(resource.Scale)0} \
     d:(resource.infDecAmount){Dec:(*inf.Dec)<nil>} s:(string) Format:(resource.Format)}";

fn write_list(text: &mut String, item: &str, items: &[Value]) {
    text.push('[');
    for (index, value) in items.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { " " });
        write_value(text, item, value);
    }
    text.push(']');
}

fn write_map(text: &mut String, item: &str, pairs: &serde_json::Map<String, Value>) {
    text.push_str("map[");
    for (index, (key, value)) in pairs.iter().enumerate() {
        append(text, format_args!("{}{key}:", if index == 0 { "" } else { " " }));
        // The amounts of resources were rounded by the API's defaults.
        let amount = value.as_str().filter(|_| item == "resource.Quantity");
        match amount.map(HeldQuantity::parse) {
            Some(Ok(quantity)) => append(text, quantity.rounded_to_milli()),
            _ => write_value(text, item, value),
        }
    }
    text.push(']');
}

fn append(text: &mut String, what: impl std::fmt::Display) {
    // Writing to a string does not fail.
    let _ = write!(text, "{what}");
}
