//! Does the pod fit: operating system, resources, affinity, name, host ports, taints.

use super::preempt::{self, Need, Victims};
use super::{AdmissionView, Rejection, is_critical, matches_node, untolerated};
use crate::resources::{Amounts, Counting, Side, amounts, of_pod};
use api::core::v1::{Node, Pod};
use api::pod::{ContainerExt, PodExt};
use std::collections::BTreeMap;
use units::Quantity;

/// Why a pod does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A resource is short.
    Insufficient {
        /// Its name.
        resource: String,
        /// What the pod requests (CPU in milli-units).
        requested: i64,
        /// The other pods' requests.
        used: i64,
        /// The node's allocatable amount.
        capacity: i64,
    },
    /// A named predicate fails.
    Predicate {
        /// Its name.
        name: &'static str,
        /// Why.
        text: &'static str,
    },
}

impl Failure {
    fn rejection(&self) -> Rejection {
        match self {
            Self::Insufficient { resource, requested, used, capacity } => Rejection {
                reason: format!("OutOf{resource}"),
                message: format!(
                    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            },
            Self::Predicate { name, text } => Rejection {
                reason: (*name).to_owned(),
                message: format!("Predicate {name} failed: {text}"),
            },
        }
    }
}

/// Checks a pod; a critical one may preempt others.
pub(super) fn check(view: &AdmissionView<'_>) -> Result<Option<Victims>, Rejection> {
    let Some(node) = view.node else {
        return Err(Rejection::new("InvalidNodeInfo", "Kubelet cannot get node info."));
    };
    check_system(view.pod, node)?;
    let failures = failures(view);
    let Some(first) = failures.first() else { return Ok(None) };
    if !is_critical(view.pod) {
        return Err(first.rejection());
    }
    let other = failures.iter().find(|f| matches!(f, Failure::Predicate { .. }));
    if let Some(other) = other {
        return Err(other.rejection());
    }
    let needs: Vec<Need> = failures
        .iter()
        .filter_map(|f| match f {
            Failure::Insufficient { resource, requested, used, capacity } => Some(Need {
                resource: resource.clone(),
                amount: requested.saturating_sub(capacity.saturating_sub(*used)),
            }),
            Failure::Predicate { .. } => None,
        })
        .collect();
    preempt::choose(view.pod, view.others, &needs).map(Some).map_err(|error| {
        let text = "Unexpected error while attempting to recover from admission failure";
        Rejection::new("UnexpectedAdmissionError", format!("{text}: preemption: {error}"))
    })
}

/// Checks where ending other pods cannot help.
fn check_system(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = pod.spec.as_ref();
    if spec.and_then(|s| s.os.as_ref()).is_some_and(|os| os.name != "linux") {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let policy = spec
        .and_then(|s| s.security_context.as_ref())
        .and_then(|c| c.supplemental_groups_policy.as_deref());
    let supported = node
        .status
        .as_ref()
        .and_then(|s| s.features.as_ref())
        .and_then(|f| f.supplemental_groups_policy);
    if policy == Some("Strict") && supported != Some(true) {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Everything that does not fit, in upstream's order.
pub fn failures(view: &AdmissionView<'_>) -> Vec<Failure> {
    let Some(node) = view.node else { return Vec::new() };
    let mut found = insufficient(view, node);
    let mut predicate = |fails: bool, name, text| {
        if fails {
            found.push(Failure::Predicate { name, text });
        }
    };
    predicate(
        !matches_node(view.pod, node),
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    );
    let wanted = view.pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
    predicate(
        !wanted.is_empty() && Some(wanted) != node.metadata.name.as_deref(),
        "NodeName",
        "node(s) didn't match the requested node name",
    );
    predicate(
        ports_clash(view.pod, view.others),
        "NodePorts",
        "node(s) didn't have free ports for the requested pod ports",
    );
    predicate(
        !view.pod.is_static() && untolerated(view.pod, node, view.config.taint_comparison),
        "TaintToleration",
        "node(s) had taints that the pod didn't tolerate",
    );
    found
}

fn insufficient(view: &AdmissionView<'_>, node: &Node) -> Vec<Failure> {
    let allocatable = amounts(node.status.as_ref().and_then(|s| s.allocatable.as_ref()));
    let mut found = Vec::new();
    let others = i64::try_from(view.others.len()).unwrap_or(i64::MAX);
    let pods = allocatable.get("pods").map_or(0, |q| q.value());
    if others.saturating_add(1) > pods {
        found.push(Failure::Insufficient {
            resource: "pods".to_owned(),
            requested: 1,
            used: others,
            capacity: pods,
        });
    }
    let pod_level = view.config.pod_level_resources;
    let wanted = known_requests(view.pod, &allocatable, pod_level);
    let counting = Counting { pod_level, with_status: true };
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in view.others {
        for (name, quantity) in of_pod(other, Side::Requests, counting) {
            let sum = used.entry(name.clone()).or_default();
            *sum = sum.saturating_add(whole(&name, quantity));
        }
    }
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = wanted.keys().map(String::as_str).filter(|n| !first.contains(n));
    for name in first.into_iter().chain(rest) {
        let requested = wanted.get(name).map_or(0, |q| whole(name, *q));
        let capacity = allocatable.get(name).map_or(0, |q| whole(name, *q));
        let used = used.get(name).copied().unwrap_or_default();
        if requested > 0 && requested > capacity.saturating_sub(used) {
            let resource = name.to_owned();
            found.push(Failure::Insufficient { resource, requested, used, capacity });
        }
    }
    found
}

/// Requests of the pod without extended resources that the node does not know or that claims provide.
fn known_requests(pod: &Pod, allocatable: &Amounts, pod_level: bool) -> Amounts {
    let mut pod = pod.clone();
    let mapped: Vec<(String, String)> = pod
        .status
        .as_ref()
        .and_then(|s| s.extended_resource_claim_status.as_ref())
        .map(|s| &s.request_mappings)
        .into_iter()
        .flatten()
        .map(|m| (m.container_name.clone(), m.resource_name.clone()))
        .collect();
    if let Some(spec) = &mut pod.spec {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            let name = container.name.clone();
            let requests = container.resources.as_mut().and_then(|r| r.requests.as_mut());
            if let Some(requests) = requests {
                requests.retain(|resource, _| {
                    let by_claim = mapped.iter().any(|(c, r)| *c == name && r == resource);
                    let unknown = is_extended(resource) && !allocatable.contains_key(resource);
                    !by_claim && !unknown
                });
            }
        }
    }
    of_pod(&pod, Side::Requests, Counting { pod_level, with_status: false })
}

/// Whether a resource name is an extended resource: qualified and not of Kubernetes itself.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// CPU in milli-units, everything else in whole units.
pub(super) fn whole(name: &str, quantity: Quantity) -> i64 {
    if name == "cpu" { quantity.milli_value() } else { quantity.value() }
}

/// A host port in use: address, protocol, port.
fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.is_sidecar());
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|p| *p > 0)?;
            let text = |value: &Option<String>, default: &str| {
                value.clone().filter(|v| !v.is_empty()).unwrap_or_else(|| default.to_owned())
            };
            Some((text(&port.host_ip, "0.0.0.0"), text(&port.protocol, "TCP"), number))
        })
        .collect()
}

fn ports_clash(pod: &Pod, others: &[&Pod]) -> bool {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return false;
    }
    others.iter().flat_map(|other| host_ports(other)).any(|used| {
        wanted.iter().any(|own| {
            let same_address = own.0 == used.0 || own.0 == "0.0.0.0" || used.0 == "0.0.0.0";
            same_address && own.1 == used.1 && own.2 == used.2
        })
    })
}
