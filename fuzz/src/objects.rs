//! Objects of the API and manifests of pods.

use api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use serde_json::Value;

use crate::Target;

pub(crate) const TARGETS: &[Target] = &[
    ("json-objects", json_objects),
    ("yaml", yaml),
    ("manifest", pods::fuzzing::manifest),
    ("pod-decisions", pod_decisions),
];

fn json_objects(input: &[u8]) {
    if let Ok(pod) = serde_json::from_slice::<Pod>(input) {
        let text = units::gojson::to_string(&pod).unwrap_or_default();
        assert_eq!(serde_json::from_str::<Pod>(&text).ok(), Some(pod));
    }
    let _ = serde_json::from_slice::<Node>(input);
    let _ = serde_json::from_slice::<Secret>(input);
    let _ = serde_json::from_slice::<ConfigMap>(input);
    let _ = serde_json::from_slice::<Service>(input);
}

fn yaml(input: &[u8]) {
    let read = units::yaml::read(input);
    units::yaml::line_of(input, ["spec", "containers"]);
    if let Ok(document) = read
        && let Ok(text) = serde_json::to_vec(&document.value)
    {
        // JSON is YAML too, up to how numbers are told apart.
        let again = serde_json::from_slice::<Value>(&text);
        assert!(again.is_ok(), "what was read can be written");
    }
}

/// What is decided from a pod before anything is made of it.
fn pod_decisions(input: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(input) else { return };
    let node = Node::default();
    engine::admission::matches_node(&pod, &node);
    engine::static_pod::mirror_of(&pod, "node1", "uid");
}
