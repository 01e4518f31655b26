//! Encodes a Kubernetes object's JSON as Kubernetes' protobuf.
//!
//! Promises: byte for byte the output of Go's generated code: fields by number; fields that are not
//! pointers in Go's type are written even when empty; maps sorted by key; times in whole seconds;
//! quantities in canonical form.

use serde_json::{Map, Value};
use units::Quantity;

/// One field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// Its name in JSON; empty if its fields are inlined there.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) kind: Kind,
}

/// When and how often a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Once, also when empty.
    Always,
    /// Once, if set.
    IfSet,
    /// For each element.
    List,
    /// For each key, as a message of key and value.
    Map,
    /// Once; in JSON its fields are inlined in the enclosing object.
    Flat,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    Integer,
    Bool,
    Time,
    Quantity,
    IntOrString,
    Message(&'static [Field]),
}

/// Wire types.
const VARINT: u32 = 0;
const BYTES: u32 = 2;

/// The object's protobuf.
pub(super) fn encode(fields: &[Field], object: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    message(&mut out, fields, object.as_object());
    out
}

fn message(out: &mut Vec<u8>, fields: &[Field], object: Option<&Map<String, Value>>) {
    for field in fields {
        let value =
            object.and_then(|object| object.get(field.name)).filter(|value| !value.is_null());
        match field.shape {
            Shape::Always => one(out, field.number, field.kind, value),
            Shape::IfSet if value.is_none() => {}
            Shape::IfSet => one(out, field.number, field.kind, value),
            Shape::List => {
                for element in value.and_then(Value::as_array).into_iter().flatten() {
                    one(out, field.number, field.kind, Some(element));
                }
            }
            Shape::Map => {
                for (key, value) in value.and_then(Value::as_object).into_iter().flatten() {
                    nested(out, field.number, |out| {
                        text(out, 1, key);
                        one(out, 2, field.kind, Some(value));
                    });
                }
            }
            Shape::Flat => {
                if let Kind::Message(fields) = field.kind {
                    nested(out, field.number, |out| message(out, fields, object));
                }
            }
        }
    }
}

fn one(out: &mut Vec<u8>, number: u32, kind: Kind, value: Option<&Value>) {
    match kind {
        Kind::Text => text(out, number, value.and_then(Value::as_str).unwrap_or_default()),
        Kind::Integer => integer(out, number, value.and_then(Value::as_i64).unwrap_or_default()),
        Kind::Bool => {
            let set = value.and_then(Value::as_bool).unwrap_or_default();
            integer(out, number, i64::from(set));
        }
        Kind::Time => nested(out, number, |out| {
            let time = value.and_then(Value::as_str).and_then(|text| text.parse().ok());
            if let Some(time) = time {
                let time: jiff::Timestamp = time;
                integer(out, 1, time.as_second());
                integer(out, 2, 0);
            }
        }),
        Kind::Quantity => nested(out, number, |out| text(out, 1, &quantity(value))),
        Kind::IntOrString => nested(out, number, |out| {
            let string = value.and_then(Value::as_str);
            integer(out, 1, i64::from(string.is_some()));
            integer(out, 2, value.and_then(Value::as_i64).unwrap_or_default());
            text(out, 3, string.unwrap_or_default());
        }),
        Kind::Message(fields) => {
            nested(out, number, |out| message(out, fields, value.and_then(Value::as_object)));
        }
    }
}

/// The canonical form; an invalid quantity is returned unchanged.
pub(crate) fn quantity(value: Option<&Value>) -> String {
    let given = match value {
        None => "0".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    given.parse().map_or(given, |quantity: Quantity| quantity.to_string())
}

fn text(out: &mut Vec<u8>, number: u32, text: &str) {
    tag(out, number, BYTES);
    varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn integer(out: &mut Vec<u8>, number: u32, value: i64) {
    tag(out, number, VARINT);
    varint(out, value.cast_unsigned());
}

fn nested(out: &mut Vec<u8>, number: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    content(&mut inner);
    tag(out, number, BYTES);
    varint(out, inner.len() as u64);
    out.append(&mut inner);
}

fn tag(out: &mut Vec<u8>, number: u32, wire: u32) {
    varint(out, u64::from(number << 3 | wire));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}
