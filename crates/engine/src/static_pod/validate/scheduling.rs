//! Labels and selectors, tolerations, affinity, spreading.

use super::faults::{At, Faults};
use super::{Rules, text};
use api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use api::machinery::apis::meta::v1::LabelSelector;
use std::collections::{BTreeMap, BTreeSet};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn check_labels(labels: &BTreeMap<String, String>, at: &At, list: &mut Faults) {
    for (key, value) in labels {
        list.each(at, key, text::key(key));
        list.each(at, value, text::label_value(value));
    }
}

/// Operators that want values, that want none, and the complaint about any other.
fn check_operator(operator: &str, values: &[String], numbers: bool, at: &At, list: &mut Faults) {
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            list.required(&at.get("values"), why);
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            list.forbidden(&at.get("values"), why);
        }
        "Gt" | "Lt" if numbers => {
            if values.len() != 1 {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                list.required(&at.get("values"), why);
            }
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => list.invalid(&at.get("operator"), other, "not a valid selector operator"),
    }
}

fn check_values(values: &[String], at: &At, list: &mut Faults) {
    for (index, value) in values.iter().enumerate() {
        list.each(&at.get("values").nth(index), value, text::label_value(value));
    }
}

pub(super) fn check_selector(selector: Option<&LabelSelector>, at: &At, list: &mut Faults) {
    let Some(selector) = selector else { return };
    if let Some(labels) = &selector.match_labels {
        check_labels(labels, &at.get("matchLabels"), list);
    }
    for (index, wanted) in selector.match_expressions.iter().flatten().enumerate() {
        let at = at.get("matchExpressions").nth(index);
        let values = wanted.values.as_deref().unwrap_or_default();
        check_operator(&wanted.operator, values, false, &at, list);
        list.each(&at.get("key"), &wanted.key, text::key(&wanted.key));
        check_values(values, &at, list);
    }
}

pub(super) fn check_tolerations(
    tolerations: &[Toleration],
    rules: &Rules,
    at: &At,
    list: &mut Faults,
) {
    for (index, toleration) in tolerations.iter().enumerate() {
        check_toleration(toleration, rules, &at.nth(index), list);
    }
}

fn check_toleration(toleration: &Toleration, rules: &Rules, at: &At, list: &mut Faults) {
    let of = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, operator) = (of(&toleration.key), of(&toleration.operator));
    let (value, effect) = (of(&toleration.value), of(&toleration.effect));
    if !key.is_empty() {
        list.each(&at.get("key"), &key, text::key(&key));
    } else if operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        list.invalid(&at.get("operator"), &operator, why);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        list.invalid(&at.get("effect"), &effect, why);
    }
    match operator.as_str() {
        "Equal" | "" => {
            let wrong = text::label_value(&value);
            if !wrong.is_empty() {
                list.invalid(&at.get("operator"), &value, &wrong.join(";"));
            }
        }
        "Exists" if !value.is_empty() => {
            let why = "value must be empty when `operator` is 'Exists'";
            list.invalid(&at.get("operator"), &value, why);
        }
        "Exists" => {}
        "Lt" | "Gt" if rules.toleration_numbers => {
            if value.parse::<i64>().ok().map(|n| n.to_string()).as_ref() != Some(&value) {
                let why = "must be a valid decimal integer in canonical form";
                list.invalid(&at.get("value"), &value, why);
            }
        }
        "Lt" | "Gt" => {
            let all = ["Equal", "Exists", "Lt", "Gt"];
            list.unsupported(&at.get("operator"), &operator, &all);
        }
        _ => list.unsupported(&at.get("operator"), &operator, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        list.word_if_set(&at.get("effect"), Some(&effect), &EFFECTS);
    }
}

pub(super) fn check_affinity(affinity: &Affinity, at: &At, list: &mut Faults) {
    if let Some(node) = &affinity.node_affinity {
        check_node_affinity(node, &at.get("nodeAffinity"), list);
    }
    if let Some(pods) = &affinity.pod_affinity {
        let at = at.get("podAffinity");
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        check_pod_terms(required, preferred, &at, list);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let at = at.get("podAntiAffinity");
        let required = pods.required_during_scheduling_ignored_during_execution.as_deref();
        let preferred = pods.preferred_during_scheduling_ignored_during_execution.as_deref();
        check_pod_terms(required, preferred, &at, list);
    }
}

fn check_node_affinity(affinity: &NodeAffinity, at: &At, list: &mut Faults) {
    if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
        let at = at.get(REQUIRED).get("nodeSelectorTerms");
        if selector.node_selector_terms.is_empty() {
            list.required(&at, "must have at least one node selector term");
        }
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            check_node_term(term, true, &at.nth(index), list);
        }
    }
    let preferred = &affinity.preferred_during_scheduling_ignored_during_execution;
    for (index, term) in preferred.iter().flatten().enumerate() {
        let at = at.get(PREFERRED).nth(index);
        check_weight(term.weight, &at, list);
        check_node_term(&term.preference, false, &at.get("preference"), list);
    }
}

fn check_weight(weight: i32, at: &At, list: &mut Faults) {
    if !(1..=100).contains(&weight) {
        list.invalid(&at.get("weight"), weight, "must be in the range 1-100");
    }
}

fn check_node_term(term: &NodeSelectorTerm, strict: bool, at: &At, list: &mut Faults) {
    for (index, wanted) in term.match_expressions.iter().flatten().enumerate() {
        let at = at.get("matchExpressions").nth(index);
        let values = wanted.values.as_deref().unwrap_or_default();
        check_operator(&wanted.operator, values, true, &at, list);
        list.each(&at.get("key"), &wanted.key, text::key(&wanted.key));
        if strict {
            check_values(values, &at, list);
        }
    }
    for (index, wanted) in term.match_fields.iter().flatten().enumerate() {
        check_node_field(wanted, &at.get("matchFields").nth(index), list);
    }
}

fn check_node_field(wanted: &NodeSelectorRequirement, at: &At, list: &mut Faults) {
    let values = wanted.values.as_deref().unwrap_or_default();
    match wanted.operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => list.required(
            &at.get("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        other => list.invalid(&at.get("operator"), other, "not a valid selector operator"),
    }
    if wanted.key != "metadata.name" {
        list.invalid(&at.get("key"), &wanted.key, "not a valid field selector key");
        return;
    }
    for (index, value) in values.iter().enumerate() {
        list.each(&at.get("values").nth(index), value, text::subdomain(value));
    }
}

fn check_pod_terms(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    at: &At,
    list: &mut Faults,
) {
    for (index, term) in required.into_iter().flatten().enumerate() {
        check_pod_term(term, &at.get(REQUIRED).nth(index), list);
    }
    for (index, term) in preferred.into_iter().flatten().enumerate() {
        let at = at.get(PREFERRED).nth(index);
        check_weight(term.weight, &at, list);
        check_pod_term(&term.pod_affinity_term, &at.get("podAffinityTerm"), list);
    }
}

fn check_pod_term(term: &PodAffinityTerm, at: &At, list: &mut Faults) {
    check_selector(term.label_selector.as_ref(), &at.get("labelSelector"), list);
    check_selector(term.namespace_selector.as_ref(), &at.get("namespaceSelector"), list);
    for name in term.namespaces.iter().flatten() {
        list.each(&at.get("namespace"), name, text::label(name));
    }
    let matching = term.match_label_keys.as_deref().unwrap_or_default();
    let other = term.mismatch_label_keys.as_deref().unwrap_or_default();
    check_merged_keys(matching, other, term.label_selector.as_ref(), at, list);
    if term.topology_key.is_empty() {
        list.required(&at.get("topologyKey"), "can not be empty");
    }
    list.each(&at.get("topologyKey"), &term.topology_key, text::key(&term.topology_key));
}

/// Label keys whose selectors were merged into the selector already.
fn check_merged_keys(
    matching: &[String],
    other: &[String],
    selector: Option<&LabelSelector>,
    at: &At,
    list: &mut Faults,
) {
    for (name, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", other)] {
        let at = at.get(name);
        if !keys.is_empty() && selector.is_none() {
            list.forbidden(&at, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            list.each(&at.nth(index), key, text::key(key));
        }
    }
    if let Some(selector) = selector {
        let mut seen: BTreeSet<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for wanted in selector.match_expressions.iter().flatten() {
            let place = matching.iter().rposition(|key| *key == wanted.key);
            if let Some(index) = place.filter(|_| seen.contains(wanted.key.as_str())) {
                let why = "exists in both matchLabelKeys and labelSelector";
                list.invalid(&at.nth(index), &wanted.key, why);
            }
            seen.insert(&wanted.key);
        }
    }
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| other.contains(key)) {
        let why = "exists in both matchLabelKeys and mismatchLabelKeys";
        list.invalid(&at.get("matchLabelKeys").nth(index), key, why);
    }
}

/// Label keys where selectors are not merged: none may be in the selector.
fn check_separate_keys(
    keys: &[String],
    selector: Option<&LabelSelector>,
    at: &At,
    list: &mut Faults,
) {
    if keys.is_empty() {
        return;
    }
    if selector.is_none() {
        list.forbidden(at, "must not be specified when labelSelector is not set");
    }
    let labels = selector.and_then(|s| s.match_labels.as_ref());
    let expressions = selector.and_then(|s| s.match_expressions.as_deref()).unwrap_or_default();
    for (index, key) in keys.iter().enumerate() {
        list.each(&at.nth(index), key, text::key(key));
        let taken = labels.is_some_and(|l| l.contains_key(key));
        if taken || expressions.iter().any(|e| e.key == *key) {
            let why = "exists in both matchLabelKeys and labelSelector";
            list.invalid(&at.nth(index), key, why);
        }
    }
}

pub(super) fn check_spread(
    constraints: &[TopologySpreadConstraint],
    rules: &Rules,
    at: &At,
    list: &mut Faults,
) {
    for (index, constraint) in constraints.iter().enumerate() {
        let at = at.nth(index);
        let unsatisfiable = constraint.when_unsatisfiable.as_str();
        if constraint.max_skew <= 0 {
            list.invalid(&at.get("maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        if constraint.topology_key.is_empty() {
            list.required(&at.get("topologyKey"), "can not be empty");
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        list.word_if_set(&at.get("whenUnsatisfiable"), Some(unsatisfiable), &actions);
        let pair =
            |c: &TopologySpreadConstraint| (c.topology_key.clone(), c.when_unsatisfiable.clone());
        if constraints.iter().skip(index + 1).any(|c| pair(c) == pair(constraint)) {
            let value = format!("{{{}, {unsatisfiable}}}", constraint.topology_key);
            list.duplicate(&at.get("{topologyKey, whenUnsatisfiable}"), &value);
        }
        if let Some(domains) = constraint.min_domains {
            if domains <= 0 {
                list.invalid(&at.get("minDomains"), domains, "must be greater than zero");
            }
            if unsatisfiable != "DoNotSchedule" {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {unsatisfiable}"
                );
                list.invalid(&at.get("minDomains"), domains, &why);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            list.word_if_set(&at.get(name), policy.as_deref(), &["Honor", "Ignore"]);
        }
        let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
        let selector = constraint.label_selector.as_ref();
        if rules.merged_label_keys {
            check_merged_keys(keys, &[], selector, &at, list);
        } else {
            check_separate_keys(keys, selector, &at.get("matchLabelKeys"), list);
        }
        check_selector(selector, &at.get("labelSelector"), list);
    }
}
