//! The kubelet's status merged with the API's at the time of writing (upstream: `mergePodStatus`).

use super::cache::{Cached, equal, normalise, set_transition_time};
use super::conditions::{DISRUPTION_TARGET, find, is_owned, replace_or_push};
use api::core::v1::{Pod, PodCondition, PodStatus};
use api::pod::{PodExt, PodStatusExt};
use jiff::Timestamp;

/// The status to write. While containers could still run a terminal phase is held back.
pub fn merge(
    pod: &Pod,
    api: &PodStatus,
    ours: &PodStatus,
    could_run: bool,
    now: Timestamp,
) -> PodStatus {
    let mut new = ours.clone();
    let ends = !api.is_terminal() && new.is_terminal();
    let mut conditions: Vec<PodCondition> =
        api.conditions.iter().flatten().filter(|c| !is_owned(&c.type_)).cloned().collect();
    conditions.extend(new.conditions.iter().flatten().filter(|c| is_owned(&c.type_)).cloned());
    if ends && !could_run {
        set_transition_time(&mut new, api, DISRUPTION_TARGET, now);
        if let Some(target) = find(&new, DISRUPTION_TARGET) {
            replace_or_push(&mut conditions, target.clone());
        }
    }
    new.conditions = Some(conditions);
    new.resource_claim_statuses.clone_from(&api.resource_claim_statuses);
    new.extended_resource_claim_status.clone_from(&api.extended_resource_claim_status);
    new.node_allocatable_resource_claim_statuses
        .clone_from(&api.node_allocatable_resource_claim_statuses);
    if ends && could_run {
        new.phase.clone_from(&api.phase);
        new.reason.clone_from(&api.reason);
        new.message.clone_from(&api.message);
    }
    if new.is_terminal() {
        force_unready(pod, &mut new, now);
    }
    new
}

/// A finished pod is never shown as ready.
fn force_unready(pod: &Pod, status: &mut PodStatus, now: Timestamp) {
    let holds = |type_: &str| find(status, type_).is_some_and(|c| c.status == "True");
    if !holds("Ready") && !holds("ContainersReady") {
        return;
    }
    let failed = status.phase.as_deref() == Some("Failed");
    let reason = if failed { "PodFailed" } else { "PodCompleted" };
    let old = status.clone();
    for type_ in ["ContainersReady", "Ready"] {
        let condition = PodCondition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            observed_generation: pod.metadata.generation.filter(|g| *g != 0),
            ..PodCondition::default()
        };
        replace_or_push(status.conditions.get_or_insert_default(), condition);
        set_transition_time(status, &old, type_, now);
    }
}

/// Whether the API's copy, as watched, differs in something that the kubelet owns.
pub fn differs(pod: &Pod, api: &PodStatus, ours: &PodStatus) -> bool {
    let mut seen = api.clone();
    normalise(pod, &mut seen);
    !equal(&seen, ours)
}

/// Whether the pod may be deleted from the API: deletion requested, phase terminal there, and nothing of it left here.
pub fn may_be_deleted(api_pod: &Pod, cached: &Cached) -> bool {
    api_pod.metadata.deletion_timestamp.is_some()
        && !api_pod.is_mirror()
        && api_pod.is_terminal()
        && cached.finished
}
