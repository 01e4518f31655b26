//! Reading pod manifests that somebody else wrote: YAML or JSON, bounded in size and expansion.
//!
//! Promises: an error names the line where it can; only the first document of a file is read;
//! alias bombs and deep nesting end in an error, not in memory.

use api::core::v1::Pod;
use serde_json::Value;
use serde_path_to_error::Segment;

/// The largest manifest that is read (`kubelet: maxConfigLength`).
pub(crate) const MAX_MANIFEST_BYTES: usize = 10 << 20;

/// Why a manifest is not a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    /// It is larger than 10 MiB.
    #[error("manifest has {0} bytes, more than 10 MiB")]
    TooLarge(usize),
    /// It is neither YAML nor JSON.
    #[error("{0}")]
    Syntax(String),
    /// It is well-formed, but of another kind.
    #[error("expected a v1 Pod, found {0}")]
    Kind(String),
    /// A field has the wrong type.
    #[error("line {line}: invalid pod: {path}: {reason}")]
    Field {
        /// Line from one, 0 when unknown.
        line: usize,
        /// The field.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// It has no name.
    #[error("invalid pod: name is needed for the pod")]
    NoName,
    /// It is not a valid static pod.
    #[error("{0}")]
    Invalid(String),
}

/// Decodes one pod.
pub(crate) fn decode_pod(bytes: &[u8]) -> Result<Pod, ManifestError> {
    let value = decode_value(bytes)?;
    pod_from_value(value, bytes)
}

/// Decodes one pod or a list of pods (only the URL source takes lists).
pub(crate) fn decode_pods(bytes: &[u8]) -> Result<Vec<Pod>, ManifestError> {
    let mut value = decode_value(bytes)?;
    if kind_of(&value).ends_with("PodList") {
        let items = value.get_mut("items").map(Value::take).unwrap_or_default();
        let items = items.as_array().cloned().unwrap_or_default();
        return items
            .into_iter()
            .map(|mut item| {
                if let Some(object) = item.as_object_mut() {
                    object.entry("apiVersion").or_insert_with(|| "v1".into());
                    object.entry("kind").or_insert_with(|| "Pod".into());
                }
                pod_from_value(item, &[])
            })
            .collect();
    }
    pod_from_value(value, bytes).map(|pod| vec![pod])
}

fn decode_value(bytes: &[u8]) -> Result<Value, ManifestError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge(bytes.len()));
    }
    match units::yaml::read_either(bytes) {
        Ok(Value::Null) => Err(ManifestError::Kind("an empty file".to_owned())),
        Ok(value) => Ok(value),
        Err(error) => Err(ManifestError::Syntax(error.to_string())),
    }
}

fn kind_of(value: &Value) -> String {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("", "") => "an object without apiVersion and kind".to_owned(),
        (version, kind) => format!("{version} {kind}"),
    }
}

fn pod_from_value(value: Value, bytes: &[u8]) -> Result<Pod, ManifestError> {
    let kind = kind_of(&value);
    if kind != "v1 Pod" {
        return Err(ManifestError::Kind(kind));
    }
    let pod: Pod = serde_path_to_error::deserialize(value).map_err(|error| {
        let steps: Vec<String> = error.path().iter().map(step).collect();
        let line = units::yaml::line_of(bytes, steps.iter().map(String::as_str)).unwrap_or(0);
        let path = error.path().to_string();
        ManifestError::Field { line, path, reason: error.into_inner().to_string() }
    })?;
    if pod.metadata.name.as_deref().unwrap_or_default().is_empty() {
        return Err(ManifestError::NoName);
    }
    Ok(pod)
}

fn step(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => index.to_string(),
        Segment::Map { key } => key.clone(),
        Segment::Enum { variant } => variant.clone(),
        Segment::Unknown => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: a, image: b}\n";

    #[test]
    fn reads_yaml_json_and_only_the_first_document() {
        assert_eq!(decode_pod(POD.as_bytes()).unwrap().metadata.name.as_deref(), Some("web"));
        let json =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},"spec":{"containers":[]}}"#;
        assert_eq!(decode_pod(json).unwrap().metadata.name.as_deref(), Some("j"));
        let two = format!("{POD}---\n: : broken\n");
        assert_eq!(decode_pod(two.as_bytes()).unwrap().metadata.name.as_deref(), Some("web"));
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let error = decode_pod(b"apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n").unwrap_err();
        // As Go's library counts.
        assert_eq!(error.to_string(), "yaml: line 2: did not find expected node content");
    }

    #[test]
    fn a_wrong_type_names_its_line() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers: 5\n";
        let error = decode_pod(text.as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 6: invalid pod: spec"), "{error}");
    }

    #[test]
    fn values_are_those_of_yaml_1_1_as_in_go() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  hostNetwork: yes\n  \
                    volumes: [{name: s, secret: {secretName: s, defaultMode: 0440}}]\n";
        let spec = decode_pod(text.as_bytes()).unwrap().spec.unwrap();
        assert_eq!(spec.host_network, Some(true));
        let secret = spec.volumes.unwrap().remove(0).secret.unwrap();
        assert_eq!(secret.default_mode, Some(0o440));
    }

    #[test]
    fn lists_and_other_kinds_are_refused_in_files() {
        let list = b"apiVersion: v1\nkind: PodList\nitems: []\n";
        assert_eq!(decode_pod(list), Err(ManifestError::Kind("v1 PodList".into())));
        assert_eq!(decode_pods(list).unwrap().len(), 0);
    }

    #[test]
    fn an_alias_bomb_is_an_error() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..12 {
            let below = format!("*a{}", n - 1);
            text.push_str(&format!("a{n}: &a{n} [{}]\n", vec![below; 10].join(",")));
        }
        assert!(matches!(decode_pod(text.as_bytes()), Err(ManifestError::Syntax(_))));
    }
}
