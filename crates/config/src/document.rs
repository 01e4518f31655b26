//! Configuration files as JSON values: YAML or JSON, with what a strict reader objects to.
//!
//! Promises: only the first YAML document counts; the last of duplicate keys wins and is told.

use crate::value::kind_of;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::fmt;
use units::strconv::quote;

/// A file's content as a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    /// The content.
    pub(crate) value: Value,
    /// Whether it was written as JSON.
    pub(crate) json: bool,
    /// What a strict reader objects to: duplicate keys.
    pub(crate) duplicates: Vec<String>,
}

/// API version and kind of a document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct DocumentType {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

impl DocumentType {
    /// Go's form: `group/version, Kind=kind`.
    pub(crate) fn shown(&self) -> String {
        let slash = if self.api_version.contains('/') { "" } else { "/" };
        format!("{slash}{}, Kind={}", self.api_version, self.kind)
    }
}

/// Reads a file's content.
pub(crate) fn read(data: &[u8]) -> Result<Document, String> {
    let text = String::from_utf8_lossy(data);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim_start().starts_with('{') {
        return read_json(text);
    }
    read_yaml(text)
}

/// Reads the type of a document.
pub(crate) fn document_type(document: &Document) -> Result<DocumentType, String> {
    let object = match &document.value {
        Value::Object(object) => object,
        Value::Null => return Ok(DocumentType::default()),
        other => {
            let kind = kind_of(other);
            return Err(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into \
                 Go value of type struct {{ APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                 \"json:\\\"kind,omitempty\\\"\" }}"
            ));
        }
    };
    let text = |name: &str| match object.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go \
             struct field .{name} of type string",
            kind_of(other)
        )),
    };
    let found = DocumentType { api_version: text("apiVersion")?, kind: text("kind")? };
    if found.api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {}", found.api_version));
    }
    Ok(found)
}

fn read_json(text: &str) -> Result<Document, String> {
    let duplicates = RefCell::new(Vec::new());
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Collect { path: String::new(), duplicates: &duplicates };
    let value = seed
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|e| {
            let fault = units::gojson::syntax_fault(text).unwrap_or_else(|| e.to_string());
            format!("couldn't get version/kind; json parse error: {fault}")
        })?;
    Ok(Document { value, json: true, duplicates: duplicates.into_inner() })
}

fn read_yaml(text: &str) -> Result<Document, String> {
    let strict = first_document(text, serde_saphyr::DuplicateKeyPolicy::Error);
    match strict {
        Ok(value) => Ok(Document { value, json: false, duplicates: Vec::new() }),
        Err(error) => {
            let Some(told) = duplicate_key(&error) else { return Err(yaml_error(&error)) };
            let value = first_document(text, serde_saphyr::DuplicateKeyPolicy::LastWins)
                .map_err(|e| yaml_error(&e))?;
            Ok(Document { value, json: false, duplicates: vec![told] })
        }
    }
}

fn first_document(
    text: &str,
    duplicate_keys: serde_saphyr::DuplicateKeyPolicy,
) -> Result<Value, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let mut reader = text.as_bytes();
    let mut documents = serde_saphyr::read_with_options(&mut reader, options);
    documents.next().unwrap_or(Ok(Value::Null))
}

fn line_of(error: &serde_saphyr::Error) -> Option<u64> {
    error.location().map(|location| location.line()).filter(|line| *line > 0)
}

fn duplicate_key(error: &serde_saphyr::Error) -> Option<String> {
    let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error.without_snippet() else {
        return None;
    };
    let line = line_of(error).unwrap_or_default();
    let key = key.as_deref().unwrap_or_default();
    Some(format!("yaml: unmarshal errors:\n  line {line}: key {} already set in map", quote(key)))
}

/// As Go's YAML reader words it: the line is left out for the first one.
fn yaml_error(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    let first = first.split(" at line ").next().unwrap_or_default();
    match line_of(error) {
        Some(line) if line > 1 => format!("yaml: line {line}: {first}"),
        _ => format!("yaml: {first}"),
    }
}

/// Builds a value; duplicate keys are noted with their path.
struct Collect<'a> {
    path: String,
    duplicates: &'a RefCell<Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Collect<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Collect<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, items.len());
            let seed = Collect { path, duplicates: self.duplicates };
            match seq.next_element_seed(seed)? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{key}", self.path);
            if object.contains_key(&key) {
                self.duplicates.borrow_mut().push(format!("duplicate field {}", quote(&path)));
            }
            let seed = Collect { path, duplicates: self.duplicates };
            object.insert(key, map.next_value_seed(seed)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        read(text.as_bytes()).unwrap().value
    }

    #[test]
    fn yaml_scalars_are_those_of_yaml_1_1() {
        assert_eq!(
            value("a: yes\nb: off\nc: y\nd: 0644\ne: ~\nf: '1'\ng: 10250.0\nh: 1.5\ni: text\nj:\n"),
            json!({"a": true, "b": false, "c": true, "d": 420, "e": null, "f": "1",
                   "g": 10250.0, "h": 1.5, "i": "text", "j": null})
        );
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(value("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(value("\u{feff}a: 1\n"), json!({"a": 1}));
        assert_eq!(value("# nothing\n"), Value::Null);
    }

    #[test]
    fn duplicate_keys_are_told_and_the_last_wins() {
        let yaml = read(b"a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(yaml.value, json!({"a": 3, "b": 2}));
        assert_eq!(
            yaml.duplicates,
            ["yaml: unmarshal errors:\n  line 3: key \"a\" already set in map"]
        );
        let json = read(br#"{"a": {"b": 1, "b": 2}}"#).unwrap();
        assert_eq!(json.value, json!({"a": {"b": 2}}));
        assert_eq!(json.duplicates, ["duplicate field \"a.b\""]);
    }

    #[test]
    fn anchors_and_merge_keys_work() {
        assert_eq!(
            value("x: &x {a: 1}\ny:\n  <<: *x\n  b: 2\n"),
            json!({"x": {"a": 1}, "y": {"a": 1, "b": 2}})
        );
    }

    #[test]
    fn broken_text_is_an_error_with_a_line() {
        let error = read(b"a: 1\n  b: 2\n").unwrap_err();
        assert!(error.starts_with("yaml: line "), "{error}");
        assert!(read(b"{\"a\": ").is_err());
    }
}
