//! What pods and containers ask for, as numbers.
//!
//! Upstream: `k8s.io/component-helpers/resource` (`PodRequests`, `PodLimits` without overhead),
//! `helper/qos.GetPodQOS`, `qos.GetContainerOOMScoreAdjust`.

use api::core::v1::{Container, Pod, ResourceRequirements};
use api::machinery::api::resource::Quantity;
use std::collections::BTreeMap;

type Resources = BTreeMap<String, Quantity>;

/// Which half of a resources stanza is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Requests,
    Limits,
}

/// CPU (milli) and memory (bytes); `None` when nobody names the resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) cpu: Option<i64>,
    pub(super) memory: Option<i64>,
}

/// The thousandths of a quantity, rounded up; unreadable text counts as zero.
pub(super) fn milli(quantity: &Quantity) -> i64 {
    quantity.0.parse::<units::Quantity>().map_or(0, units::Quantity::milli_value)
}

/// The whole of a quantity, rounded up; unreadable text counts as zero.
pub(super) fn value(quantity: &Quantity) -> i64 {
    quantity.0.parse::<units::Quantity>().map_or(0, units::Quantity::value)
}

/// Whether a quantity is nothing.
pub(super) fn zero(quantity: &Quantity) -> bool {
    quantity.0.parse::<units::Quantity>().map_or(true, units::Quantity::is_zero)
}

/// A quantity from its text.
pub(super) fn quantity(text: &str) -> Quantity {
    Quantity(text.into())
}

/// One side of a stanza.
pub(super) fn side(resources: Option<&ResourceRequirements>, side: Side) -> Option<&Resources> {
    match side {
        Side::Requests => resources?.requests.as_ref(),
        Side::Limits => resources?.limits.as_ref(),
    }
}

/// What one container names.
pub(super) fn of_container(container: &Container, which: Side) -> Amounts {
    amounts(side(container.resources.as_ref(), which))
}

/// What `spec.resources` names, if it counts.
pub(super) fn of_pod_level(pod: &Pod, which: Side) -> Amounts {
    let resources = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    amounts(side(resources, which))
}

/// `spec.overhead`, if there is one.
pub(super) fn overhead(pod: &Pod) -> Option<Amounts> {
    pod.spec.as_ref()?.overhead.as_ref().map(|o| amounts(Some(o)))
}

/// Whether `spec.resources` has any CPU, memory or huge page entry on either side.
pub(super) fn has_pod_level(pod: &Pod) -> bool {
    [Side::Requests, Side::Limits].into_iter().any(|which| has_pod_level_side(pod, which))
}

fn has_pod_level_side(pod: &Pod, which: Side) -> bool {
    let resources = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    side(resources, which).is_some_and(|r| {
        r.keys().any(|k| k == "cpu" || k == "memory" || k.starts_with("hugepages-"))
    })
}

/// The whole pod without overhead: the larger of what runs together at the end and what each
/// init container needs beside the sidecars before it. `spec.resources` replaces what it names.
pub(super) fn of_pod(pod: &Pod, which: Side, pod_level_resources: bool) -> Amounts {
    let mut total = of_containers(pod, which);
    if pod_level_resources {
        let own = of_pod_level(pod, which);
        total.cpu = own.cpu.or(total.cpu);
        total.memory = own.memory.or(total.memory);
    }
    total
}

fn of_containers(pod: &Pod, which: Side) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::default() };
    let mut total = Amounts::default();
    for container in &spec.containers {
        total = total.plus(of_container(container, which));
    }
    let (mut sidecars, mut peak) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container, which);
        if container.restart_policy.as_deref() == Some("Always") {
            total = total.plus(own);
            sidecars = sidecars.plus(own);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(own.plus(sidecars));
        }
    }
    total.max(peak)
}

impl Amounts {
    fn plus(self, other: Self) -> Self {
        self.with(other, i64::saturating_add)
    }

    fn max(self, other: Self) -> Self {
        self.with(other, i64::max)
    }

    fn with(self, other: Self, join: fn(i64, i64) -> i64) -> Self {
        let both = |a: Option<i64>, b: Option<i64>| match (a, b) {
            (Some(a), Some(b)) => Some(join(a, b)),
            (a, b) => a.or(b),
        };
        Self { cpu: both(self.cpu, other.cpu), memory: both(self.memory, other.memory) }
    }
}

fn amounts(resources: Option<&Resources>) -> Amounts {
    Amounts {
        cpu: resources.and_then(|r| r.get("cpu")).map(milli),
        memory: resources.and_then(|r| r.get("memory")).map(value),
    }
}

/// A pod's quality of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// The class in the status if there is one, else computed from the spec.
pub(super) fn qos(pod: &Pod, pod_level_resources: bool) -> Qos {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => return Qos::Guaranteed,
        Some("Burstable") => return Qos::Burstable,
        Some("BestEffort") => return Qos::BestEffort,
        _ => {}
    }
    let Some(spec) = &pod.spec else { return Qos::BestEffort };
    let set = |a: Option<i64>| a.filter(|a| *a != 0);
    let (mut requests, mut limits) = (Amounts::default(), Amounts::default());
    let mut guaranteed = true;
    if pod_level_resources && spec.resources.is_some() {
        requests = of_pod_level(pod, Side::Requests);
        limits = of_pod_level(pod, Side::Limits);
        guaranteed = set(limits.cpu).is_some() && set(limits.memory).is_some();
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let own = of_container(container, Side::Limits);
            guaranteed &= set(own.cpu).is_some() && set(own.memory).is_some();
            requests = requests.plus(of_container(container, Side::Requests));
            limits = limits.plus(own);
        }
    }
    let (requests, limits) = (
        Amounts { cpu: set(requests.cpu), memory: set(requests.memory) },
        Amounts { cpu: set(limits.cpu), memory: set(limits.memory) },
    );
    if requests == Amounts::default() && limits == Amounts::default() {
        return Qos::BestEffort;
    }
    if guaranteed && requests == limits { Qos::Guaranteed } else { Qos::Burstable }
}

/// Whether the pod is critical to the node or cluster.
pub(super) fn is_critical(pod: &Pod) -> bool {
    let annotation = |key| pod.metadata.annotations.as_ref().and_then(|a| a.get(key));
    let from_node = annotation("kubernetes.io/config.source").is_some_and(|s| s != "api");
    let mirror = annotation("kubernetes.io/config.mirror").is_some();
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    from_node || mirror || priority >= 2_000_000_000
}

const GUARANTEED_OOM: i64 = -997;
const BEST_EFFORT_OOM: i64 = 1000;

/// How readily the kernel picks this container when memory runs out.
pub(super) fn oom_score_adj(
    pod: &Pod,
    container: &Container,
    memory_capacity: i64,
    pod_level_resources: bool,
) -> i64 {
    let spec = pod.spec.as_ref();
    let class = spec.and_then(|s| s.priority_class_name.as_deref());
    if class == Some("system-node-critical") && is_critical(pod) {
        return GUARANTEED_OOM;
    }
    match qos(pod, pod_level_resources) {
        Qos::Guaranteed => return GUARANTEED_OOM,
        Qos::BestEffort => return BEST_EFFORT_OOM,
        Qos::Burstable => {}
    }
    let empty = Vec::new();
    let regular = spec.map_or(&empty, |s| &s.containers);
    let init = spec.and_then(|s| s.init_containers.as_ref()).unwrap_or(&empty);
    let request = |c: &Container| of_container(c, Side::Requests).memory.unwrap_or(0);
    // What the pod as a whole asks for beyond its containers is shared out evenly.
    let share = match of_pod_level(pod, Side::Requests).memory {
        Some(total) if pod_level_resources && total != 0 => {
            let named = of_containers(pod, Side::Requests).memory.unwrap_or(0);
            let count = i64::try_from(regular.len() + init.len()).unwrap_or(1).max(1);
            (total - named) / count
        }
        _ => 0,
    };
    let score = |memory: i64| {
        1000 - memory.saturating_add(share).saturating_mul(1000) / memory_capacity.max(1)
    };
    let mut adjust = score(request(container));
    let sidecar = container.restart_policy.as_deref() == Some("Always")
        && init.iter().any(|c| c.name == container.name);
    if sidecar {
        adjust = adjust.min(score(regular.iter().map(request).min().unwrap_or(0)));
    }
    match adjust {
        a if a < 1000 + GUARANTEED_OOM => 1000 + GUARANTEED_OOM,
        BEST_EFFORT_OOM => BEST_EFFORT_OOM - 1,
        a => a,
    }
}
