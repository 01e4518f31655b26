//! Whether a volume must grow on this node, and what to tell the claim (upstream: `NodeExpander`).

use api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};
use std::str::FromStr;
use units::Quantity;

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Conditions that end with a finished expansion.
const RESIZE_CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// What to do about a claim's size on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expansion {
    /// It has this size already.
    Done {
        /// Bytes.
        size: i64,
    },
    /// The controller is not done yet.
    Wait,
    /// Ask the driver.
    Expand {
        /// To this size in bytes.
        size: i64,
        /// The claim follows our progress (the resizer speaks the recovery protocol).
        tell_claim: bool,
        /// The claim already has the size (another node did it), so a driver that cannot expand
        /// on the node has nothing to do.
        already_told: bool,
    },
}

fn storage(
    list: Option<&std::collections::BTreeMap<String, api::machinery::api::resource::Quantity>>,
) -> Option<i64> {
    Some(Quantity::from_str(&list?.get("storage")?.0).ok()?.value())
}

/// The size that the claim's status reports.
pub fn claim_size(claim: &PersistentVolumeClaim) -> Option<i64> {
    storage(claim.status.as_ref()?.capacity.as_ref())
}

/// Decides, given the persistent volume's capacity.
pub fn expansion(claim: &PersistentVolumeClaim, volume_size: i64) -> Expansion {
    let Some(status) = claim.status.as_ref() else { return Expansion::Wait };
    let reported = claim_size(claim).unwrap_or_default();
    let statuses = status.allocated_resource_statuses.as_ref();
    if status.allocated_resources.is_none() && statuses.is_none() {
        if reported >= volume_size {
            return Expansion::Done { size: volume_size };
        }
        return Expansion::Expand { size: volume_size, tell_claim: true, already_told: false };
    }
    let size = storage(status.allocated_resources.as_ref()).unwrap_or(volume_size);
    let state = statuses.and_then(|s| s.get("storage")).map(String::as_str).unwrap_or_default();
    let told = reported >= size && state.is_empty();
    let shared = claim
        .spec
        .as_ref()
        .and_then(|s| s.access_modes.as_ref())
        .is_some_and(|m| m.iter().any(|mode| mode == "ReadWriteMany"));
    let excused = claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(NOT_REQUIRED));
    if told && shared && !excused {
        return Expansion::Expand { size, tell_claim: false, already_told: true };
    }
    if told {
        return Expansion::Done { size };
    }
    if state == PENDING || state == IN_PROGRESS {
        return Expansion::Expand { size, tell_claim: true, already_told: false };
    }
    Expansion::Wait
}

/// Says that this node is at it.
pub fn in_progress_patch(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"allocatedResourceStatuses": {"storage": IN_PROGRESS}}
    })
}

/// Says that the volume has its new size.
pub fn finished_patch(claim: &PersistentVolumeClaim, size: i64) -> Value {
    let removed: Vec<Value> = claim
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .filter(|c| RESIZE_CONDITIONS.contains(&c.type_.as_str()))
        .map(|c| json!({"$patch": "delete", "type": c.type_}))
        .collect();
    let mut status = json!({
        "capacity": {"storage": Quantity::from_bytes(size).to_string()},
        "allocatedResourceStatuses": {"storage": null}
    });
    if let (false, Some(map)) = (removed.is_empty(), status.as_object_mut()) {
        map.insert("conditions".into(), Value::Array(removed));
    }
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// Says what went wrong; `infeasible` stops further tries until the user changes the claim.
pub fn failed_patch(error: &str, infeasible: bool, now: jiff::Timestamp) -> Value {
    let condition = json!({
        "type": "NodeResizeError",
        "status": "True",
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "message": format!("failed to expand pvc with {error}")
    });
    let mut status = json!({"conditions": [condition]});
    if let (true, Some(map)) = (infeasible, status.as_object_mut()) {
        map.insert("allocatedResourceStatuses".into(), json!({"storage": INFEASIBLE}));
    }
    json!({ "status": status })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(modes: &[&str], status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "resourceVersion": "7"},
            "spec": {"accessModes": modes}, "status": status
        }))
        .unwrap()
    }

    #[test]
    fn each_state_of_the_claim_has_its_answer() {
        let gi = 1 << 30;
        let expand =
            |tell_claim, already_told| Expansion::Expand { size: 2 * gi, tell_claim, already_told };
        let cases = [
            (
                "old resizer",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "1Gi"}}),
                expand(true, false),
            ),
            (
                "old, done",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "2Gi"}}),
                Expansion::Done { size: 2 * gi },
            ),
            (
                "pending",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "1Gi"},
                "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"}}),
                expand(true, false),
            ),
            (
                "controller at work",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "1Gi"},
                "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"}}),
                Expansion::Wait,
            ),
            (
                "infeasible",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "1Gi"},
                "allocatedResources": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}),
                Expansion::Wait,
            ),
            (
                "done",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "2Gi"},
                "allocatedResources": {"storage": "2Gi"}}),
                Expansion::Done { size: 2 * gi },
            ),
            (
                "done elsewhere, shared",
                &["ReadWriteMany"][..],
                json!({"capacity": {"storage": "2Gi"},
                "allocatedResources": {"storage": "2Gi"}}),
                expand(false, true),
            ),
        ];
        for (name, modes, status, expected) in cases {
            assert_eq!(expansion(&claim(modes, status), 2 * gi), expected, "{name}");
        }
    }

    #[test]
    fn a_finished_expansion_takes_its_traces_with_it() {
        let c = claim(
            &["ReadWriteOnce"],
            json!({"conditions": [
                {"type": "FileSystemResizePending", "status": "True"},
                {"type": "ModifyingVolume", "status": "True"}]}),
        );
        assert_eq!(
            finished_patch(&c, 2 << 30),
            json!({"metadata": {"resourceVersion": "7"}, "status": {
                "capacity": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": null},
                "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}]}})
        );
    }
}
