//! Whether a persistent volume may be used on this node.

use api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume};
use std::collections::BTreeMap;

/// Compares the volume's required node affinity with the node's labels; no affinity fits everywhere. The
/// node's name is not compared: a term with `matchFields` fits nowhere (`kubelet: CheckNodeAffinity`).
pub fn volume_fits_node(volume: &PersistentVolume, labels: &BTreeMap<String, String>) -> bool {
    let required = volume
        .spec
        .as_ref()
        .and_then(|s| s.node_affinity.as_ref())
        .and_then(|a| a.required.as_ref());
    required.is_none_or(|selector| {
        selector.node_selector_terms.iter().any(|term| term_matches(term, labels))
    })
}

fn term_matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // An empty term selects nothing.
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let nameless = [("metadata.name".to_owned(), String::new())].into();
    expressions.iter().all(|r| requirement_holds(r, labels))
        && fields.iter().all(|r| requirement_holds(r, &nameless))
}

fn requirement_holds(
    requirement: &NodeSelectorRequirement,
    labels: &BTreeMap<String, String>,
) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let compare = |holds: fn(i64, i64) -> bool| {
        let own = value.and_then(|v| v.parse().ok());
        let other = values.first().and_then(|v| v.parse().ok());
        matches!((own, other), (Some(own), Some(other)) if holds(own, other))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|v| values.contains(v)),
        "NotIn" => value.is_none_or(|v| !values.contains(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|own, other| own > other),
        "Lt" => compare(|own, other| own < other),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_are_alternatives_and_their_requirements_all_hold() {
        let volume = |terms: serde_json::Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {}, "spec": {
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}))
            .unwrap()
        };
        let labels: BTreeMap<String, String> =
            [("zone".into(), "a".into()), ("size".into(), "5".into())].into();
        let fits = |terms| volume_fits_node(&volume(terms), &labels);
        assert!(fits(json!([{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
            {"key": "size", "operator": "Gt", "values": ["4"]}]}])));
        assert!(!fits(json!([{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["b"]}]}])));
        assert!(fits(json!([
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])));
        let named = |operator: &str| {
            fits(json!([{"matchFields": [
                {"key": "metadata.name", "operator": operator, "values": ["n1"]}]}]))
        };
        assert!(!named("In") && named("NotIn"));
        assert!(!fits(json!([{}])));
        assert!(fits(json!([{"matchExpressions": [
            {"key": "gone", "operator": "DoesNotExist"}]}])));
        assert!(volume_fits_node(&PersistentVolume::default(), &labels));
    }
}
