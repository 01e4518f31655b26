//! Node selectors and required node affinity.

use api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};

/// Whether the node satisfies the pod's node selector and required affinity.
pub fn matches_node(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| label(node, key) == Some(value.as_str()));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|selector| {
            selector.node_selector_terms.iter().any(|term| matches_term(term, node))
        })
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An empty term matches nothing.
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!labels.is_empty() || !fields.is_empty())
        && labels.iter().all(|r| matches_label(r, label(node, &r.key)))
        && fields.iter().all(|r| matches_field(r, node))
}

fn matches_label(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|v| values.iter().any(|own| own == v));
    let compare = |holds: fn(i64, i64) -> bool| match (value.map(str::parse), values) {
        (Some(Ok(have)), [want]) => want.parse().is_ok_and(|want| holds(have, want)),
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => !values.is_empty() && listed(),
        "NotIn" => !values.is_empty() && !listed(),
        "Exists" => values.is_empty() && value.is_some(),
        "DoesNotExist" => values.is_empty() && value.is_none(),
        "Gt" => compare(|have, want| have > want),
        "Lt" => compare(|have, want| have < want),
        _ => false,
    }
}

/// `metadata.name` is the only field a node has here.
fn matches_field(requirement: &NodeSelectorRequirement, node: &Node) -> bool {
    let name = node.metadata.name.as_deref().filter(|_| requirement.key == "metadata.name");
    let [want] = requirement.values.as_deref().unwrap_or_default() else { return false };
    match requirement.operator.as_str() {
        "In" => name.unwrap_or_default() == want,
        "NotIn" => name.unwrap_or_default() != want,
        _ => false,
    }
}
