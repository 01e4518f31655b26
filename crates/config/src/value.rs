//! JSON values into structs, the way Go does it.
//!
//! Owns: [`GoValue`], which every configuration type implements, and the [`Decoder`] that gathers
//! unknown fields and the first type error in Go's words.
//!
//! Promises: a decode never stops early: it reports the first error and all unknown fields, as
//! `encoding/json` does. `null` leaves a value as it is.
//!
//! Deliberately absent: defaults and validation, which come after.

use crate::text;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use units::strconv::quote;
use units::{GoDuration, Quantity, SpelledQuantity};

/// A configuration value that knows Go's rules for decoding it and leaving it out.
pub(crate) trait GoValue: Default + Serialize {
    /// Whether it is a list or map: then `Option` tells nil from empty, and both are left out of
    /// the JSON form.
    const COLLECTION: bool = false;

    /// Takes over what `value` says; faults go to `decoder`.
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder);

    /// Whether `omitempty` leaves it out.
    fn is_empty(&self) -> bool {
        false
    }

    /// Whether a zero of it in a file means "not set".
    fn zero_means_unset() -> bool {
        true
    }

    /// Adds the leaves below this type to the description of the schema.
    fn describe(path: &str, field: &FieldShape, leaves: &mut Vec<Leaf>) {
        leaves.push(Leaf {
            path: path.to_owned(),
            go_type: field.go_type,
            omitempty: field.omitempty,
            zero_means_unset: Self::zero_means_unset(),
        });
    }
}

/// What the declaration of a field says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldShape {
    pub(crate) go_type: &'static str,
    pub(crate) omitempty: bool,
}

/// One leaf of the configuration's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Dotted path; list items as `name[]`.
    pub path: String,
    /// Go's type.
    pub go_type: &'static str,
    /// Whether an empty value is left out of the JSON form.
    pub omitempty: bool,
    /// Whether a zero in a file counts as not set.
    pub zero_means_unset: bool,
}

/// How keys are matched and numbers are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// `--config` in YAML: exact keys.
    Yaml,
    /// `--config` in JSON: exact keys, no `10.0` for an integer.
    Json,
    /// The merged drop-ins: keys match whatever their case.
    Merged,
}

/// Unknown fields that are told, as upstream's reader has it.
pub(crate) const MOST_UNKNOWN: usize = 100;

/// Gathers what goes wrong during one decode.
#[derive(Debug)]
pub(crate) struct Decoder {
    reading: Reading,
    path: String,
    structs: Vec<&'static str>,
    /// Paths of fields nobody knows, in document order; at most [`MOST_UNKNOWN`].
    pub(crate) unknown: Vec<String>,
    /// The first type error, in Go's words.
    error: Option<String>,
    /// Numbers as they were written, by path.
    literals: BTreeMap<String, String>,
    /// The key of the map whose value is read.
    key: Option<String>,
    /// The first error of a type that reads itself: it ends the decode and is told before others.
    fatal: Option<String>,
}

impl Decoder {
    pub(crate) fn new(reading: Reading) -> Self {
        Self {
            reading,
            path: String::new(),
            structs: Vec::new(),
            unknown: Vec::new(),
            error: None,
            literals: BTreeMap::new(),
            key: None,
            fatal: None,
        }
    }

    /// Takes numbers of these places as they were written.
    pub(crate) fn with_literals(mut self, literals: BTreeMap<String, String>) -> Self {
        self.literals = literals;
        self
    }

    /// The number at this place as it was written.
    pub(crate) fn written(&self, value: &Value) -> String {
        let literal = match &self.key {
            _ if self.literals.is_empty() => None,
            Some(key) => self.literals.get(&format!("{}.{key}", self.path)),
            None => self.literals.get(&self.path),
        };
        literal.cloned().unwrap_or_else(|| text::compact_json(value))
    }

    pub(crate) fn fail(&mut self, text: String) {
        self.fatal.get_or_insert(text);
    }

    /// An error that does not end the decode.
    pub(crate) fn note(&mut self, text: String) {
        self.error.get_or_insert(text);
    }

    /// What a strict reader objects to: these duplicates, and the fields nobody knows.
    pub(crate) fn objections(&self, duplicates: &[String]) -> Vec<String> {
        let unknown = self.unknown.iter().map(|path| format!("unknown field {}", quote(path)));
        duplicates.iter().cloned().chain(unknown).collect()
    }

    /// The error to tell.
    pub(crate) fn error(&self) -> Option<&String> {
        self.fatal.as_ref().or(self.error.as_ref())
    }

    /// A type mismatch: `json: cannot unmarshal string into Go struct field T.path of type int32`.
    fn mismatch(&mut self, value: &Value, go_type: &str) {
        let text = self.mismatch_text(value, go_type);
        self.error.get_or_insert(text);
    }

    pub(crate) fn mismatch_text(&self, value: &Value, go_type: &str) -> String {
        let kind = match value {
            Value::Number(_) if number_type(go_type) => format!("number {}", self.written(value)),
            other => kind_of(other).to_owned(),
        };
        let go_type = printed_type(go_type);
        match self.structs.last() {
            Some(name) => format!(
                "json: cannot unmarshal {kind} into Go struct field {name}.{} of type {go_type}",
                printed_path(&self.path)
            ),
            None => format!("json: cannot unmarshal {kind} into Go value of type {go_type}"),
        }
    }

    /// Decodes the members of an object through `take`, which returns false for an unknown key.
    pub(crate) fn object(
        &mut self,
        value: &Value,
        go_type: &'static str,
        known: &[&'static str],
        mut take: impl FnMut(&str, &Value, &mut Self),
    ) {
        let object = match value {
            Value::Null => return,
            Value::Object(object) => object,
            other => return self.mismatch(other, go_type),
        };
        let name = go_type.rsplit('.').next().unwrap_or(go_type);
        self.structs.push(name);
        for (key, value) in object {
            let field = known.iter().copied().find(|k| *k == key).or_else(|| {
                let fold = self.reading == Reading::Merged;
                fold.then(|| known.iter().copied().find(|k| k.eq_ignore_ascii_case(key))).flatten()
            });
            match field {
                Some(field) => {
                    let length = self.path.len();
                    if !self.path.is_empty() {
                        self.path.push('.');
                    }
                    self.path.push_str(field);
                    take(field, value, self);
                    self.path.truncate(length);
                }
                None if self.unknown.len() >= MOST_UNKNOWN => {}
                None => {
                    let dot = if self.path.is_empty() { "" } else { "." };
                    self.unknown.push(format!("{}{dot}{key}", self.path));
                }
            }
        }
        self.structs.pop();
    }
}

fn number_type(go_type: &str) -> bool {
    ["int32", "int64", "float64", "VerbosityLevel"].contains(&go_type.trim_start_matches('*'))
}

/// The path as Go prints it in type errors: without list positions, with the struct that two
/// logging options are embedded through.
fn printed_path(path: &str) -> String {
    let mut printed = String::with_capacity(path.len());
    for (index, part) in path.split('.').enumerate() {
        if index > 0 {
            printed.push('.');
        }
        if part == "splitStream" {
            printed.push_str("OutputRoutingOptions.");
        }
        printed.push_str(part.split('[').next().unwrap_or_default());
    }
    printed
}

/// What kind of JSON value it is, in Go's words.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The type as Go prints it: pointers vanish, named types carry their package.
fn printed_type(go_type: &str) -> String {
    let bare = go_type.trim_start_matches('*');
    match bare {
        "VerbosityLevel" | "VModuleConfiguration" | "TaintEffect" => format!("v1.{bare}"),
        "metav1.Time" => "string".to_owned(),
        "[]MemoryReservation" | "[]ShutdownGracePeriodByPodPriority" => {
            format!("[]v1beta1.{}", bare.trim_start_matches("[]"))
        }
        _ if bare.starts_with(|c: char| c.is_ascii_uppercase()) => format!("v1beta1.{bare}"),
        _ => bare.to_owned(),
    }
}

impl GoValue for bool {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        match value {
            Value::Null => {}
            Value::Bool(flag) => *self = *flag,
            other => decoder.mismatch(other, go_type),
        }
    }

    fn is_empty(&self) -> bool {
        !self
    }
}

impl GoValue for String {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        match value {
            Value::Null => {}
            Value::String(text) => self.clone_from(text),
            other => decoder.mismatch(other, go_type),
        }
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

macro_rules! integer {
    ($type:ty) => {
        impl GoValue for $type {
            fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
                let number = match value {
                    Value::Null => return,
                    Value::Number(number) => number,
                    other => return decoder.mismatch(other, go_type),
                };
                let whole = number.as_i128().or_else(|| {
                    let float = number.as_f64()?;
                    let fits = float.fract() == 0.0 && float.abs() < 1e18;
                    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole")]
                    (fits && decoder.reading != Reading::Json).then(|| float as i128)
                });
                match whole.and_then(|n| <$type>::try_from(n).ok()) {
                    Some(n) => *self = n,
                    None => decoder.mismatch(value, go_type),
                }
            }

            fn is_empty(&self) -> bool {
                *self == 0
            }
        }
    };
}

integer!(i32);
integer!(i64);
integer!(u32);

impl GoValue for f64 {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        let too_large = || decoder.written(value).parse().is_ok_and(f64::is_infinite);
        match (value, value.as_f64()) {
            (Value::Null, _) => {}
            (Value::Number(_), Some(_)) if too_large() => decoder.mismatch(value, go_type),
            (_, Some(number)) => *self = number,
            _ => decoder.mismatch(value, go_type),
        }
    }

    fn is_empty(&self) -> bool {
        *self == 0.0
    }
}

impl GoValue for GoDuration {
    /// Go's own decoder of durations takes null for an empty text, which is none.
    fn decode(&mut self, value: &Value, _: &str, decoder: &mut Decoder) {
        match value {
            Value::Null => decoder.fail("time: invalid duration \"\"".to_owned()),
            Value::String(text) => match text.parse() {
                Ok(duration) => *self = duration,
                Err(error) => decoder.fail(error.to_string()),
            },
            other => {
                let text = decoder.mismatch_text(other, "string");
                decoder.fail(text);
            }
        }
    }
}

impl GoValue for SpelledQuantity {
    fn decode(&mut self, value: &Value, _: &str, decoder: &mut Decoder) {
        let text = match value {
            Value::Null => return,
            Value::String(text) => text.clone(),
            other => decoder.written(other),
        };
        match text.trim().parse() {
            Ok(quantity) => *self = quantity,
            Err(error) => decoder.fail(error.to_string()),
        }
    }
}

impl GoValue for Quantity {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        let mut spelled = SpelledQuantity { amount: *self, whole: None };
        spelled.decode(value, go_type, decoder);
        *self = spelled.amount;
    }
}

impl<T: GoValue> GoValue for Option<T> {
    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        if value.is_null() {
            *self = None;
            return;
        }
        self.get_or_insert_with(T::default).decode(value, go_type, decoder);
    }

    fn is_empty(&self) -> bool {
        match self {
            None => true,
            Some(inner) => T::COLLECTION && inner.is_empty(),
        }
    }

    fn zero_means_unset() -> bool {
        false
    }

    fn describe(path: &str, field: &FieldShape, leaves: &mut Vec<Leaf>) {
        let before = leaves.len();
        T::describe(path, field, leaves);
        if let [only] = &mut leaves[before..] {
            only.zero_means_unset = false;
        }
    }
}

impl<T: GoValue> GoValue for Vec<T> {
    const COLLECTION: bool = true;

    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        let items = match value {
            Value::Null => return,
            Value::Array(items) => items,
            other => return decoder.mismatch(other, go_type),
        };
        let item_type = go_type.strip_prefix("[]").unwrap_or(go_type);
        self.clear();
        for (index, item) in items.iter().enumerate() {
            let length = decoder.path.len();
            decoder.path.push_str(&format!("[{index}]"));
            let mut decoded = T::default();
            decoded.decode(item, item_type, decoder);
            decoder.path.truncate(length);
            self.push(decoded);
        }
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn zero_means_unset() -> bool {
        false
    }

    fn describe(path: &str, field: &FieldShape, leaves: &mut Vec<Leaf>) {
        let before = leaves.len();
        T::describe(&format!("{path}[]"), field, leaves);
        if let [only] = &mut leaves[before..]
            && only.path == format!("{path}[]")
        {
            path.clone_into(&mut only.path);
            only.zero_means_unset = false;
        }
    }
}

impl<T: GoValue> GoValue for BTreeMap<String, T> {
    const COLLECTION: bool = true;

    fn decode(&mut self, value: &Value, go_type: &str, decoder: &mut Decoder) {
        let object = match value {
            Value::Null => return,
            Value::Object(object) => object,
            other => return decoder.mismatch(other, go_type),
        };
        let item_type = go_type.split_once(']').map_or(go_type, |(_, item)| item);
        for (key, item) in object {
            let mut decoded = T::default();
            decoder.key = Some(key.clone());
            decoded.decode(item, item_type, decoder);
            decoder.key = None;
            self.insert(key.clone(), decoded);
        }
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn zero_means_unset() -> bool {
        false
    }
}

/// Declares a configuration struct: its fields, their JSON names, Go types, and whether an empty
/// value is left out of the JSON form.
macro_rules! go_struct {
    ($(#[$doc:meta])* $name:ident = $go:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty, $json:literal, $go_type:literal, $rule:ident;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::value::GoValue for $name {
            fn decode(
                &mut self,
                value: &serde_json::Value,
                _: &str,
                decoder: &mut $crate::value::Decoder,
            ) {
                decoder.object(value, $go, &[$($json),*], |key, value, decoder| match key {
                    $($json => $crate::value::GoValue::decode(
                        &mut self.$field, value, $go_type, decoder),)*
                    _ => {}
                });
            }

            fn describe(
                path: &str,
                _: &$crate::value::FieldShape,
                leaves: &mut Vec<$crate::value::Leaf>,
            ) {
                $({
                    let dot = if path.is_empty() { "" } else { "." };
                    let shape = $crate::value::FieldShape {
                        go_type: $go_type,
                        omitempty: $crate::value::omits(stringify!($rule)),
                    };
                    let path = format!("{path}{dot}{}", $json);
                    <$type as $crate::value::GoValue>::describe(&path, &shape, leaves);
                })*
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                $(
                    let omit = $crate::value::omits(stringify!($rule))
                        && $crate::value::GoValue::is_empty(&self.$field);
                    if !omit {
                        map.serialize_entry($json, &self.$field)?;
                    }
                )*
                map.end()
            }
        }
    };
}

pub(crate) use go_struct;

/// Whether a field rule of [`go_struct`] is `omitempty`.
pub(crate) fn omits(rule: &str) -> bool {
    rule == "omitempty"
}
