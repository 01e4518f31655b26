//! Whether a resize can ever be carried out on this node, and which pending resize is tried first.

use super::Rejection;
use crate::resources::{QosClass, Side, qos_class, side_of};
use api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use jiff::Timestamp;
use units::Quantity;

/// What the node cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizePolicy {
    /// Gate InPlacePodLevelResourcesVerticalScaling.
    pub pod_level: bool,
    /// The CPU manager policy is `static` without gate InPlacePodVerticalScalingExclusiveCPUs.
    pub exclusive_cpus: bool,
    /// The memory manager policy is `Static` without gate InPlacePodVerticalScalingExclusiveMemory.
    pub exclusive_memory: bool,
    /// Containers of burstable pods may swap.
    pub swap: bool,
}

impl Default for ResizePolicy {
    fn default() -> Self {
        Self { pod_level: true, exclusive_cpus: false, exclusive_memory: false, swap: false }
    }
}

/// Reason of a resize that can never work here; anything else is deferred.
pub const INFEASIBLE: &str = "Infeasible";

const SWAP: &str = "In-place resize of containers with swap is not supported.";
const POD_LEVEL: &str = "InPlacePodLevelResourcesVerticalScaling is disabled";
const EXCLUSIVE_CPUS: &str =
    "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
const EXCLUSIVE_MEMORY: &str =
    "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";

/// The metric label for why a resize is infeasible.
pub fn infeasible_detail(refusal: &Rejection) -> Option<&'static str> {
    let named = [
        (SWAP, "swap_limitation"),
        (POD_LEVEL, "plr_feature_gate_off"),
        (EXCLUSIVE_CPUS, "guaranteed_pod_cpu_manager_static_policy"),
        (EXCLUSIVE_MEMORY, "guaranteed_pod_memory_manager_static_policy"),
    ];
    let found = named.into_iter().find(|(message, _)| refusal.message == *message);
    found.filter(|_| refusal.reason == INFEASIBLE).map(|(_, detail)| detail)
}

/// Refuses a resize that this node cannot carry out.
pub(super) fn check(policy: &ResizePolicy, from: &Pod, to: &Pod) -> Result<(), Rejection> {
    let (Some(old), Some(new)) = (&from.spec, &to.spec) else { return Ok(()) };
    let refuse = |message: &str| Err(Rejection::new(INFEASIBLE, message));
    if policy.swap && changes_swapped_memory(from, to, old, new) {
        return refuse(SWAP);
    }
    if !policy.pod_level && old.resources != new.resources {
        return refuse(POD_LEVEL);
    }
    if qos_class(to, true) == QosClass::Guaranteed {
        if policy.exclusive_cpus && requests_change(old, new, "cpu") {
            return refuse(EXCLUSIVE_CPUS);
        }
        if policy.exclusive_memory && requests_change(old, new, "memory") {
            return refuse(EXCLUSIVE_MEMORY);
        }
    }
    Ok(())
}

fn pairs<'a>(
    old: &'a PodSpec,
    new: &'a PodSpec,
) -> impl Iterator<Item = (&'a Container, &'a Container)> {
    let all =
        |spec: &'a PodSpec| spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all(old)
        .filter_map(move |before| Some((before, all(new).find(|after| after.name == before.name)?)))
}

fn request(resources: Option<&ResourceRequirements>, name: &str) -> Option<Quantity> {
    side_of(resources, Side::Requests).get(name).copied()
}

fn requests_change(old: &PodSpec, new: &PodSpec, name: &str) -> bool {
    pairs(old, new)
        .any(|(a, b)| request(a.resources.as_ref(), name) != request(b.resources.as_ref(), name))
}

/// Burstable containers whose memory request is set and differs from the limit get swap.
fn changes_swapped_memory(from: &Pod, to: &Pod, old: &PodSpec, new: &PodSpec) -> bool {
    let swaps = |pod: &Pod, container: &Container| {
        let resources = container.resources.as_ref();
        let asked = request(resources, "memory").filter(|q| !q.is_zero());
        let limit = side_of(resources, Side::Limits).get("memory").copied();
        qos_class(pod, true) == QosClass::Burstable
            && !super::is_critical(pod)
            && asked.is_some()
            && asked != limit
    };
    pairs(old, new).any(|(a, b)| {
        let changes =
            request(a.resources.as_ref(), "memory") != request(b.resources.as_ref(), "memory");
        let restarts = b
            .resize_policy
            .iter()
            .flatten()
            .any(|p| p.resource_name == "memory" && p.restart_policy == "RestartContainer");
        changes && !restarts && (swaps(from, a) || swaps(to, b))
    })
}

/// A pending resize, with what decides its order.
#[derive(Debug, Clone, Copy)]
pub struct PendingResize<'a> {
    /// The pod with its desired resources.
    pub wished: &'a Pod,
    /// The pod as it is allocated now.
    pub allocated: &'a Pod,
    /// Since when it waits; pods without the condition come last.
    pub since: Option<Timestamp>,
}

/// The order in which pending resizes are tried: indexes, first first.
pub fn order(pending: &[PendingResize<'_>]) -> Vec<usize> {
    let key = |resize: &PendingResize<'_>| {
        let priority = super::priority(resize.wished).unwrap_or_default();
        let guaranteed = qos_class(resize.wished, true) == QosClass::Guaranteed;
        (
            increases(resize),
            std::cmp::Reverse(priority),
            !guaranteed,
            resize.since.is_none(),
            resize.since,
        )
    };
    let mut keyed: Vec<_> = pending.iter().enumerate().map(|(i, r)| (key(r), i)).collect();
    keyed.sort();
    keyed.into_iter().map(|(_, i)| i).collect()
}

fn increases(resize: &PendingResize<'_>) -> bool {
    let wished = crate::resources::pod_requests(resize.wished);
    let allocated = crate::resources::pod_requests(resize.allocated);
    ["cpu", "memory"].into_iter().any(|name| {
        let of =
            |list: &crate::resources::Amounts| list.get(name).copied().unwrap_or(Quantity::ZERO);
        of(&wished) > of(&allocated)
    })
}
