//! The node object: what a new one looks like, what its status should be now, what to send.
//!
//! Owns: every rule of `.status` (upstream: `nodestatus.Setter`s), registration's reconciliation
//! with an existing object, and the patch between two versions.
//!
//! Promises: all setters run even if one has a fault; faults are returned as texts for the log.
//! Times are whole seconds, as the API keeps them.

mod addresses;
mod conditions;
mod facts;
mod patch;
mod register;
mod reserve;
mod resources;
mod runtime_version;
#[cfg(test)]
mod tests;

pub use facts::{
    AddressFacts, DeviceFacts, HugePageFacts, ImageFacts, MachineFacts, NodeFacts, NodeMemory,
    NodeSettings, Pressures, RuntimeFacts, RuntimeHandlerFacts,
};
pub use patch::{NodePatch, status_patch};
pub use register::{existing_node_patch, initial_node};
pub use reserve::{Reservation, Threshold};

use api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSwapStatus,
};
use jiff::Timestamp;
use serde_json::Value;

const OS_LABEL: &str = "kubernetes.io/os";
const ARCH_LABEL: &str = "kubernetes.io/arch";
/// Names shown per image.
const MAX_IMAGE_NAMES: usize = 5;

/// Severity of a [`StatusEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusEventSeverity {
    /// As intended.
    Normal,
    /// Needs attention.
    Warning,
}

/// An event about the node that a status computation calls for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusEvent {
    /// Normal or Warning.
    pub severity: StatusEventSeverity,
    /// The reason.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

impl StatusEvent {
    fn status(node_name: &str, reason: &'static str) -> Self {
        Self {
            severity: StatusEventSeverity::Normal,
            reason,
            message: format!("Node {node_name} status is now: {reason}"),
        }
    }
}

/// The outcome of one computation.
#[derive(Debug, Clone)]
pub struct NodeUpdate {
    /// The node as it should be.
    pub node: Node,
    /// Whether it differs from the original in more than heartbeat times.
    pub changed: bool,
    /// Events to post.
    pub events: Vec<StatusEvent>,
    /// What could not be set, for the log.
    pub faults: Vec<String>,
    /// What to remember for the next computation.
    pub memory: NodeMemory,
}

/// The node's new state, seen from `original` (upstream: `Kubelet.updateNode`).
pub fn update(
    original: &Node,
    settings: &NodeSettings,
    facts: &NodeFacts,
    memory: NodeMemory,
    now: Timestamp,
) -> NodeUpdate {
    let mut node = original.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    let mut labels_changed = false;
    for (label, wanted) in [(OS_LABEL, "linux"), (ARCH_LABEL, settings.architecture.as_str())] {
        if labels.get(label).map(String::as_str) != Some(wanted) {
            labels.insert(label.into(), wanted.into());
            labels_changed = true;
        }
    }
    let mut update =
        NodeUpdate { node, changed: false, events: Vec::new(), faults: Vec::new(), memory };
    set_status(&mut update, settings, facts, now);
    let cidrs = original.spec.as_ref().and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let cidrs = cidrs.join(",");
    let cidr_changed = !cidrs.is_empty() && update.memory.pod_cidr != cidrs;
    if cidr_changed {
        update.memory.pod_cidr = cidrs;
    }
    update.changed =
        labels_changed || cidr_changed || patch::status_differs(original, &update.node);
    update
}

/// Runs every setter in upstream's order.
fn set_status(update: &mut NodeUpdate, settings: &NodeSettings, facts: &NodeFacts, now: Timestamp) {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    if let Err(fault) = addresses::set(&mut update.node, settings, &facts.addresses) {
        update.faults.push(fault);
    }
    set_machine(update, settings, facts);
    set_versions(&mut update.node, settings, facts);
    let status = update.node.status.get_or_insert_default();
    status.daemon_endpoints = Some(NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint { port: settings.port }),
    });
    set_images(&mut update.node, settings, facts);
    let status = update.node.status.get_or_insert_default();
    if settings.report_runtime_handlers {
        status.runtime_handlers = Some(handlers(&facts.runtime.handlers));
    }
    if let (true, Some(supported)) =
        (settings.report_features, facts.runtime.supplemental_groups_policy)
    {
        status.features = Some(NodeFeatures { supplemental_groups_policy: Some(supported) });
    }
    conditions::set(update, settings, facts, now);
    let status = update.node.status.get_or_insert_default();
    if let Some(volumes) = &facts.volumes_in_use {
        status.volumes_in_use = (!volumes.is_empty()).then(|| volumes.clone());
    }
    if let Some(features) = &settings.declared_features {
        status.declared_features = (!features.is_empty()).then(|| features.clone());
    }
    let unschedulable = update.node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or_default();
    if update.memory.unschedulable != unschedulable {
        let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
        update.events.push(StatusEvent::status(&settings.node_name, reason));
        update.memory.unschedulable = unschedulable;
    }
}

fn set_machine(update: &mut NodeUpdate, settings: &NodeSettings, facts: &NodeFacts) {
    let status = update.node.status.get_or_insert_default();
    resources::set(status, settings, facts);
    let Some(machine) = &facts.machine else {
        update.faults.push("machine could not be read".into());
        return;
    };
    let info = status.node_info.get_or_insert_default();
    info.machine_id.clone_from(&machine.machine_id);
    info.system_uuid.clone_from(&machine.system_uuid);
    let rebooted = !info.boot_id.is_empty() && info.boot_id != machine.boot_id;
    info.boot_id.clone_from(&machine.boot_id);
    if settings.report_swap && machine.swap_bytes > 0 {
        info.swap = Some(NodeSwapStatus { capacity: i64::try_from(machine.swap_bytes).ok() });
    }
    if rebooted && !update.memory.reboot_reported {
        update.memory.reboot_reported = true;
        update.events.push(StatusEvent {
            severity: StatusEventSeverity::Warning,
            reason: "Rebooted",
            message: format!(
                "Node {} has been rebooted, boot id: {}",
                settings.node_name, machine.boot_id
            ),
        });
    }
}

fn set_versions(node: &mut Node, settings: &NodeSettings, facts: &NodeFacts) {
    let info = node.status.get_or_insert_default().node_info.get_or_insert_default();
    info.kernel_version.clone_from(&facts.kernel_version);
    info.os_image.clone_from(&facts.os_image);
    let version = facts.runtime.version.as_deref().and_then(runtime_version::shown);
    let version = version.as_deref().unwrap_or("Unknown");
    info.container_runtime_version = format!("{}://{version}", facts.runtime.name);
    info.kubelet_version.clone_from(&settings.kubelet_version);
    info.kube_proxy_version.clear();
    info.operating_system = "linux".into();
    info.architecture.clone_from(&settings.architecture);
}

/// Biggest first, as many as configured, digests before tags.
fn set_images(node: &mut Node, settings: &NodeSettings, facts: &NodeFacts) {
    let mut images: Vec<&ImageFacts> = facts.images.iter().collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| b.id.cmp(&a.id)));
    if let Ok(limit) = usize::try_from(settings.max_images) {
        images.truncate(limit);
    }
    let shown = images.into_iter().map(|image| {
        let names = image.digests.iter().chain(&image.tags).take(MAX_IMAGE_NAMES).cloned();
        ContainerImage { names: Some(names.collect()), size_bytes: Some(image.size_bytes) }
    });
    let shown: Vec<ContainerImage> = shown.collect();
    node.status.get_or_insert_default().images = (!shown.is_empty()).then_some(shown);
}

fn handlers(facts: &[RuntimeHandlerFacts]) -> Vec<NodeRuntimeHandler> {
    let mut sorted: Vec<&RuntimeHandlerFacts> = facts.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let shown = sorted.into_iter().map(|handler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    });
    shown.collect()
}

fn to_value(node: &Node) -> Value {
    serde_json::to_value(node).unwrap_or_default()
}
