//! Configuration files as JSON values: YAML or JSON, with what a strict reader objects to.
//!
//! Promises: only the first YAML document counts; the last of duplicate keys wins and is told.

mod json;

use crate::value::kind_of;
use serde_json::Value;
use std::collections::BTreeMap;
use units::strconv::quote;

/// A file's content as a value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    /// The content.
    pub(crate) value: Value,
    /// Whether it was written as JSON.
    pub(crate) json: bool,
    /// The members of the outermost object in the order they are read; a key may come twice.
    pub(crate) members: Vec<(String, Value)>,
    /// What a strict reader objects to: duplicate keys.
    pub(crate) duplicates: Vec<String>,
    /// Numbers as they were written, by path, where that is not how we would write them.
    pub(crate) literals: BTreeMap<String, String>,
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

    /// Whether there is no version, with or without a group.
    pub(crate) fn versionless(&self) -> bool {
        self.api_version.rsplit('/').next().unwrap_or_default().is_empty()
    }

    /// Group and version as Go joins them: no slash without a group.
    pub(crate) fn version(&self) -> &str {
        self.api_version.strip_prefix('/').unwrap_or(&self.api_version)
    }

    /// What Go says of a type that nobody knows.
    pub(crate) fn unregistered(&self) -> String {
        let scheme = "in scheme \"pkg/runtime/scheme.go:111\"";
        let kind = quote(&self.kind);
        match self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version)) {
            (group, "__internal") => {
                let group = quote(group);
                format!(
                    "no kind {kind} is registered for the internal version of group {group} {scheme}"
                )
            }
            _ => format!(
                "no kind {kind} is registered for version {} {scheme}",
                quote(self.version())
            ),
        }
    }
}

/// Reads a file's content.
pub(crate) fn read(data: &[u8]) -> Result<Document, String> {
    if units::yaml::is_json(data) { json::read(data) } else { read_yaml(data) }
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
    let mut found = DocumentType::default();
    let mut fault = None;
    // Whatever the case of the key; of several the last counts.
    debug_assert!(object.len() <= document.members.len(), "members are those of the object");
    for (key, value) in &document.members {
        let (name, place) = if key.eq_ignore_ascii_case("apiVersion") {
            ("apiVersion", &mut found.api_version)
        } else if key.eq_ignore_ascii_case("kind") {
            ("kind", &mut found.kind)
        } else {
            continue;
        };
        match value {
            Value::Null => {}
            Value::String(text) => place.clone_from(text),
            other => {
                let kind = kind_of(other);
                fault.get_or_insert_with(|| {
                    format!(
                        "couldn't get version/kind; json parse error: json: cannot unmarshal \
                         {kind} into Go struct field .{name} of type string"
                    )
                });
            }
        }
    }
    if let Some(fault) = fault {
        return Err(fault);
    }
    if found.api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {}", found.api_version));
    }
    Ok(found)
}

fn read_yaml(data: &[u8]) -> Result<Document, String> {
    let document = units::yaml::read(data).map_err(|e| e.to_string())?;
    let duplicates = document.objection.into_iter().collect();
    let members = match &document.value {
        Value::Object(object) => object.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        _ => Vec::new(),
    };
    let literals = BTreeMap::new();
    Ok(Document { value: document.value, json: false, members, duplicates, literals })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
    fn broken_text_is_an_error_with_a_line() {
        let error = read(b"a: 1\n  b: 2\n").unwrap_err();
        assert!(error.starts_with("yaml: line "), "{error}");
        assert!(read(b"{\"a\": ").is_err());
    }
}
