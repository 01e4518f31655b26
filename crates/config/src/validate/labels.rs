//! Labels a node may give itself (`--node-labels`).

use super::names::{label_value_faults, qualified_name_faults};
use crate::text;
use std::collections::BTreeMap;

/// Keys in the Kubernetes namespaces that a node may set, sorted.
const ALLOWED: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const ALLOWED_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The first kind of fault in a set of node labels, as upstream words it.
pub(crate) fn node_label_fault(labels: &BTreeMap<String, String>) -> Option<String> {
    let refused: Vec<&str> =
        labels.keys().map(String::as_str).filter(|key| reserved(key) && !allowed(key)).collect();
    if !refused.is_empty() {
        return Some(format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: {}\n\
             --node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix ({}) \
             or be in the specifically allowed set ({})",
            text::list(&refused),
            ALLOWED_NAMESPACES.join(", "),
            ALLOWED.join(", ")
        ));
    }
    let mut invalid: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (key, value) in labels {
        let found = [(key, qualified_name_faults(key)), (value, label_value_faults(value))];
        for (text, faults) in found {
            if !faults.is_empty() {
                invalid.entry(text).or_default().extend(faults);
            }
        }
    }
    if invalid.is_empty() {
        return None;
    }
    let told: Vec<String> =
        invalid.iter().map(|(text, faults)| format!("'{text}' - {}", faults.join(", "))).collect();
    Some(format!("invalid node labels: {}", told.join("; ")))
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn within(namespace: &str, domain: &str) -> bool {
    namespace == domain
        || namespace.strip_suffix(domain).is_some_and(|prefix| prefix.ends_with('.'))
}

fn reserved(key: &str) -> bool {
    ["kubernetes.io", "k8s.io"].iter().any(|domain| within(namespace(key), domain))
}

fn allowed(key: &str) -> bool {
    ALLOWED.contains(&key) || ALLOWED_NAMESPACES.iter().any(|domain| within(namespace(key), domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(labels: &[(&str, &str)]) -> Option<String> {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        node_label_fault(&labels)
    }

    #[test]
    fn a_node_may_set_its_own_labels() {
        for key in ALLOWED {
            assert_eq!(fault(&[(key, "x")]), None, "{key}");
        }
        let own = ["role", "example.com/role", "node.kubernetes.io/x", "a.kubelet.kubernetes.io/x"];
        for key in own {
            assert_eq!(fault(&[(key, "x")]), None, "{key}");
        }
    }

    #[test]
    fn other_kubernetes_labels_are_refused() {
        assert_eq!(
            fault(&[("node-role.kubernetes.io/master", ""), ("x.k8s.io/y", "")]).unwrap(),
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: \
             [node-role.kubernetes.io/master x.k8s.io/y]\n--node-labels in the 'kubernetes.io' \
             namespace must begin with an allowed prefix (kubelet.kubernetes.io, \
             node.kubernetes.io) or be in the specifically allowed set (beta.kubernetes.io/arch, \
             beta.kubernetes.io/instance-type, beta.kubernetes.io/os, \
             failure-domain.beta.kubernetes.io/region, failure-domain.beta.kubernetes.io/zone, \
             kubernetes.io/arch, kubernetes.io/hostname, kubernetes.io/os, \
             node.kubernetes.io/instance-type, topology.kubernetes.io/region, \
             topology.kubernetes.io/zone)"
        );
        assert!(fault(&[("kubernetes.io/x", "")]).is_some());
        assert_eq!(fault(&[("notkubernetes.io/x", "")]), None);
    }

    #[test]
    fn bad_syntax_is_told_per_text() {
        let told = fault(&[("a b", "ok"), ("c", "d e")]).unwrap();
        assert!(
            told.starts_with("invalid node labels: 'a b' - name part must consist of"),
            "{told}"
        );
        assert!(told.contains("; 'd e' - a valid label must be an empty string"), "{told}");
    }
}
