//! What we write stays within what a node may write of itself (API server: admission plugin NodeRestriction).
//!
//! Negative tests of CVE-2025-5187 (a node that owns itself by an ownerReference is deleted with its owner, and
//! comes back without what others put on it) and CVE-2025-4563 (a mirror pod with claims gets devices nobody
//! gave it): whatever the API server holds and whatever a manifest says, our patches carry no
//! ownerReferences, no specification and no labels but a node's own, and our mirror pods are ours alone.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test")]

use api::core::v1::{Node, Pod, PodStatus};
use engine::node::{
    AddressFacts, DeviceFacts, MachineFacts, NodeFacts, NodeMemory, NodeSettings,
    existing_node_patch, initial_node, status_patch, update,
};
use engine::static_pod::{StaticOrigin, StaticPodError, StaticSettings, mirror_of, prepare};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The only annotation of a node that is ours.
const ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Labels in Kubernetes' namespaces that a node may set (kubelet: `kubeletLabels`).
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Labels of others, some of which steer pods that only trusted nodes should get.
const FOREIGN_LABELS: [&str; 7] = [
    "node-restriction.kubernetes.io/trusted",
    "team.node-restriction.kubernetes.io/pci",
    "node-role.kubernetes.io/control-plane",
    "cloud.k8s.io/pool",
    "kubernetes.io/role",
    "example.com/rack",
    "plain",
];

/// Whether a node may change the label (API server: `getForbiddenLabels`).
fn may_change(label: &str) -> bool {
    let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
    let within = |domain: &str| namespace == domain || namespace.ends_with(&format!(".{domain}"));
    let kubernetes = within("kubernetes.io") || within("k8s.io");
    let own = OWN_LABELS.contains(&label)
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io");
    !within("node-restriction.kubernetes.io") && (!kubernetes || own)
}

fn labels(pool: &'static [&'static str]) -> impl Strategy<Value = BTreeMap<String, String>> {
    let value = prop::sample::select(vec!["", "linux", "amd64", "node1", "x"]);
    let entry = (prop::sample::select(pool.to_vec()), value)
        .prop_map(|(key, value)| (key.to_owned(), value.to_owned()));
    prop::collection::vec(entry, 0..6).prop_map(|all| all.into_iter().collect())
}

fn all_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    (labels(&OWN_LABELS), labels(&FOREIGN_LABELS)).prop_map(|(mut own, foreign)| {
        own.extend(foreign);
        own
    })
}

fn owners() -> impl Strategy<Value = Value> {
    let owner =
        (prop::sample::select(vec!["Node", "Pod", "ConfigMap"]), "[a-z]{1,4}", any::<bool>());
    let owner = owner.prop_map(|(kind, name, block)| {
        json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": name,
               "controller": true, "blockOwnerDeletion": block})
    });
    prop::collection::vec(owner, 0..3).prop_map(Value::from)
}

/// A node as the API server may hold it, after others have been at it.
fn existing() -> impl Strategy<Value = Node> {
    let annotations = prop::sample::select(vec![
        json!({}),
        json!({ATTACH: "true"}),
        json!({ATTACH: "false", "example.com/note": "x"}),
    ]);
    let status = prop::sample::select(vec![
        json!({}),
        json!({"capacity": {"cpu": "1", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"},
               "conditions": [{"type": "Ready", "status": "True"}, {"type": "Foreign", "status": "True"}],
               "config": {"error": "x"}, "phase": "Running"}),
    ]);
    (all_labels(), annotations, owners(), any::<bool>(), status).prop_map(
        |(labels, annotations, owners, tainted, status)| {
            let taints = json!([{"key": "dedicated", "effect": "NoSchedule"}]);
            let node = json!({
                "metadata": {"name": "node1", "uid": "u1", "resourceVersion": "7", "labels": labels,
                    "annotations": annotations, "ownerReferences": owners,
                    "finalizers": ["example.com/hold"]},
                "spec": {"taints": if tainted { taints } else { json!([]) },
                    "unschedulable": tainted, "podCIDRs": ["10.0.0.0/24"], "providerID": "p"},
                "status": status,
            });
            serde_json::from_value(node).unwrap()
        },
    )
}

fn settings() -> impl Strategy<Value = NodeSettings> {
    // What --node-labels may say: the configuration refuses the rest of Kubernetes' namespaces.
    let own = labels(&OWN_LABELS);
    (own, any::<bool>(), any::<bool>()).prop_map(|(labels, attach, cloud)| NodeSettings {
        node_name: "node1".into(),
        hostname: "node1".into(),
        architecture: "amd64".into(),
        kubelet_version: "v1.36.4".into(),
        external_cloud: cloud,
        controller_attach: attach,
        labels,
        max_pods: 110,
        port: 10250,
        max_images: 50,
        ..NodeSettings::default()
    })
}

fn facts(devices: bool) -> NodeFacts {
    NodeFacts {
        machine: Some(MachineFacts { cores: 2, memory_bytes: 1 << 32, ..MachineFacts::default() }),
        addresses: AddressFacts {
            default_route: Some("192.0.2.2".parse().unwrap()),
            ..AddressFacts::default()
        },
        devices: DeviceFacts { folder_was_empty: devices, ..DeviceFacts::default() },
        ..NodeFacts::default()
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect()
}

/// What NodeRestriction and we ourselves hold a patch of the node to.
fn assert_own(patch: &Value) {
    assert!(keys(patch).iter().all(|key| ["metadata", "status"].contains(key)), "{patch}");
    let metadata = &patch["metadata"];
    assert!(keys(metadata).iter().all(|key| ["labels", "annotations"].contains(key)), "{patch}");
    assert!(keys(&metadata["annotations"]).iter().all(|key| *key == ATTACH), "{patch}");
    for label in keys(&metadata["labels"]) {
        assert!(may_change(label) && !FOREIGN_LABELS.contains(&label), "{label}: {patch}");
    }
}

proptest! {
    #[test]
    fn no_patch_of_a_node_touches_its_owners_its_spec_or_labels_of_others(
        node in existing(), settings in settings(), devices in any::<bool>(),
    ) {
        let (facts, now) = (facts(devices), Timestamp::from_second(1_800_000_000).unwrap());
        let initial = initial_node(&settings, &facts, NodeMemory::default(), now).node;
        if let Some(patch) = existing_node_patch(&node, &initial, &facts) {
            assert_own(&patch.0);
        }
        let next = update(&node, &settings, &facts, NodeMemory::default(), now).node;
        prop_assert_eq!(&next.metadata.owner_references, &node.metadata.owner_references);
        prop_assert_eq!(&next.spec, &node.spec);
        if let Some(patch) = status_patch(&node, &next) {
            assert_own(&patch.0);
        }
        // Even if an object that was changed in between came back with other owners.
        let mut stripped = next.clone();
        stripped.metadata.owner_references = None;
        stripped.metadata.finalizers = None;
        stripped.spec = None;
        if let Some(patch) = status_patch(&node, &stripped) {
            assert_own(&patch.0);
        }
    }

    #[test]
    fn a_new_node_has_no_owner_and_only_labels_of_its_own(settings in settings()) {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let node = initial_node(&settings, &facts(true), NodeMemory::default(), now).node;
        prop_assert!(node.metadata.owner_references.is_none());
        prop_assert!(node.metadata.finalizers.is_none());
        prop_assert!(node.spec.as_ref().unwrap().config_source.is_none());
        for label in node.metadata.labels.unwrap().keys() {
            prop_assert!(may_change(label), "{}", label);
        }
    }

    #[test]
    fn a_mirror_pod_has_its_node_for_its_only_owner_whatever_the_manifest_says(
        owners in owners(), labels in all_labels(),
    ) {
        let pod = manifest(&json!({"ownerReferences": owners, "labels": labels}), &json!({}));
        let Ok(pod) = prepare(pod, &StaticOrigin::File("/m/p.json"), &rules(true)) else {
            // Broken references are refused before.
            return Ok(());
        };
        let mirror = mirror_of(&pod, "node1", "node-uid").unwrap();
        let owners = serde_json::to_value(mirror.metadata.owner_references).unwrap();
        let own = json!([{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "node-uid",
                          "controller": true}]);
        prop_assert_eq!(owners, own);
        let spec = mirror.spec.unwrap();
        prop_assert_eq!(spec.node_name.as_deref(), Some("node1"));
    }

    #[test]
    fn a_patch_of_a_pod_is_its_status_and_the_uid_that_guards_it(
        before in pod_status(), after in pod_status(),
    ) {
        let Some(patch) = engine::status::patch::status_patch("u1", &before, &after) else {
            return Ok(());
        };
        prop_assert_eq!(keys(&patch), ["metadata", "status"]);
        prop_assert_eq!(&patch["metadata"], &json!({"uid": "u1"}));
    }
}

fn pod_status() -> impl Strategy<Value = PodStatus> {
    let phase = prop::sample::select(vec!["Pending", "Running", "Failed"]);
    let conditions = prop::collection::vec(
        (prop::sample::select(vec!["Ready", "Initialized", "example.com/gate"]), any::<bool>()),
        0..3,
    );
    (phase, conditions, prop::option::of("[a-z]{1,5}")).prop_map(|(phase, conditions, reason)| {
        let conditions: BTreeMap<&str, bool> = conditions.into_iter().collect();
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|(name, holds)| json!({"type": name, "status": if holds { "True" } else { "False" }}))
            .collect();
        let status = json!({"phase": phase, "conditions": conditions, "reason": reason});
        serde_json::from_value(status).unwrap()
    })
}

fn rules(refuse_api_references: bool) -> StaticSettings {
    StaticSettings {
        node_name: "node1".into(),
        refuse_api_references,
        rules: engine::static_pod::Rules::default(),
    }
}

fn manifest(metadata: &Value, spec: &Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "a", "image": "i"}]}});
    for (part, more) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in more.as_object().unwrap() {
            pod[part][key] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

/// CVE-2025-4563: also where static pods may refer to the API, they may not have claims.
#[test]
fn a_manifest_with_claims_is_never_a_static_pod() {
    let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]});
    let refused = |refuse| {
        prepare(manifest(&json!({}), &spec), &StaticOrigin::File("/m/p.json"), &rules(refuse))
            .unwrap_err()
    };
    assert_eq!(refused(true), StaticPodError::ApiReference("resourceclaims".to_owned()));
    assert_eq!(refused(false), StaticPodError::NeverAllowed("ResourceClaims"));
}
