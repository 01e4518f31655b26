//! A node's first object, and corrections to one that exists already.

use super::facts::{NodeFacts, NodeMemory, NodeSettings};
use super::resources::{is_extended, is_huge_page, put};
use super::{NodeUpdate, set_status, status_patch};
use api::core::v1::{Node, NodeStatus, Taint};
use api::machinery::apis::meta::v1::ObjectMeta;
use jiff::Timestamp;
use std::collections::BTreeMap;
use units::Quantity;

const ATTACH_ANNOTATION: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels that are kept right on an existing node.
const DEFAULT_LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The node to register, with its whole status.
pub fn initial_node(
    settings: &NodeSettings,
    facts: &NodeFacts,
    memory: NodeMemory,
    now: Timestamp,
) -> NodeUpdate {
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", settings.hostname.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", settings.architecture.as_str()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", settings.architecture.as_str()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect();
    labels.extend(settings.labels.clone());
    let mut taints = settings.taints.clone();
    if settings.external_cloud {
        taints.push(Taint {
            key: UNINITIALIZED_TAINT.into(),
            value: Some("true".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    let annotations = settings
        .controller_attach
        .then(|| BTreeMap::from([(ATTACH_ANNOTATION.to_owned(), "true".to_owned())]));
    let mut node = Node {
        metadata: ObjectMeta {
            name: Some(settings.node_name.clone()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    let spec = node.spec.get_or_insert_default();
    spec.taints = (!taints.is_empty()).then_some(taints);
    let provider = &settings.provider_id;
    spec.provider_id = (!provider.is_empty()).then(|| provider.clone());
    let mut update =
        NodeUpdate { node, changed: true, events: Vec::new(), faults: Vec::new(), memory };
    set_status(&mut update, settings, facts, now);
    update
}

/// What to send so that `existing` agrees with `initial`; `None` if it does.
pub fn existing_node_patch(
    existing: &Node,
    initial: &Node,
    facts: &NodeFacts,
) -> Option<super::NodePatch> {
    let mut node = existing.clone();
    reconcile_annotation(&mut node, initial);
    reconcile_labels(&mut node, initial);
    let status = node.status.get_or_insert_default();
    let wanted = initial.status.clone().unwrap_or_default();
    default_resources(status, &wanted);
    // Upstream checks whether the plugin folder is empty; its own socket is in it once the runtime was ready.
    if facts.devices.folder_was_empty && !facts.runtime.was_ready {
        zero_extended(status);
    }
    reconcile_huge_pages(status, &wanted);
    status_patch(existing, &node)
}

fn reconcile_annotation(node: &mut Node, initial: &Node) {
    let of = |n: &Node| n.metadata.annotations.as_ref()?.get(ATTACH_ANNOTATION).cloned();
    match of(initial) {
        Some(value) => {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(ATTACH_ANNOTATION.into(), value);
        }
        None => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(ATTACH_ANNOTATION);
            }
        }
    }
}

fn reconcile_labels(node: &mut Node, initial: &Node) {
    let wanted = initial.metadata.labels.clone().unwrap_or_default();
    let labels = node.metadata.labels.get_or_insert_default();
    for label in DEFAULT_LABELS {
        match wanted.get(label).map(String::as_str) {
            None => {}
            Some("") => {
                labels.remove(label);
            }
            Some(value) => {
                labels.insert(label.into(), value.into());
            }
        }
    }
}

fn default_resources(status: &mut NodeStatus, wanted: &NodeStatus) {
    if status.capacity.as_ref().is_none_or(BTreeMap::is_empty) {
        status.capacity.clone_from(&wanted.capacity);
    }
    if status.allocatable.as_ref().is_none_or(BTreeMap::is_empty) {
        status.allocatable.clone_from(&wanted.allocatable);
    }
}

fn zero_extended(status: &mut NodeStatus) {
    let capacity = status.capacity.get_or_insert_default();
    let names: Vec<String> = capacity.keys().filter(|n| is_extended(n)).cloned().collect();
    for name in names {
        put(status.capacity.get_or_insert_default(), &name, Quantity::ZERO);
        put(status.allocatable.get_or_insert_default(), &name, Quantity::ZERO);
    }
}

fn reconcile_huge_pages(status: &mut NodeStatus, wanted: &NodeStatus) {
    let lists = [
        (status.capacity.get_or_insert_default(), wanted.capacity.as_ref()),
        (status.allocatable.get_or_insert_default(), wanted.allocatable.as_ref()),
    ];
    for (list, wanted) in lists {
        let Some(wanted) = wanted else { continue };
        list.retain(|name, _| !is_huge_page(name) || wanted.contains_key(name));
        for (name, amount) in wanted.iter().filter(|(name, _)| is_huge_page(name)) {
            list.insert(name.clone(), amount.clone());
        }
    }
}
