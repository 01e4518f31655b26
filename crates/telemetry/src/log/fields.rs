//! Key/value pairs of events and spans, ready to print.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};

use crate::{Chain, go_text};

/// A value with just enough type information to print it: quoted or bare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Printed quoted.
    Text(String),
    /// A number or boolean, printed bare.
    Bare(String),
}

/// Pairs in order; a key set again keeps the first place if the value is the same, else moves to the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pairs(pub(super) Vec<(&'static str, Value)>);

impl Pairs {
    pub(super) fn add(&mut self, key: &'static str, value: Value) {
        if let Some(at) = self.0.iter().position(|(known, _)| *known == key) {
            if self.0.get(at).is_some_and(|(_, known)| *known == value) {
                return;
            }
            self.0.remove(at);
        }
        self.0.push((key, value));
    }

    pub(super) fn extend(&mut self, other: Pairs) {
        for (key, value) in other.0 {
            self.add(key, value);
        }
    }
}

/// The fields of an event: its message, its own verbosity, its error, and the other pairs.
#[derive(Debug, Default)]
pub(super) struct EventFields {
    pub(super) message: String,
    pub(super) verbosity: Option<u32>,
    pub(super) err: Option<String>,
    /// The message is printed unquoted (klog's `Infof`).
    pub(super) plain: bool,
    pub(super) pairs: Pairs,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text) | Value::Bare(text)) => self.message = text,
            ("v", Value::Bare(number)) => self.verbosity = number.parse().ok(),
            ("plain", Value::Bare(flag)) => self.plain = flag == "true",
            ("err", Value::Text(text) | Value::Bare(text)) => self.err = Some(text),
            (key, value) => self.pairs.add(key, value),
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::Text(value.to_owned()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Bare(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::Bare(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::Bare(value.to_string()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.add(field, Value::Bare(value.to_string()));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.add(field, Value::Bare(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let value = match value.is_finite() {
            true => Value::Bare(units::gojson::float(value)),
            false => Value::Text(go_text::float(value)),
        };
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field, Value::Text(Chain(value).to_string()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::Text(format!("{value:?}")));
    }
}
