//! Requests and limits of pods and containers, as the plain numbers that CRI requests carry.
//!
//! The sums are those of [`crate::resources`]; this is CPU and memory out of them, and the OOM score
//! (upstream: `qos.GetContainerOOMScoreAdjust`).

use crate::admission::is_critical;
use crate::resources::{self, Counting, QosClass, Side, is_pod_level_resource, qos_class, side_of};
use api::core::v1::{Container, Pod};
use api::machinery::api::resource::Quantity;
use api::pod::ContainerExt;

/// CPU (milli) and memory (bytes); `None` when the resource is not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) cpu: Option<i64>,
    pub(super) memory: Option<i64>,
}

impl From<resources::Amounts> for Amounts {
    fn from(all: resources::Amounts) -> Self {
        Self {
            cpu: all.get("cpu").map(|q| q.milli_value()),
            memory: all.get("memory").map(|q| q.value()),
        }
    }
}

/// The thousandths of a quantity, rounded up; unreadable text counts as zero.
pub(super) fn milli(quantity: &Quantity) -> i64 {
    quantity.0.parse::<units::Quantity>().map_or(0, units::Quantity::milli_value)
}

/// The whole of a quantity, rounded up; unreadable text counts as zero.
pub(super) fn value(quantity: &Quantity) -> i64 {
    quantity.0.parse::<units::Quantity>().map_or(0, units::Quantity::value)
}

/// Whether a quantity is zero.
pub(super) fn zero(quantity: &Quantity) -> bool {
    quantity.0.parse::<units::Quantity>().map_or(true, units::Quantity::is_zero)
}

/// A quantity from its text.
pub(super) fn quantity(text: &str) -> Quantity {
    Quantity(text.into())
}

/// One container's amounts.
pub(super) fn of_container(container: &Container, side: Side) -> Amounts {
    side_of(container.resources.as_ref(), side).into()
}

/// The amounts of `spec.resources`.
pub(super) fn of_pod_level(pod: &Pod, side: Side) -> Amounts {
    side_of(pod.spec.as_ref().and_then(|s| s.resources.as_ref()), side).into()
}

/// `spec.overhead`, if there is one.
pub(super) fn overhead(pod: &Pod) -> Option<Amounts> {
    let overhead = pod.spec.as_ref()?.overhead.as_ref()?;
    Some(resources::amounts(Some(overhead)).into())
}

/// Whether `spec.resources` has any CPU, memory or huge page entry.
pub(super) fn has_pod_level(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    [Side::Requests, Side::Limits]
        .into_iter()
        .any(|side| side_of(own, side).keys().any(|name| is_pod_level_resource(name)))
}

/// The whole pod without overhead.
pub(super) fn of_pod(pod: &Pod, side: Side, pod_level: bool) -> Amounts {
    let counting = Counting { pod_level, with_status: false };
    if overhead(pod).is_none() {
        return resources::of_pod(pod, side, counting).into();
    }
    let mut bare = pod.clone();
    if let Some(spec) = &mut bare.spec {
        spec.overhead = None;
    }
    resources::of_pod(&bare, side, counting).into()
}

const GUARANTEED_OOM: i64 = -997;
const BEST_EFFORT_OOM: i64 = 1000;

/// How readily the kernel picks this container when memory runs out.
pub(super) fn oom_score_adj(
    pod: &Pod,
    container: &Container,
    memory_capacity: i64,
    pod_level: bool,
) -> i64 {
    let spec = pod.spec.as_ref();
    let class = spec.and_then(|s| s.priority_class_name.as_deref());
    if class == Some("system-node-critical") && is_critical(pod) {
        return GUARANTEED_OOM;
    }
    match qos_class(pod, pod_level) {
        QosClass::Guaranteed => return GUARANTEED_OOM,
        QosClass::BestEffort => return BEST_EFFORT_OOM,
        QosClass::Burstable => {}
    }
    let empty = Vec::new();
    let regular = spec.map_or(&empty, |s| &s.containers);
    let init = spec.and_then(|s| s.init_containers.as_ref()).unwrap_or(&empty);
    let request = |c: &Container| of_container(c, Side::Requests).memory.unwrap_or(0);
    // What the pod-level request exceeds its containers' requests by is divided evenly.
    let share = match of_pod_level(pod, Side::Requests).memory {
        Some(total) if pod_level && total != 0 => {
            let named = of_pod(pod, Side::Requests, false).memory.unwrap_or(0);
            let count = i64::try_from(regular.len() + init.len()).unwrap_or(1).max(1);
            (total - named) / count
        }
        _ => 0,
    };
    let score = |memory: i64| {
        1000 - memory.saturating_add(share).saturating_mul(1000) / memory_capacity.max(1)
    };
    let mut adjust = score(request(container));
    let sidecar = container.is_sidecar() && init.iter().any(|c| c.name == container.name);
    if sidecar {
        adjust = adjust.min(score(regular.iter().map(request).min().unwrap_or(0)));
    }
    match adjust {
        a if a < 1000 + GUARANTEED_OOM => 1000 + GUARANTEED_OOM,
        BEST_EFFORT_OOM => BEST_EFFORT_OOM - 1,
        a => a,
    }
}
