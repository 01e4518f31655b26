//! One JSON object per line, with the Go kubelet's keys and their order.

use std::fmt::Write;

use super::fields::Value;
use super::layer::{Line, Severity};

/// The key under which upstream logs a reference to an object, which is an object in JSON.
const OBJECT_KEY: &str = "pod";

pub(super) fn format(line: &Line<'_>) -> String {
    let mut out = String::with_capacity(160);
    let _ = write!(out, "{{\"ts\":{}", milliseconds(line.time));
    let _ = write!(out, ",\"caller\":{}", string(&format!("{}:{}", short(line.file), line.line)));
    let _ = write!(out, ",\"msg\":{}", string(line.message));
    if line.severity != Severity::Error {
        let _ = write!(out, ",\"v\":{}", line.verbosity);
    }
    for (key, value) in &line.pairs.0 {
        let _ = match value {
            Value::Text(text) if *key == OBJECT_KEY => {
                write!(out, ",{}:{}", string(key), object(text))
            }
            Value::Text(text) => write!(out, ",{}:{}", string(key), string(text)),
            Value::Bare(text) => write!(out, ",{}:{text}", string(key)),
        };
    }
    if let Some(err) = line.err {
        let _ = write!(out, ",\"err\":{}", string(err));
    }
    out.push_str("}\n");
    out
}

/// The last directory and the file name; for `crates/x/src/y.rs` that is `x/y.rs`, since every
/// crate has a `src`.
fn short(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').filter(|part| *part != "src").collect();
    match parts.as_slice() {
        [.., folder, name] => format!("{folder}/{name}"),
        _ => file.to_owned(),
    }
}

/// Milliseconds since the epoch, with a fraction.
fn milliseconds(time: jiff::Timestamp) -> f64 {
    time.as_nanosecond() as f64 / 1e6
}

/// `namespace/name` as upstream's object reference.
fn object(text: &str) -> String {
    match text.split_once('/') {
        Some((namespace, name)) => {
            format!("{{\"name\":{},\"namespace\":{}}}", string(name), string(namespace))
        }
        None => format!("{{\"name\":{}}}", string(text)),
    }
}

fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
