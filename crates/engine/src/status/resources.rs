//! Resources shown for containers and for the pod.

use super::{StatusView, requirements};
use crate::allocation::{AllocationGates, PodAllocation};
use crate::cgroup::pod_ask;
use crate::resources::{
    Amounts, Counting, MIN_EFFECTIVE_CPU_LIMIT, MIN_EFFECTIVE_CPU_REQUEST, Side, milli_of_quota,
    milli_of_shares, of_pod, side_of,
};
use crate::runtime::{ContainerRunState, ContainerView};
use api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements};
use units::{Format, Quantity};

/// The values of a pod's cgroup in the API's units; `None` where unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodCgroupAmounts {
    /// From CPU shares or weight.
    pub cpu_request_milli: Option<i64>,
    /// From the CFS quota.
    pub cpu_limit_milli: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// How pod sums are counted in the status.
pub(super) fn counting(view: &StatusView<'_>) -> Counting {
    Counting { pod_level: view.gates.pod_level_resources, with_status: false }
}

/// Resources in force for a container.
pub(super) fn of_container(
    view: &StatusView<'_>,
    container: &Container,
    instance: &ContainerView,
    entry: &ContainerStatus,
    old: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let allocated = container.resources.clone().unwrap_or_default();
    if instance.state != ContainerRunState::Running {
        return allocated;
    }
    let actual = actual_amounts(view, &container.name, instance);
    let same = old.filter(|o| {
        o.container_id == entry.container_id
            && o.state.as_ref().is_some_and(|s| s.running.is_some())
    });
    let kept = same.and_then(|o| o.resources.as_ref());

    let mut limits = side_of(Some(&allocated), Side::Limits);
    if allocated.limits.is_some() {
        let old = side_of(kept, Side::Limits);
        take_cpu(&mut limits, &old, actual.cpu_limit, MIN_EFFECTIVE_CPU_LIMIT);
        take(&mut limits, &old, "memory", actual.memory_limit);
    }
    let mut requests = side_of(Some(&allocated), Side::Requests);
    if allocated.requests.is_some() {
        let old = side_of(kept, Side::Requests);
        take_cpu(&mut requests, &old, actual.cpu_request, MIN_EFFECTIVE_CPU_REQUEST);
        take(&mut requests, &old, "memory", actual.memory_request);
    }
    ResourceRequirements { claims: allocated.claims, ..requirements(limits, requests) }
}

/// Resources in force for the pod as a whole.
pub(super) fn pod_level(
    view: &StatusView<'_>,
    spec: &PodSpec,
    api: &PodStatus,
) -> ResourceRequirements {
    let claims = spec.resources.as_ref().and_then(|r| r.claims.clone());
    let sum = |side| of_pod(view.pod, side, counting(view));
    if api.phase.as_deref() != Some("Running") {
        let sums = requirements(sum(Side::Limits), sum(Side::Requests));
        return ResourceRequirements { claims, ..sums };
    }
    let cgroup = view.cgroup.unwrap_or_else(|| applied_to_cgroup(view));
    let milli = |value: Option<i64>| value.map(|v| Quantity::from_milli(v, Format::DecimalSi));
    let kept = view.old.resources.as_ref().filter(|_| view.old.phase.as_deref() == Some("Running"));
    let old_requests = side_of(kept, Side::Requests);
    let old_limits = side_of(kept, Side::Limits);

    let mut requests = side_of(spec.resources.as_ref(), Side::Requests);
    take_cpu(
        &mut requests,
        &old_requests,
        milli(cgroup.cpu_request_milli),
        MIN_EFFECTIVE_CPU_REQUEST,
    );
    if !requests.contains_key("memory")
        && let Some(memory) = sum(Side::Requests).get("memory")
    {
        requests.insert("memory".to_owned(), *memory);
    }
    take(&mut requests, &old_requests, "memory", None);
    let mut limits = side_of(spec.resources.as_ref(), Side::Limits);
    take_cpu(&mut limits, &old_limits, milli(cgroup.cpu_limit_milli), MIN_EFFECTIVE_CPU_LIMIT);
    take(&mut limits, &old_limits, "memory", cgroup.memory_limit.map(Quantity::from_bytes));
    ResourceRequirements { claims, ..requirements(limits, requests) }
}

/// The expected values of the pod's cgroup if it was not read: those last applied.
fn applied_to_cgroup(view: &StatusView<'_>) -> PodCgroupAmounts {
    let applied = PodAllocation {
        containers: view.actuated.containers.clone(),
        pod_level: view.actuated.pod_level.clone(),
    };
    let gates = AllocationGates { init_containers: true, pod_level: applied.pod_level.is_some() };
    let pod = applied.apply(view.pod, gates);
    let ask = pod_ask(pod.as_ref().unwrap_or(view.pod), view.gates.pod_level_resources);
    PodCgroupAmounts {
        cpu_request_milli: Some(ask.cpu_request_milli).filter(|milli| *milli > 0),
        cpu_limit_milli: ask.cpu_limit_milli.filter(|milli| *milli > 0),
        memory_limit: ask.memory_limit.filter(|bytes| *bytes > 0),
    }
}

/// What the runtime reports, completed by what was last applied.
#[derive(Default)]
struct Actual {
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_request: Option<Quantity>,
    memory_limit: Option<Quantity>,
}

fn actual_amounts(view: &StatusView<'_>, name: &str, instance: &ContainerView) -> Actual {
    let applied = view.actuated.containers.get(name);
    let requests = side_of(applied, Side::Requests);
    let limits = side_of(applied, Side::Limits);
    let milli = |value: i64| Quantity::from_milli(value, Format::DecimalSi);
    let reported = instance.resources.unwrap_or_default();
    let quota = reported.cpu_quota.zip(reported.cpu_period);
    let mut actual = Actual {
        cpu_limit: quota.and_then(|(q, p)| milli_of_quota(q, p)).map(milli),
        cpu_request: reported.cpu_shares.and_then(milli_of_shares).map(milli),
        memory_limit: reported.memory_limit_bytes.filter(|b| *b > 0).map(Quantity::from_bytes),
        memory_request: None,
    };
    let silent =
        actual.cpu_limit.is_none() && actual.cpu_request.is_none() && actual.memory_limit.is_none();
    if silent && applied.is_some() {
        actual.cpu_request = requests.get("cpu").copied();
        actual.cpu_limit = limits.get("cpu").copied();
        actual.memory_limit = limits.get("memory").copied();
    }
    actual.memory_request = requests.get("memory").copied().filter(|q| !q.is_zero());
    actual
}

/// Takes the actual value, else the one shown before.
fn take(list: &mut Amounts, old: &Amounts, name: &str, actual: Option<Quantity>) {
    if let Some(value) = actual.or_else(|| old.get(name).copied()) {
        list.insert(name.to_owned(), value);
    }
}

/// [`take`] for CPU, where values too small for the kernel keep the allocated amount.
fn take_cpu(list: &mut Amounts, old: &Amounts, actual: Option<Quantity>, smallest: i64) {
    if let Some(value) = actual {
        let allocated = list.get("cpu").map_or(0, |q| q.milli_value());
        if value.milli_value() <= smallest && allocated <= smallest {
            return;
        }
    }
    take(list, old, "cpu", actual);
}
