//! Collecting faults with their places.

use serde::Serialize;
use std::fmt;
use units::strconv::quote;

/// One fault: where and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Field path, e.g. `spec.containers[0].image`.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A place in the pod.
#[derive(Debug, Clone)]
pub(super) struct At(String);

impl At {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(super) fn get(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    pub(super) fn nth(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub(super) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn into_vec(self) -> Vec<Fault> {
        self.0
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    fn push(&mut self, at: &At, what: String, detail: &str) {
        let message = if detail.is_empty() { what } else { format!("{what}: {detail}") };
        self.0.push(Fault { path: at.0.clone(), message });
    }

    pub(super) fn required(&mut self, at: &At, detail: &str) {
        self.push(at, "Required value".to_owned(), detail);
    }

    pub(super) fn forbidden(&mut self, at: &At, detail: &str) {
        self.push(at, "Forbidden".to_owned(), detail);
    }

    pub(super) fn invalid(&mut self, at: &At, value: impl Serialize, detail: &str) {
        self.push(at, format!("Invalid value: {}", shown(value)), detail);
    }

    pub(super) fn duplicate(&mut self, at: &At, value: &str) {
        self.push(at, format!("Duplicate value: {}", quote(value)), "");
    }

    pub(super) fn not_found(&mut self, at: &At, value: &str, detail: &str) {
        self.push(at, format!("Not found: {}", quote(value)), detail);
    }

    pub(super) fn too_long(&mut self, at: &At, most: usize) {
        self.push(at, "Too long".to_owned(), &format!("may not be more than {most} bytes"));
    }

    pub(super) fn too_many(&mut self, at: &At, count: usize, most: usize) {
        self.push(at, format!("Too many: {count}"), &format!("must have at most {most} items"));
    }

    pub(super) fn unsupported(&mut self, at: &At, value: &str, allowed: &[&str]) {
        let list: Vec<String> = allowed.iter().map(|word| quote(word)).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.push(at, format!("Unsupported value: {}", quote(value)), &detail);
    }

    /// One `Invalid` for each complaint.
    pub(super) fn each(&mut self, at: &At, value: &str, complaints: Vec<String>) {
        for complaint in complaints {
            self.invalid(at, value, &complaint);
        }
    }

    /// A field that must not be empty.
    pub(super) fn filled(&mut self, at: &At, value: Option<&str>) {
        if value.unwrap_or_default().is_empty() {
            self.required(at, "");
        }
    }

    /// A field that must be one of these words.
    pub(super) fn word(&mut self, at: &At, value: Option<&str>, allowed: &[&str]) {
        match value.unwrap_or_default() {
            "" => self.required(at, ""),
            value => self.word_if_set(at, Some(value), allowed),
        }
    }

    /// A field that is one of these words where it is set; an empty text counts as set.
    pub(super) fn word_if_set(&mut self, at: &At, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.unsupported(at, value, allowed);
        }
    }

    pub(super) fn range(&mut self, at: &At, value: i64, low: i64, high: i64) {
        if value < low || value > high {
            self.invalid(at, value, &format!("must be between {low} and {high}, inclusive"));
        }
    }

    pub(super) fn not_negative(&mut self, at: &At, value: i64) {
        if value < 0 {
            self.invalid(at, value, "must be greater than or equal to 0");
        }
    }
}

/// A value as upstream prints it: texts quoted as Go does, everything else as JSON.
fn shown(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => quote(&text),
        Ok(other) => other.to_string(),
        Err(_) => "<unprintable>".to_owned(),
    }
}
