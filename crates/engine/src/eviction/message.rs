//! The message of an eviction.

use super::threshold::Threshold;
use super::{Observations, PodUsage};
use crate::resources::{Side, side_of};
use api::core::v1::Pod;
use api::pod::PodExt;
use std::collections::BTreeMap;
use units::Quantity;

/// Message of event and status, and the event's annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionText {
    /// Sentences, each ending in a full stop and a space.
    pub message: String,
    /// Annotations for other tools.
    pub annotations: BTreeMap<String, String>,
}

/// The text for a pod that is evicted because of these thresholds (the most urgent first).
pub fn eviction_text(
    pod: &Pod,
    usage: Option<&PodUsage>,
    thresholds: &[Threshold],
    observed: &Observations,
) -> EvictionText {
    let resource = thresholds.first().map(|t| t.signal.resource()).unwrap_or_default();
    let mut message = format!("The node was low on resource: {resource}. ");
    let cause = thresholds.iter().filter(|t| t.signal.resource() == resource).find_map(|t| {
        let reading = observed.get(&t.signal)?;
        Some((t.value.quantity(reading.capacity), reading.available))
    });
    if let Some((value, available)) = cause {
        message.push_str(&format!("Threshold quantity: {value}, available: {available}. "));
    }
    let mut annotations = BTreeMap::new();
    let Some(usage) = usage else { return EvictionText { message, annotations } };

    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let pod_request = side_of(own, Side::Requests).get("memory").copied();
    if let (true, Some(request), Some(used)) = (resource == "memory", pod_request, usage.memory) {
        let name = pod.name_str();
        let used = bytes(used);
        message.push_str(&sentence("Pod", name, used, request, resource));
        annotations.insert("offending_pod".to_owned(), name.to_owned());
        annotations.insert("offending_pod_usage".to_owned(), used.to_string());
    }
    let mut names = Vec::new();
    let mut amounts = Vec::new();
    for container in &usage.containers {
        let Some(request) = request_of(pod, &container.name, resource) else { continue };
        let used = match resource {
            "memory" => container.memory,
            "ephemeral-storage" => {
                let parts = container.root_fs.bytes.zip(container.logs.bytes);
                parts.map(|(root, logs)| root.saturating_add(logs))
            }
            _ => None,
        };
        if let Some(used) = used.map(bytes).filter(|used| *used > request) {
            message.push_str(&sentence("Container", &container.name, used, request, resource));
            names.push(container.name.clone());
            amounts.push(used.to_string());
        }
    }
    annotations.insert("offending_containers".to_owned(), names.join(","));
    annotations.insert("offending_containers_usage".to_owned(), amounts.join(","));
    annotations.insert("starved_resource".to_owned(), resource.to_owned());
    EvictionText { message, annotations }
}

/// A container's request; `None` if the pod has no such container.
fn request_of(pod: &Pod, name: &str, resource: &str) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let container = all.find(|c| c.name == name)?;
    let requests = side_of(container.resources.as_ref(), Side::Requests);
    Some(requests.get(resource).copied().unwrap_or(Quantity::ZERO))
}

fn bytes(value: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(value).unwrap_or(i64::MAX))
}

fn sentence(what: &str, name: &str, used: Quantity, request: Quantity, resource: &str) -> String {
    format!(
        "{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
    )
}
