//! Whether a volume must be expanded on this node, and the claim's status patches (upstream: `NodeExpander`).

use api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::str::FromStr;
use units::Quantity;

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Conditions that end with a finished expansion.
const RESIZE_CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// When it is checked whether a volume must be expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// Right after it was mounted.
    Mount,
    /// While it is in use and smaller than its desired size.
    InUse,
}

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
        /// The size as the claim's status shows it.
        amount: String,
        /// The resizer uses the recovery protocol: the claim's status tracks the progress on the node.
        follows: bool,
        /// The claim's status already has the size (another node expanded it), so a driver without node
        /// expansion has nothing to do.
        already_told: bool,
        /// The claim requests another size by now.
        overtaken: bool,
    },
}

type Amounts = BTreeMap<String, api::machinery::api::resource::Quantity>;

fn amount(list: Option<&Amounts>) -> Option<&str> {
    Some(list?.get("storage")?.0.as_str())
}

fn storage(list: Option<&Amounts>) -> Option<i64> {
    Some(Quantity::from_str(amount(list)?).ok()?.value())
}

/// The size that the claim's status reports.
pub fn claim_size(claim: &PersistentVolumeClaim) -> Option<i64> {
    storage(claim.status.as_ref()?.capacity.as_ref())
}

/// Decides, given the persistent volume's capacity; `None` without one. A volume that is in use here and was not
/// expanded here is expanded although its claim may have the size, unless the claim's status tracks the expansion.
pub fn expansion(
    claim: &PersistentVolumeClaim,
    capacity: Option<&Amounts>,
    occasion: Occasion,
) -> Option<Expansion> {
    let (volume_size, volume_amount) = (storage(capacity)?, amount(capacity)?);
    let Some(status) = claim.status.as_ref() else { return Some(Expansion::Wait) };
    let reported = claim_size(claim).unwrap_or_default();
    let statuses = status.allocated_resource_statuses.as_ref();
    let state = statuses.and_then(|s| s.get("storage")).map(String::as_str).unwrap_or_default();
    let allocated = status.allocated_resources.as_ref();
    let expand = |size: i64, amount: &str, follows: bool, already_told: bool| {
        let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref());
        let requested = storage(requests.and_then(|r| r.requests.as_ref())).unwrap_or_default();
        let overtaken = requested != size;
        Expansion::Expand { size, amount: amount.to_owned(), follows, already_told, overtaken }
    };
    if allocated.is_none() && state.is_empty() {
        let told = reported >= volume_size;
        if told && occasion == Occasion::Mount {
            return Some(Expansion::Done { size: volume_size });
        }
        return Some(expand(volume_size, volume_amount, false, told));
    }
    let size = storage(allocated).unwrap_or(volume_size);
    let shown = amount(allocated).unwrap_or(volume_amount);
    let told = reported >= size && state.is_empty();
    let modes = claim.spec.as_ref().and_then(|s| s.access_modes.as_ref());
    let shared = modes.is_some_and(|m| m.iter().any(|mode| mode == "ReadWriteMany"));
    let excused = claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(NOT_REQUIRED));
    if told && shared && !excused {
        return Some(expand(size, shown, true, true));
    }
    if told {
        return Some(Expansion::Done { size });
    }
    if state == PENDING || state == IN_PROGRESS {
        return Some(expand(size, shown, true, false));
    }
    Some(Expansion::Wait)
}

/// The patch for an expansion in progress on this node.
pub fn in_progress_patch(claim: &PersistentVolumeClaim) -> Value {
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"allocatedResourceStatuses": {"storage": IN_PROGRESS}}
    })
}

/// The patch for a finished expansion.
pub fn finished_patch(claim: &PersistentVolumeClaim, amount: &str) -> Value {
    let removed: Vec<Value> = claim
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .filter(|c| RESIZE_CONDITIONS.contains(&c.type_.as_str()))
        .map(|c| json!({"$patch": "delete", "type": c.type_}))
        .collect();
    let mut status = json!({
        "capacity": {"storage": amount},
        "allocatedResourceStatuses": {"storage": null}
    });
    if let (false, Some(map)) = (removed.is_empty(), status.as_object_mut()) {
        map.insert("conditions".into(), Value::Array(removed));
    }
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// The patch for a failed expansion, unless the status already shows a failure; `infeasible` stops further attempts
/// until the user changes the claim.
pub fn failed_patch(
    claim: &PersistentVolumeClaim,
    error: &str,
    infeasible: bool,
    now: jiff::Timestamp,
) -> Value {
    const FAILED: &str = "NodeResizeError";
    let mut status = serde_json::Map::new();
    let mut known = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    if !known.any(|c| c.type_ == FAILED && c.status == "True") {
        let condition = json!({
            "type": FAILED,
            "status": "True",
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "message": format!("failed to expand pvc with {error}")
        });
        status.insert("conditions".into(), json!([condition]));
    }
    if infeasible {
        status.insert("allocatedResourceStatuses".into(), json!({"storage": INFEASIBLE}));
    }
    if status.is_empty() { json!({}) } else { json!({ "status": status }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(modes: &[&str], status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "resourceVersion": "7"},
            "spec": {"accessModes": modes, "resources": {"requests": {"storage": "2Gi"}}},
            "status": status
        }))
        .unwrap()
    }

    fn amounts(storage: &str) -> Amounts {
        [("storage".to_owned(), api::machinery::api::resource::Quantity(storage.to_owned()))].into()
    }

    #[test]
    fn each_state_of_the_claim_has_its_answer() {
        let gi = 1 << 30;
        let expand = |follows, already_told| Expansion::Expand {
            size: 2 * gi,
            amount: "2Gi".into(),
            follows,
            already_told,
            overtaken: false,
        };
        let cases = [
            (
                "old resizer",
                &["ReadWriteOnce"][..],
                json!({"capacity": {"storage": "1Gi"}}),
                expand(false, false),
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
                expand(true, true),
            ),
        ];
        for (name, modes, status, expected) in cases {
            let found = expansion(&claim(modes, status), Some(&amounts("2Gi")), Occasion::Mount);
            assert_eq!(found, Some(expected), "{name}");
        }
        assert_eq!(expansion(&claim(&[], json!({})), None, Occasion::Mount), None);
        let done = claim(&["ReadWriteOnce"], json!({"capacity": {"storage": "2Gi"}}));
        let found = expansion(&done, Some(&amounts("2Gi")), Occasion::InUse);
        assert_eq!(found, Some(expand(false, true)), "old, done elsewhere");
    }

    #[test]
    fn the_claim_is_told_its_size_as_it_was_asked_for() {
        let c = claim(
            &["ReadWriteOnce"],
            json!({"capacity": {"storage": "1G"}, "allocatedResources": {"storage": "2G"},
                "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}),
        );
        let found = expansion(&c, Some(&amounts("3G")), Occasion::Mount);
        let Some(Expansion::Expand { amount, overtaken: true, .. }) = found else {
            panic!("{found:?}")
        };
        assert_eq!(finished_patch(&c, &amount)["status"]["capacity"], json!({"storage": "2G"}));
    }

    #[test]
    fn a_failure_is_told_once_until_it_is_over() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let fresh = claim(&[], json!({}));
        let message = &failed_patch(&fresh, "x", false, now)["status"]["conditions"][0]["message"];
        assert_eq!(message, "failed to expand pvc with x");
        let told =
            claim(&[], json!({"conditions": [{"type": "NodeResizeError", "status": "True"}]}));
        assert_eq!(failed_patch(&told, "y", false, now), json!({}));
        assert_eq!(
            failed_patch(&told, "y", true, now),
            json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}})
        );
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
            finished_patch(&c, "2Gi"),
            json!({"metadata": {"resourceVersion": "7"}, "status": {
                "capacity": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": null},
                "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}]}})
        );
    }
}
