//! Which claims a pod and its containers use, and whether they may.

use super::{ClaimError, PreparedClaim};
use crate::devices::is_extended_resource;
use crate::resources::{Side, side_of};
use api::core::v1::{Container, Pod};
use api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};

const SCHEDULING: &str = "scheduling.k8s.io";
const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Feature gates of claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimRules {
    /// Gate DRAExtendedResource.
    pub extended: bool,
    /// Gate DRAWorkloadResourceClaims.
    pub groups: bool,
}

/// A claim object that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodClaim {
    /// Name of the pod's entry; `None` for the claim behind its extended resources.
    pub entry: Option<String>,
    /// Name of the object.
    pub name: String,
    /// It was generated for the pod, which must own it.
    pub generated: bool,
}

/// The claims of a pod, those behind extended resources last; entries that need no claim are left out.
pub fn pod_claims(pod: &Pod, rules: ClaimRules) -> Result<Vec<PodClaim>, ClaimError> {
    let mut claims = Vec::new();
    let spec = pod.spec.as_ref();
    for entry in spec.and_then(|spec| spec.resource_claims.as_ref()).into_iter().flatten() {
        let (name, generated) = claim_name(pod, entry)?;
        if let Some(name) = name {
            claims.push(PodClaim { entry: Some(entry.name.clone()), name, generated });
        }
    }
    if let Some(name) = extended_claim(pod, rules) {
        claims.push(PodClaim { entry: None, name: name.to_owned(), generated: false });
    }
    Ok(claims)
}

fn extended_claim(pod: &Pod, rules: ClaimRules) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    rules.extended.then_some(status.resource_claim_name.as_str())
}

/// Name of an entry's claim, and whether it was generated (upstream: `resourceclaim.Name`).
fn claim_name(
    pod: &Pod,
    entry: &api::core::v1::PodResourceClaim,
) -> Result<(Option<String>, bool), ClaimError> {
    let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
    if let Some(claim) = &entry.resource_claim_name {
        return Ok((Some(claim.clone()), false));
    }
    if entry.resource_claim_template_name.is_none() {
        let claim = entry.name.clone();
        return Err(ClaimError::Unsupported { namespace, pod: name, claim });
    }
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    match statuses.into_iter().flatten().find(|status| status.name == entry.name) {
        Some(status) => Ok((status.resource_claim_name.clone(), true)),
        None => Err(ClaimError::NotCreated { namespace, pod: name }),
    }
}

/// Whether the pod may use this claim (upstream: `IsForPod`, `IsReservedForPod`).
pub fn check(
    pod: &Pod,
    wanted: &PodClaim,
    claim: &ResourceClaim,
    rules: ClaimRules,
) -> Result<(), ClaimError> {
    let uid = text(&pod.metadata.uid);
    let group = pod.spec.as_ref().and_then(|spec| spec.scheduling_group.as_ref());
    let group = group.and_then(|group| group.pod_group_name.as_deref()).filter(|_| rules.groups);
    if wanted.generated {
        let owners = claim.metadata.owner_references.as_ref();
        let owner = owners.into_iter().flatten().find(|owner| owner.controller == Some(true));
        let by_pod = owner.is_some_and(|owner| owner.uid == uid);
        let by_group = owner.is_some_and(|owner| {
            Some(owner.name.as_str()) == group
                && owner.kind == "PodGroup"
                && owner.api_version.starts_with(&format!("{SCHEDULING}/"))
        });
        if !by_pod && !by_group {
            let why = match group {
                Some(group) => format!("neither Pod nor PodGroup {group} is the owner"),
                None => "Pod is not owner".to_owned(),
            };
            return Err(ClaimError::NotOwner {
                namespace: text(&pod.metadata.namespace),
                claim: wanted.name.clone(),
                pod: text(&pod.metadata.name),
                why,
            });
        }
    }
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    let reserved = users.into_iter().flatten().any(|user| {
        let by_group = user.api_group.as_deref() == Some(SCHEDULING)
            && user.resource == "podgroups"
            && Some(user.name.as_str()) == group;
        user.uid == uid || by_group
    });
    if !reserved {
        return Err(ClaimError::NotReserved {
            pod: text(&pod.metadata.name),
            uid,
            claim: wanted.name.clone(),
            claim_uid: text(&claim.metadata.uid),
        });
    }
    Ok(())
}

/// The entry of an allocated claim, before it is prepared.
pub fn claim_entry(claim: &ResourceClaim) -> Result<PreparedClaim, ClaimError> {
    let name = text(&claim.metadata.name);
    let Some(allocation) = claim.status.as_ref().and_then(|status| status.allocation.as_ref())
    else {
        return Err(ClaimError::NotAllocated(name));
    };
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    let drivers = results.into_iter().flatten().map(|result| (result.driver.clone(), Vec::new()));
    Ok(PreparedClaim {
        uid: text(&claim.metadata.uid),
        name,
        namespace: text(&claim.metadata.namespace),
        pods: BTreeSet::new(),
        drivers: drivers.collect(),
        prepared: false,
    })
}

/// The claims that a container uses and which of their requests, an empty one meaning all.
pub fn container_requests(
    pod: &Pod,
    container: &Container,
    rules: ClaimRules,
) -> Result<Vec<(String, Vec<String>)>, ClaimError> {
    let claims = container.resources.as_ref().and_then(|resources| resources.claims.as_ref());
    let mut wanted: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for claim in claims.into_iter().flatten() {
        let request = claim.request.clone().unwrap_or_default();
        wanted.entry(claim.name.as_str()).or_default().push(request);
    }
    let mut found = Vec::new();
    let spec = pod.spec.as_ref();
    for entry in spec.and_then(|spec| spec.resource_claims.as_ref()).into_iter().flatten() {
        let Some(requests) = wanted.get(entry.name.as_str()) else { continue };
        if let (Some(name), _) = claim_name(pod, entry)? {
            found.push((name, requests.clone()));
        }
    }
    if let Some(name) = extended_claim(pod, rules) {
        let requests = extended_requests(pod, container);
        if !requests.is_empty() {
            found.push((name.to_owned(), requests));
        }
    }
    Ok(found)
}

/// Requests of the claim behind extended resources that are this container's.
fn extended_requests(pod: &Pod, container: &Container) -> Vec<String> {
    let asked = side_of(container.resources.as_ref(), Side::Requests);
    let backed = |name: &str| {
        let claimable = is_extended_resource(name) || name.starts_with(CLASS_PREFIX);
        claimable && asked.get(name).is_some_and(|amount| !amount.is_zero())
    };
    let status = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    let mappings = status.into_iter().flat_map(|status| &status.request_mappings);
    mappings
        .filter(|mapping| {
            mapping.container_name == container.name && backed(&mapping.resource_name)
        })
        .map(|mapping| mapping.request_name.clone())
        .collect()
}

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_default()
}
