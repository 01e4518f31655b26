//! Which containers need other resources than were last applied, and how they get them.
use super::view::{
    Actuated, ContainerKind, ContainerUpdate, PodGates, PodView, ResizePlan, ResizeResource,
    ResourceAmounts,
};
use crate::runtime::{ContainerView, RuntimePod};
use api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use api::machinery::api::resource::Quantity;
use api::pod::ContainerExt;
use std::collections::BTreeMap;

/// Whether a running container has other resources than it was allocated (upstream: `IsPodResizeInProgress`). A
/// container that does not run gets them when it starts, and init containers are ignored.
pub fn in_progress(pod: &Pod, runtime: &RuntimePod, actuated: &Actuated, gates: &PodGates) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| c.is_sidecar());
    let differs = spec.containers.iter().chain(sidecars).any(|container| {
        let (desired, current) = amounts_of(actuated, gates, spec, container);
        let runs = runtime.newest(&container.name).is_some_and(ContainerView::is_running);
        runs && desired != current
    });
    let pod_level = gates.resize_pod_level && spec.resources.is_some() && {
        let has = actuated.pod_level.as_ref();
        has.is_some() && own_amounts(spec.resources.as_ref()) != own_amounts(has)
    };
    gates.resize && (differs || pod_level)
}

/// Whether a running container must be restarted for its resources to take effect. Without a record of the applied
/// resources nothing is restarted: they are applied in place again.
pub(super) fn needs_restart(view: &PodView<'_>, spec: &PodSpec, container: &Container) -> bool {
    if !view.gates.resize || !view.actuated.containers.contains_key(&container.name) {
        return false;
    }
    let (desired, current) = amounts(view, spec, container);
    let restarts = |resource: &str| {
        container
            .resize_policy
            .iter()
            .flatten()
            .find(|policy| policy.resource_name == resource)
            .is_some_and(|policy| policy.restart_policy == "RestartContainer")
    };
    let cpu = desired.cpu_limit_milli != current.cpu_limit_milli
        || desired.cpu_request_milli != current.cpu_request_milli;
    let memory = desired.memory_limit != current.memory_limit
        || desired.memory_request != current.memory_request;
    (cpu && restarts("cpu")) || (memory && restarts("memory"))
}

/// Adds what changes in place for a running container: decreases in front, increases at the end.
pub(super) fn mark_updates(
    view: &PodView<'_>,
    spec: &PodSpec,
    container: &Container,
    kind: ContainerKind,
    running: &ContainerView,
    resize: &mut ResizePlan,
) {
    if !view.gates.resize {
        return;
    }
    let (desired, current) = amounts(view, spec, container);
    let update = ContainerUpdate {
        id: running.id.clone(),
        name: container.name.clone(),
        kind,
        desired,
        current,
    };
    for resource in [ResizeResource::Memory, ResizeResource::Cpu] {
        let list = match resource {
            ResizeResource::Memory => &mut resize.memory,
            ResizeResource::Cpu => &mut resize.cpu,
        };
        let (limit, request) = match resource {
            ResizeResource::Memory => (
                desired.memory_limit.cmp(&current.memory_limit),
                desired.memory_request.cmp(&current.memory_request),
            ),
            ResizeResource::Cpu => (
                desired.cpu_limit_milli.cmp(&current.cpu_limit_milli),
                desired.cpu_request_milli.cmp(&current.cpu_request_milli),
            ),
        };
        match limit.then(request) {
            std::cmp::Ordering::Greater => list.push(update.clone()),
            std::cmp::Ordering::Less => list.insert(0, update.clone()),
            std::cmp::Ordering::Equal => {}
        }
    }
}

/// Whether one of these containers, about to start, gets other resources than were last applied.
pub(super) fn starts_with_other_resources<'a>(
    view: &PodView<'_>,
    spec: &PodSpec,
    mut containers: impl Iterator<Item = &'a Container>,
) -> bool {
    view.gates.resize
        && containers.any(|container| {
            let (desired, current) = amounts(view, spec, container);
            desired != current
        })
}

/// Whether the pod-level resources differ from those last applied.
pub(super) fn pod_level_differs(view: &PodView<'_>, spec: &PodSpec) -> bool {
    view.gates.resize_pod_level
        && own_amounts(spec.resources.as_ref()) != own_amounts(view.actuated.pod_level.as_ref())
}

/// Amounts that a container should have and those it has.
fn amounts(
    view: &PodView<'_>,
    spec: &PodSpec,
    container: &Container,
) -> (ResourceAmounts, ResourceAmounts) {
    amounts_of(view.actuated, view.gates, spec, container)
}

fn amounts_of(
    actuated: &Actuated,
    gates: &PodGates,
    spec: &PodSpec,
    container: &Container,
) -> (ResourceAmounts, ResourceAmounts) {
    let pod_level = |resources: Option<&ResourceRequirements>| {
        resources.filter(|_| gates.resize_pod_level).cloned()
    };
    let desired = with_pod_limits(container.resources.as_ref(), pod_level(spec.resources.as_ref()));
    let current = with_pod_limits(
        actuated.containers.get(&container.name),
        pod_level(actuated.pod_level.as_ref()),
    );
    (desired, current)
}

/// A container's amounts; limits it lacks come from the pod level.
fn with_pod_limits(
    own: Option<&ResourceRequirements>,
    pod_level: Option<ResourceRequirements>,
) -> ResourceAmounts {
    let mut result = own_amounts(own);
    let shared = own_amounts(pod_level.as_ref());
    if result.cpu_limit_milli == 0 {
        result.cpu_limit_milli = shared.cpu_limit_milli;
    }
    if result.memory_limit == 0 {
        result.memory_limit = shared.memory_limit;
    }
    result
}

/// The amounts of one set of requirements.
pub(crate) fn own_amounts(resources: Option<&ResourceRequirements>) -> ResourceAmounts {
    let requests = resources.and_then(|r| r.requests.as_ref());
    let limits = resources.and_then(|r| r.limits.as_ref());
    ResourceAmounts {
        cpu_request_milli: find(requests, "cpu").map_or(0, units::Quantity::milli_value),
        cpu_limit_milli: find(limits, "cpu").map_or(0, units::Quantity::milli_value),
        memory_request: find(requests, "memory").map_or(0, units::Quantity::value),
        memory_limit: find(limits, "memory").map_or(0, units::Quantity::value),
    }
}

fn find(list: Option<&BTreeMap<String, Quantity>>, name: &str) -> Option<units::Quantity> {
    list?.get(name)?.0.parse().ok()
}
