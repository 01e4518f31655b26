//! Requests and limits of pods summed over containers, QoS class, and the corresponding kernel values.
//!
//! Promises: same sums as upstream (`component-helpers/resource`): sidecars add to the regular containers and to
//! every later init container, init containers raise the sum to their maximum, pod-level values replace sums,
//! overhead comes on top.
use api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use api::machinery::api::resource::Quantity as ApiQuantity;
use api::pod::ContainerExt;
use std::collections::BTreeMap;
use units::Quantity;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Smallest CPU request (milli) that differs from "none" in the kernel's shares.
pub const MIN_EFFECTIVE_CPU_REQUEST: i64 = 2;
/// Smallest CPU limit (milli) that the kernel's quota can express.
pub const MIN_EFFECTIVE_CPU_LIMIT: i64 = 10;

/// Which half of a resources stanza.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What is reserved.
    Requests,
    /// What may be used at most.
    Limits,
}

/// What to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counting {
    /// Pod-level resources replace the sums (gate PodLevelResources).
    pub pod_level: bool,
    /// Take the largest of spec, applied and allocated amounts, from the pod's status.
    pub with_status: bool,
}

impl Default for Counting {
    fn default() -> Self {
        Self { pod_level: true, with_status: false }
    }
}

/// The amounts of a pod, overhead included.
pub fn of_pod(pod: &Pod, side: Side, counting: Counting) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut sums = of_containers(pod, spec, side, counting);
    if counting.pod_level
        && let Some(own) = pod_level(pod, spec, side, counting)
    {
        sums.extend(own.into_iter().filter(|(name, _)| is_pod_level_resource(name)));
    }
    for (name, extra) in amounts(spec.overhead.as_ref()) {
        match side {
            Side::Requests => add(&mut sums, &name, extra),
            Side::Limits => {
                if sums.get(&name).is_some_and(|limit| !limit.is_zero()) {
                    add(&mut sums, &name, extra);
                }
            }
        }
    }
    sums
}

/// Requests of a pod with default counting.
pub fn pod_requests(pod: &Pod) -> Amounts {
    of_pod(pod, Side::Requests, Counting::default())
}

/// Limits of a pod with default counting.
pub fn pod_limits(pod: &Pod) -> Amounts {
    of_pod(pod, Side::Limits, Counting::default())
}

/// A pod's request of one resource for comparisons between pods (upstream: `GetResourceRequestQuantity`): pod-level
/// resources replace those of the containers, and overhead is added only to a request that is not zero.
pub fn compared_request(pod: &Pod, resource: &str) -> Quantity {
    let Some(spec) = &pod.spec else { return Quantity::ZERO };
    let asked = if pod_level_set(pod) {
        let own = side_of(spec.resources.as_ref(), Side::Requests);
        own.get(resource).copied().filter(|_| is_pod_level_resource(resource))
    } else {
        let counting = Counting { pod_level: false, with_status: false };
        of_containers(pod, spec, Side::Requests, counting).get(resource).copied()
    };
    let asked = asked.unwrap_or(Quantity::ZERO);
    match amounts(spec.overhead.as_ref()).get(resource) {
        Some(extra) if !asked.is_zero() => asked.saturating_add(*extra),
        _ => asked,
    }
}

fn of_containers(pod: &Pod, spec: &PodSpec, side: Side, counting: Counting) -> Amounts {
    let mut sums = Amounts::new();
    for container in &spec.containers {
        add_all(&mut sums, &of_container(pod, container, side, counting.with_status));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let sidecar = container.is_sidecar();
        let own = of_container(pod, container, side, counting.with_status && sidecar);
        if sidecar {
            add_all(&mut sums, &own);
            add_all(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            // A sum has the format of its first term: that of the running container.
            let mut now = own;
            add_all(&mut now, &sidecars);
            raise(&mut peak, &now);
        }
    }
    raise(&mut sums, &peak);
    sums
}

fn of_container(pod: &Pod, container: &Container, side: Side, with_status: bool) -> Amounts {
    let spec = side_of(container.resources.as_ref(), side);
    let status = pod.status.as_ref().filter(|_| with_status).and_then(|s| {
        let all = [&s.container_statuses, &s.init_container_statuses];
        all.into_iter().flatten().flatten().find(|c| c.name == container.name)
    });
    match status {
        Some(ContainerStatus { resources: Some(applied), allocated_resources, .. }) => {
            let allocated = amounts(allocated_resources.as_ref());
            effective(pod, spec, side_of(Some(applied), side), allocated, side)
        }
        _ => spec,
    }
}

fn pod_level(pod: &Pod, spec: &PodSpec, side: Side, counting: Counting) -> Option<Amounts> {
    let own = side_of(Some(spec.resources.as_ref()?), side);
    let status = pod.status.as_ref().filter(|_| counting.with_status);
    let Some(applied) = status.and_then(|s| s.resources.as_ref()) else { return Some(own) };
    let allocated = amounts(status.and_then(|s| s.allocated_resources.as_ref()));
    let all = effective(pod, own.clone(), side_of(Some(applied), side), allocated, side);
    Some(all.into_iter().filter(|(name, _)| own.contains_key(name)).collect())
}

fn effective(
    pod: &Pod,
    spec: Amounts,
    applied: Amounts,
    allocated: Amounts,
    side: Side,
) -> Amounts {
    let mut result = if resize_is_infeasible(pod) { Amounts::new() } else { spec };
    raise(&mut result, &applied);
    if side == Side::Requests {
        raise(&mut result, &allocated);
    }
    result
}

fn resize_is_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"))
}

/// Whether a pod has pod-level resources (upstream: `IsPodLevelResourcesSet`).
pub fn pod_level_set(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let lists = own.into_iter().flat_map(|own| [&own.requests, &own.limits]).flatten();
    lists.flat_map(BTreeMap::keys).any(|name| is_pod_level_resource(name))
}

/// Whether a container by itself is like one of a Guaranteed pod: it requests CPU and memory, each equal to its limit
/// (upstream: `IsContainerEquivalentQOSGuaranteed`).
pub fn is_guaranteed_alone(container: &Container) -> bool {
    let requests = side_of(container.resources.as_ref(), Side::Requests);
    let limits = side_of(container.resources.as_ref(), Side::Limits);
    ["cpu", "memory"].into_iter().all(|name| {
        let asked = requests.get(name).filter(|amount| !amount.is_zero());
        asked.is_some_and(|amount| limits.get(name) == Some(amount))
    })
}

/// Whether this resource can be set at pod level.
pub fn is_pod_level_resource(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// One half of a resources stanza; unreadable quantities are left out.
pub fn side_of(resources: Option<&ResourceRequirements>, side: Side) -> Amounts {
    let list = resources.and_then(|r| match side {
        Side::Requests => r.requests.as_ref(),
        Side::Limits => r.limits.as_ref(),
    });
    amounts(list)
}

/// A resource list of the API as amounts.
pub fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    list.into_iter()
        .flatten()
        .filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse().ok()?)))
        .collect()
}

/// Amounts in the API's form.
pub fn to_api(amounts: &Amounts) -> BTreeMap<String, ApiQuantity> {
    amounts.iter().map(|(name, q)| (name.clone(), ApiQuantity(q.to_string()))).collect()
}

fn add(sums: &mut Amounts, name: &str, extra: Quantity) {
    let sum = sums.get(name).map_or(extra, |value| value.saturating_add(extra));
    sums.insert(name.to_owned(), sum);
}

fn add_all(sums: &mut Amounts, extra: &Amounts) {
    for (name, value) in extra {
        add(sums, name, *value);
    }
}

fn raise(sums: &mut Amounts, floor: &Amounts) {
    for (name, value) in floor {
        if sums.get(name).is_none_or(|own| value > own) {
            sums.insert(name.clone(), *value);
        }
    }
}

/// QoS class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Requests equal limits for everything.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl QosClass {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The class in the pod's status if it is set, else the computed one.
pub fn qos_class(pod: &Pod, pod_level: bool) -> QosClass {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => compute_qos(pod, pod_level),
    }
}

/// The class that the spec gives.
pub fn compute_qos(pod: &Pod, pod_level: bool) -> QosClass {
    let Some(spec) = &pod.spec else { return QosClass::BestEffort };
    let positive = |list: Amounts| -> Amounts {
        let counts = |name: &str| name == "cpu" || name == "memory";
        list.into_iter().filter(|(n, q)| counts(n) && *q > Quantity::ZERO).collect()
    };
    let mut requests = Amounts::new();
    let mut limits = Amounts::new();
    let mut guaranteed = true;
    if let Some(own) = spec.resources.as_ref().filter(|_| pod_level) {
        requests = positive(side_of(Some(own), Side::Requests));
        limits = positive(side_of(Some(own), Side::Limits));
        if own.limits.as_ref().is_some_and(|l| !l.is_empty()) {
            guaranteed = limits.len() == 2;
        }
    } else {
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let resources = container.resources.as_ref();
            add_all(&mut requests, &positive(side_of(resources, Side::Requests)));
            let own_limits = positive(side_of(resources, Side::Limits));
            guaranteed &= own_limits.len() == 2;
            add_all(&mut limits, &own_limits);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return QosClass::BestEffort;
    }
    let equal = requests.len() == limits.len()
        && requests.iter().all(|(name, request)| limits.get(name) == Some(request));
    if guaranteed && equal { QosClass::Guaranteed } else { QosClass::Burstable }
}

/// CPU in milli-units equivalent to a cgroup's shares; `None` if they are below the minimum.
pub fn milli_of_shares(shares: i64) -> Option<i64> {
    let milli = shares.saturating_mul(1000).saturating_add(1023).checked_div(1024)?;
    (shares >= 2 && milli > 0).then_some(milli)
}

/// CPU in milli-units equivalent to a quota; `None` for no limit.
pub fn milli_of_quota(quota: i64, period: i64) -> Option<i64> {
    if quota < 0 || period <= 0 {
        return None;
    }
    quota.saturating_mul(1000).checked_div(period).filter(|milli| *milli > 0)
}

#[cfg(test)]
mod tests;
