//! Requests and limits of containers, of the pod, and its overhead.

use super::faults::{At, Faults};
use super::text;
use crate::resources::{Amounts, Counting, Side, is_pod_level_resource, of_pod, side_of};
use api::core::v1::{Pod, PodSpec, ResourceClaim, ResourceRequirements};
use std::collections::BTreeSet;
use units::Quantity;

const CONTAINER: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Names without a domain that mean something in quotas but nothing to a container.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
/// Those of them whose amounts must be integers.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Whose resources these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Container,
    Pod,
}

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && text::key(&format!("requests.{name}")).is_empty()
}

fn overcommits(name: &str) -> bool {
    is_native(name) && !is_huge(name)
}

fn check_name(name: &str, owner: Owner, at: &At, list: &mut Faults) {
    let before = list.count();
    list.each(at, name, text::key(name));
    let plain = !name.contains('/');
    if list.count() == before && plain {
        let known =
            STANDARD.contains(&name) || is_huge(name) || name.starts_with("requests.hugepages-");
        if !known {
            let why = "must be a standard resource type or fully qualified";
            list.invalid(at, name, why);
        }
    }
    match owner {
        Owner::Container if plain => {
            if !CONTAINER.contains(&name) && !is_huge(name) {
                list.invalid(at, name, "must be a standard resource for containers");
            }
        }
        Owner::Container => {
            if !is_native(name) && !is_extended(name) {
                list.invalid(at, name, "doesn't follow extended resource name standard");
            }
        }
        Owner::Pod => {
            if list.count() == before && !is_pod_level_resource(name) {
                list.unsupported(at, name, &["cpu", "hugepages-", "memory"]);
            }
        }
    }
}

fn check_amount(name: &str, amount: Quantity, at: &At, list: &mut Faults) {
    if amount.is_negative() {
        list.invalid(at, amount.to_string(), "must be greater than or equal to 0");
    }
    let whole = COUNTED.contains(&name) || is_extended(name);
    if whole && amount.milli_value() % 1000 != 0 {
        list.invalid(at, amount.to_string(), "must be an integer");
    }
    if let Some(size) = name.strip_prefix("hugepages-") {
        let page = size.parse::<Quantity>().ok().filter(|page| page.milli_value() % 1000 == 0);
        let page = page.map(Quantity::value).filter(|page| *page > 0);
        if page.is_none_or(|page| amount.value() % page != 0) {
            let why = format!("{amount} is not positive integer multiple of {name}");
            list.invalid(at, amount.to_string(), &why);
        }
    }
}

/// Amounts of one side; a value that is not a quantity is a fault.
fn parsed(resources: &ResourceRequirements, side: Side, at: &At, list: &mut Faults) -> Amounts {
    let texts = match side {
        Side::Requests => &resources.requests,
        Side::Limits => &resources.limits,
    };
    for (name, quantity) in texts.iter().flatten() {
        if let Err(error) = quantity.0.parse::<Quantity>() {
            list.invalid(&at.key(name), &quantity.0, &error.to_string());
        }
    }
    side_of(Some(resources), side)
}

pub(super) fn check(
    resources: &ResourceRequirements,
    owner: Owner,
    claims: &BTreeSet<&str>,
    at: &At,
    list: &mut Faults,
) {
    let limits = parsed(resources, Side::Limits, &at.get("limits"), list);
    let requests = parsed(resources, Side::Requests, &at.get("requests"), list);
    for (side, amounts) in [("limits", &limits), ("requests", &requests)] {
        for (name, amount) in amounts {
            let at = at.get(side).key(name);
            check_name(name, owner, &at, list);
            check_amount(name, *amount, &at, list);
        }
    }
    for (name, request) in &requests {
        let at_requests = at.get("requests");
        match limits.get(name) {
            Some(limit) if request != limit && !overcommits(name) => {
                let why = format!("must be equal to {name} limit of {limit}");
                list.invalid(&at_requests, request.to_string(), &why);
            }
            Some(limit) if request > limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                list.invalid(&at_requests, request.to_string(), &why);
            }
            None if !overcommits(name) => {
                let why = "Limit must be set for non overcommitable resources";
                list.required(&at.get("limits"), why);
            }
            _ => {}
        }
    }
    let mut names = limits.keys().chain(requests.keys());
    if names.clone().any(|name| is_huge(name)) && !names.any(|n| n == "cpu" || n == "memory") {
        list.forbidden(at, "HugePages require cpu or memory");
    }
    let wanted = resources.claims.as_deref().unwrap_or_default();
    check_claims(wanted, claims, &at.get("claims"), list);
}

fn check_claims(wanted: &[ResourceClaim], claims: &BTreeSet<&str>, at: &At, list: &mut Faults) {
    // A claim as a whole has no request.
    let mut seen: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
    for (index, claim) in wanted.iter().enumerate() {
        let at = at.nth(index);
        let name = claim.name.as_str();
        if name.is_empty() {
            list.required(&at, "");
            continue;
        }
        let request = claim.request.as_deref().filter(|r| !r.is_empty());
        if seen.contains(&(name, None)) {
            list.duplicate(&at, name);
        } else {
            if let Some(request) = request {
                list.each(&at.get("request"), request, text::label(request));
                if seen.contains(&(name, Some(request))) {
                    list.duplicate(&at, &format!("{name}/{request}"));
                }
            } else {
                for _ in seen.iter().filter(|(other, _)| *other == name) {
                    list.duplicate(&at, name);
                }
            }
            seen.insert((name, request));
        }
        if !claims.contains(name) {
            let all: Vec<&str> = claims.iter().copied().collect();
            let known = if all.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", all.join(", "))
            };
            let why = format!("must be one of the names in pod.spec.resourceClaims{known}");
            list.not_found(&at, name, &why);
        }
    }
}

/// The pod's own resources, and how they agree with those of its containers.
pub(super) fn check_pod(
    pod: &Pod,
    spec: &PodSpec,
    claims: &BTreeSet<&str>,
    at: &At,
    list: &mut Faults,
) {
    let Some(own) = &spec.resources else { return };
    let at = at.get("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        list.forbidden(&at, "may not be set for a windows pod");
        return;
    }
    if own.claims.is_some() {
        list.forbidden(&at.get("claims"), "claims may not be set for Resources at pod-level");
    }
    check(own, Owner::Pod, claims, &at, list);
    let sums = |side| {
        let alone = Pod {
            spec: Some(PodSpec { overhead: None, resources: None, ..spec.clone() }),
            ..pod.clone()
        };
        of_pod(&alone, side, Counting { pod_level: false, with_status: false })
    };
    let requests = side_of(Some(own), Side::Requests);
    for (name, sum) in sums(Side::Requests) {
        if let Some(given) = requests.get(&name).filter(|given| sum > **given) {
            let why =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            list.invalid(&at.get("requests").key(&name), given.to_string(), &why);
        }
    }
    let limits = side_of(Some(own), Side::Limits);
    for (name, sum) in sums(Side::Limits).into_iter().filter(|(name, _)| is_huge(name)) {
        if let Some(given) = limits.get(&name).filter(|given| sum > **given) {
            let why =
                format!("must be greater than or equal to aggregate container limits of {sum}");
            list.invalid(&at.get("limits").key(&name), given.to_string(), &why);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (name, limit) in side_of(container.resources.as_ref(), Side::Limits) {
            if let Some(given) = limits.get(&name).filter(|given| limit > **given) {
                let at = at.get("containers").nth(index).key(&name).get("limits");
                let why = format!("must be less than or equal to pod limits of {given}");
                list.invalid(&at, limit.to_string(), &why);
            }
        }
    }
}
