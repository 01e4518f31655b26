//! Reading pod manifests that somebody else wrote: YAML or JSON, bounded in size and expansion.
//!
//! Promises: an error names the line where it can; only the first document of a file is read;
//! alias bombs and deep nesting end in an error, not in memory.

use api::core::v1::Pod;
use api::pod::PodExt;
use serde_json::Value;
use serde_path_to_error::Segment;

/// Manifests of this size and above are not read (`kubelet: maxConfigLength`).
pub(crate) const MAX_MANIFEST_BYTES: usize = 10 << 20;
/// So many lists and maps of a pod may have gaps.
const MOST_GAPS: usize = 1000;
const POD: &str = "v1 Pod";
const LIST: &str = "v1 PodList";

/// Why a manifest is not a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    /// It has 10 MiB or more.
    #[error("manifest has {0} bytes, but must have less than 10 MiB")]
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

/// What a manifest holds.
#[derive(Debug)]
pub(crate) enum Manifest {
    /// One pod.
    Pod(Box<Pod>),
    /// A list of pods (only the URL source takes it).
    List(Vec<Pod>),
}

/// Decodes one pod.
pub(crate) fn decode_pod(bytes: &[u8]) -> Result<Pod, ManifestError> {
    let value = decode_value(bytes)?;
    let kind = kind_of(&value);
    if kind != POD {
        return Err(ManifestError::Kind(kind));
    }
    pod_from_value(value, bytes)
}

/// Decodes one pod or a list of pods.
pub(crate) fn decode_pods(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let mut value = decode_value(bytes)?;
    let kind = kind_of(&value);
    if kind == POD {
        return pod_from_value(value, bytes).map(|pod| Manifest::Pod(Box::new(pod)));
    }
    if kind != LIST {
        return Err(ManifestError::Kind(kind));
    }
    // Of what kind an item says that it is does not count: the list says what it holds.
    let items = match value.get_mut("items").map(Value::take) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => {
            let reason = "expected a list".to_owned();
            return Err(ManifestError::Field { line: 0, path: "items".to_owned(), reason });
        }
    };
    let pods = items.into_iter().map(|item| pod_from_value(item, &[]));
    pods.collect::<Result<_, _>>().map(Manifest::List)
}

fn decode_value(bytes: &[u8]) -> Result<Value, ManifestError> {
    if bytes.len() >= MAX_MANIFEST_BYTES {
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

fn pod_from_value(mut value: Value, bytes: &[u8]) -> Result<Pod, ManifestError> {
    let Some(object) = value.as_object_mut() else {
        // Nothing where a pod should be is a pod of which nothing is known.
        let reason = "expected a pod".to_owned();
        return match value {
            Value::Null => Err(ManifestError::NoName),
            _ => Err(ManifestError::Field { line: 0, path: "items".to_owned(), reason }),
        };
    };
    object.insert("apiVersion".to_owned(), "v1".into());
    object.insert("kind".to_owned(), "Pod".into());
    let pod = read_pod(value).map_err(|error| {
        let steps: Vec<String> = error.path().iter().map(step).collect();
        let line = units::yaml::line_of(bytes, steps.iter().map(String::as_str)).unwrap_or(0);
        let path = error.path().to_string();
        ManifestError::Field { line, path, reason: error.into_inner().to_string() }
    })?;
    if pod.name_str().is_empty() {
        return Err(ManifestError::NoName);
    }
    Ok(pod)
}

/// Reads the pod. Nothing in the place of an item or of a value in a map is, as in Go, one of which
/// nothing is known; what that is comes out only when it is read.
fn read_pod(mut value: Value) -> Result<Pod, serde_path_to_error::Error<serde_json::Error>> {
    let mut lists = 0;
    loop {
        lists += 1;
        let error = match serde_path_to_error::deserialize(&value) {
            Ok(pod) => return Ok(pod),
            Err(error) => error,
        };
        let text = error.inner().to_string();
        let expected = text.strip_prefix("invalid type: null, expected ");
        let nothing = expected.map(|what| match what {
            "a string" | "string" => Value::from(""),
            "Quantity" => Value::from("0"),
            "i32" | "i64" => Value::from(0),
            "a boolean" => Value::from(false),
            _ => Value::Object(serde_json::Map::new()),
        });
        let replaced = nothing.is_some_and(|nothing| fill(&mut value, error.path(), &nothing));
        if !replaced || lists > MOST_GAPS {
            return Err(error);
        }
    }
}

/// Puts `nothing` in the place of every null beside the one at `path`, and of itself.
fn fill(value: &mut Value, path: &serde_path_to_error::Path, nothing: &Value) -> bool {
    let steps: Vec<String> = path.iter().map(step).collect();
    let Some((_, parents)) = steps.split_last() else { return false };
    let mut place = value;
    for step in parents {
        let next = match place {
            Value::Array(items) => step.parse::<usize>().ok().and_then(|n| items.get_mut(n)),
            Value::Object(fields) => fields.get_mut(step),
            _ => None,
        };
        let Some(next) = next else { return false };
        place = next;
    }
    let entries: Vec<&mut Value> = match place {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.iter_mut().map(|(_, entry)| entry).collect(),
        _ => return false,
    };
    let mut found = false;
    for entry in entries.into_iter().filter(|entry| entry.is_null()) {
        *entry = nothing.clone();
        found = true;
    }
    found
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
        assert!(matches!(decode_pods(list), Ok(Manifest::List(pods)) if pods.is_empty()));
        for other in ["v2 PodList", "v1 MyPodList", "v1 List"] {
            let (version, kind) = other.split_once(' ').unwrap();
            let text = format!("apiVersion: {version}\nkind: {kind}\nitems: []\n");
            let error = decode_pods(text.as_bytes()).unwrap_err();
            assert_eq!(error, ManifestError::Kind(other.to_owned()));
        }
    }

    #[test]
    fn a_list_says_what_its_items_are() {
        let list = |items: &str| {
            decode_pods(format!("apiVersion: v1\nkind: PodList\nitems: {items}\n").as_bytes())
        };
        let named = list("[{kind: Service, metadata: {name: a}}, {metadata: {name: b}}]");
        let Manifest::List(pods) = named.unwrap() else { panic!("no list") };
        assert_eq!(
            pods.iter().map(|p| p.metadata.name.as_deref()).collect::<Vec<_>>(),
            [Some("a"), Some("b")]
        );
        assert!(matches!(list("~"), Ok(Manifest::List(pods)) if pods.is_empty()));
        // Not as if there were no pods: those that run stay.
        assert!(list("{}").is_err());
        assert_eq!(list("[~]").unwrap_err(), ManifestError::NoName);
    }

    #[test]
    fn whole_numbers_may_be_written_as_fractions_in_yaml_only() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  \
                    terminationGracePeriodSeconds: 30.0\n  activeDeadlineSeconds: 1e2\n";
        let spec = decode_pod(text.as_bytes()).unwrap().spec.unwrap();
        assert_eq!(spec.termination_grace_period_seconds, Some(30));
        assert_eq!(spec.active_deadline_seconds, Some(100));
        let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j"},
            "spec":{"terminationGracePeriodSeconds":30.0}}"#;
        assert!(matches!(decode_pod(json), Err(ManifestError::Field { .. })));
    }

    #[test]
    fn nothing_in_a_list_or_map_is_an_empty_entry() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {a: , b: c, d: ~}\n\
                    spec:\n  containers:\n  - name: a\n    command: [x, ~, '', ~]\n    \
                    env: [~]\n    resources: {limits: {cpu: ~}}\n  tolerations: [~]\n  \
                    securityContext: {supplementalGroups: [~, 5]}\n  initContainers: ~\n";
        let pod = decode_pod(text.as_bytes()).unwrap();
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels.values().map(String::as_str).collect::<Vec<_>>(), ["", "c", ""]);
        let spec = pod.spec.unwrap();
        let container = &spec.containers[0];
        assert_eq!(container.command.as_deref().unwrap(), ["x", "", "", ""]);
        assert_eq!(container.env.as_ref().unwrap().len(), 1);
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref()).unwrap();
        assert_eq!(limits["cpu"].0, "0");
        assert_eq!(spec.tolerations.unwrap().len(), 1);
        assert_eq!(spec.security_context.unwrap().supplemental_groups.unwrap(), [0, 5]);
        assert!(spec.init_containers.is_none());
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
