//! A pod's JSON as Go's encoder writes it: fields in declaration order, fields without `omitempty`
//! always, empty non-pointer fields omitted, quantities in canonical form.
//!
//! `fields.txt` lists for each type the fields in Go's order, with `!` after one without
//! `omitempty` and `?` after one with `omitzero`, then the type: `*` a pointer, `[]` a list, `{}` a
//! map; a string if none is given.

use crate::pods_api::quantity;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A list of pods, with the newline of Go's encoder.
pub(crate) fn list(pods: &[Value]) -> String {
    let mut out = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":"#.to_owned();
    if pods.is_empty() {
        out.push_str("null");
    } else {
        elements(&mut out, pods, |out, pod| object(out, "Pod", pod.as_object()));
    }
    out.push_str("}\n");
    out
}

#[derive(Debug)]
struct Field {
    name: &'static str,
    empty: Empty,
    form: Form,
    kind: Kind,
}

/// How a field without a value is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Empty {
    /// It is written.
    Written,
    /// It is omitted, unless it is a struct.
    LeftOut,
    /// It is omitted.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Value,
    Pointer,
    List,
    Map,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A scalar, with its zero value.
    Plain(&'static str),
    Quantity,
    Time,
    Struct(&'static str),
}

static TYPES: LazyLock<BTreeMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut types: BTreeMap<&'static str, Vec<Field>> = BTreeMap::new();
    let mut current = "";
    for word in include_str!("pod_json/fields.txt").split_whitespace() {
        match word.strip_suffix(':') {
            Some(name) => current = name,
            None => types.entry(current).or_default().push(field(word)),
        }
    }
    types
});

fn field(word: &'static str) -> Field {
    let (name, kind) = word.split_once(':').unwrap_or((word, ""));
    let (name, empty) = match (name.strip_suffix('!'), name.strip_suffix('?')) {
        (Some(name), _) => (name, Empty::Written),
        (_, Some(name)) => (name, Empty::Never),
        _ => (name, Empty::LeftOut),
    };
    let forms = [("*", Form::Pointer), ("[]", Form::List), ("{}", Form::Map)];
    let form = forms.into_iter().find_map(|(sign, form)| Some((form, kind.strip_prefix(sign)?)));
    let (form, kind) = form.unwrap_or((Form::Value, kind));
    let kind = match kind {
        "" => Kind::Plain("\"\""),
        "int" | "number-or-text" => Kind::Plain("0"),
        "bool" => Kind::Plain("false"),
        "raw" => Kind::Plain("{}"),
        "quantity" => Kind::Quantity,
        "time" => Kind::Time,
        name => Kind::Struct(name),
    };
    Field { name, empty, form, kind }
}

fn object(out: &mut String, name: &str, value: Option<&Map<String, Value>>) {
    out.push('{');
    let start = out.len();
    for field in TYPES.get(name).into_iter().flatten() {
        let value = value.and_then(|value| value.get(field.name)).filter(|value| !value.is_null());
        let before = out.len();
        if before > start {
            out.push(',');
        }
        out.push('"');
        out.push_str(field.name);
        out.push_str("\":");
        if !member(out, field, value) {
            out.truncate(before);
        }
    }
    out.push('}');
}

/// Writes the value of a field; false if the field is omitted.
fn member(out: &mut String, field: &Field, value: Option<&Value>) -> bool {
    let written = field.empty == Empty::Written;
    match (field.form, value) {
        (Form::Pointer, None) => {
            out.push_str("null");
            return written;
        }
        (Form::Pointer, Some(value)) => one(out, field.kind, Some(value)),
        (Form::List, value) => match value.and_then(Value::as_array) {
            Some(items) if !items.is_empty() => {
                elements(out, items, |out, item| one(out, field.kind, Some(item)));
            }
            _ => {
                out.push_str("null");
                return written;
            }
        },
        (Form::Map, value) => match value.and_then(Value::as_object) {
            Some(map) if !map.is_empty() => {
                out.push('{');
                for (at, (key, value)) in map.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    out.push_str(&units::gojson::quoted(key));
                    out.push(':');
                    one(out, field.kind, Some(value));
                }
                out.push('}');
            }
            _ => {
                out.push_str("null");
                return written;
            }
        },
        (Form::Value, value) => {
            let start = out.len();
            one(out, field.kind, value);
            return match field.kind {
                Kind::Plain(empty) => written || out.get(start..) != Some(empty),
                Kind::Quantity | Kind::Struct(_) => true,
                Kind::Time => value.is_some() || field.empty != Empty::Never,
            };
        }
    }
    true
}

fn one(out: &mut String, kind: Kind, value: Option<&Value>) {
    match (kind, value) {
        (Kind::Struct(name), value) => object(out, name, value.and_then(Value::as_object)),
        (Kind::Quantity, value) => out.push_str(&units::gojson::quoted(&quantity(value))),
        (Kind::Plain(_) | Kind::Time, Some(value)) => {
            out.push_str(&units::gojson::to_string(value).unwrap_or_default());
        }
        (Kind::Plain(empty), None) => out.push_str(empty),
        (Kind::Time, None) => out.push_str("null"),
    }
}

fn elements(out: &mut String, items: &[Value], each: impl Fn(&mut String, &Value)) {
    out.push('[');
    for (at, item) in items.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { "," });
        each(out, item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::Pod;
    use serde_json::json;
    use std::path::Path;

    fn written(pod: &Value) -> String {
        let mut out = String::new();
        object(&mut out, "Pod", pod.as_object());
        out
    }

    #[test]
    fn fields_come_in_gos_order_and_empty_ones_as_their_types_say() {
        let pod = json!({
            "kind": "", "metadata": {"uid": "u", "name": "n", "namespace": "<x>",
                "labels": {"b": "1", "a": "2"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"containers": [{"name": "c", "image": "i", "tty": false, "stdin": true,
                    "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1000m", "memory": "0.5Gi"}},
                    "livenessProbe": {"tcpSocket": {"port": "web"}, "httpGet": {"path": "/"}}}],
                "hostNetwork": false, "hostUsers": false, "securityContext": {},
                "terminationGracePeriodSeconds": 0, "tolerations": [], "nodeName": "node",
                "volumes": [{"emptyDir": {}, "name": "v"},
                    {"name": "p", "projected": {"defaultMode": 420}}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 137}},
                    "started": false}]}});
        assert_eq!(
            written(&pod),
            concat!(
                r#"{"metadata":{"name":"n","namespace":"\u003cx\u003e","uid":"u","#,
                r#""creationTimestamp":"2026-01-02T03:04:05Z","labels":{"a":"2","b":"1"}},"#,
                r#""spec":{"volumes":[{"name":"v","emptyDir":{}},"#,
                r#"{"name":"p","projected":{"sources":null,"defaultMode":420}}],"#,
                r#""containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"#,
                r#""resources":{"limits":{"cpu":"1","memory":"512Mi"}},"#,
                r#""livenessProbe":{"httpGet":{"path":"/","port":0},"tcpSocket":{"port":"web"}},"#,
                r#""stdin":true}],"terminationGracePeriodSeconds":0,"nodeName":"node","#,
                r#""securityContext":{},"hostUsers":false},"#,
                r#""status":{"conditions":[{"type":"Ready","status":"True","#,
                r#""lastProbeTime":null,"lastTransitionTime":null}],"#,
                r#""containerStatuses":[{"name":"c","state":{"terminated":{"exitCode":137,"#,
                r#""startedAt":null,"finishedAt":null}},"lastState":{},"ready":false,"#,
                r#""restartCount":0,"image":"","imageID":"","started":false}]}}"#
            )
        );
        let bare = r#"{"metadata":{},"spec":{"containers":null},"status":{}}"#;
        assert_eq!(written(&json!({})), bare);
        let empty = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":null}\n";
        assert_eq!(list(&[]), empty);
        assert_eq!(list(&[json!({})]), empty.replace("null", &format!("[{bare}]")));
    }

    #[test]
    fn every_type_that_is_named_is_there() {
        for (name, fields) in TYPES.iter() {
            for field in fields {
                if let Kind::Struct(inner) = field.kind {
                    assert!(TYPES.contains_key(inner), "{name}.{} is a {inner}", field.name);
                }
            }
        }
    }

    #[test]
    fn recorded_pods_come_out_byte_for_byte() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/server/pod-protobuf.jsonl");
        for line in sys::fs::read_to_string(Path::new(path)).unwrap().lines() {
            let (want, _) = line.split_once(r#","protobuf":"#).unwrap();
            let want = want.strip_prefix(r#"{"pod":"#).unwrap();
            assert_eq!(written(&serde_json::from_str(want).unwrap()), want);
            // Our own types must not lose any field either.
            let listed = want.replace(r#""containers":null"#, r#""containers":[]"#);
            let pod: Pod = serde_json::from_str(&listed).unwrap();
            let mut pod = serde_json::to_value(pod).unwrap();
            pod.as_object_mut().unwrap().retain(|name, _| name != "kind" && name != "apiVersion");
            assert_eq!(written(&pod), want);
        }
    }
}
