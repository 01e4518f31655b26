//! Resources that pods were admitted with, and resources that were last applied, each with a checkpoint in the Go
//! kubelet's format (`allocated_pods_state`, `actuated_pods_state`).
//!
//! Promises: same file form and checksum as the Go kubelet; a file that does not verify is an error, never an empty
//! state. Quantities keep their text.

use crate::pod::Actuated;
use crate::resources::{Amounts, Side, side_of};
use api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use api::ids::PodUid;
use api::pod::ContainerExt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use units::gojson::Shape;

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It is not the JSON we expect; in upstream's words.
    #[error("{0}")]
    Unreadable(String),
    /// Its content was changed or cut.
    #[error("checkpoint is corrupted")]
    Corrupt,
}

/// The allocated resources of one pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PodAllocation {
    /// By container name.
    #[serde(rename = "ContainerResources", default, deserialize_with = "null_is_empty")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// Of the pod itself.
    #[serde(rename = "PodLevelResources", default)]
    pub pod_level: Option<ResourceRequirements>,
}

impl PodAllocation {
    /// The spec's resources, as far as they can be resized.
    pub fn of(pod: &Pod, gates: AllocationGates) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let init = spec.init_containers.iter().flatten();
        let containers = init
            .filter(|c| gates.init_containers || c.is_sidecar())
            .chain(&spec.containers)
            .map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default()))
            .collect();
        let pod_level = spec.resources.clone().filter(|_| gates.pod_level);
        Self { containers, pod_level }
    }

    /// The pod with these resources instead of those in its spec; `None` if they are the same.
    pub fn apply(&self, pod: &Pod, gates: AllocationGates) -> Option<Pod> {
        let wished = pod.spec.as_ref()?;
        let pod_level =
            gates.pod_level && !same(wished.resources.as_ref(), self.pod_level.as_ref());
        let init = wished.init_containers.iter().flatten();
        // Called for every pod at every change of any pod: the unchanged case must not clone.
        if !pod_level && wished.containers.iter().chain(init).all(|c| self.differing(c).is_none()) {
            return None;
        }
        let mut updated = pod.clone();
        let spec = updated.spec.as_mut()?;
        if pod_level {
            spec.resources.clone_from(&self.pod_level);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            if let Some(own) = self.differing(container) {
                container.resources = Some(own.clone());
            }
        }
        Some(updated)
    }

    /// The container's allocated resources, if they differ from its spec.
    fn differing(&self, container: &Container) -> Option<&ResourceRequirements> {
        let own = self.containers.get(&container.name)?;
        (!same(container.resources.as_ref(), Some(own))).then_some(own)
    }
}

impl From<&PodAllocation> for Actuated {
    fn from(allocation: &PodAllocation) -> Self {
        Self { containers: allocation.containers.clone(), pod_level: allocation.pod_level.clone() }
    }
}

/// Gates that decide what an allocation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationGates {
    /// InPlacePodVerticalScalingInitContainers.
    pub init_containers: bool,
    /// InPlacePodLevelResourcesVerticalScaling.
    pub pod_level: bool,
}

impl Default for AllocationGates {
    fn default() -> Self {
        Self { init_containers: true, pod_level: true }
    }
}

/// All pods' allocations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AllocationState {
    pods: BTreeMap<PodUid, PodAllocation>,
}

const CHECKPOINT: Shape<'_> =
    ("state.Checkpoint", &[("data", "string"), ("checksum", "checksum.Checksum")]);
const ENTRIES: Shape<'_> =
    ("state.PodResourceCheckpointInfo", &[("entries", "state.PodResourceInfoMap")]);

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    #[serde(default)]
    data: String,
    #[serde(default)]
    checksum: u64,
}

#[derive(Serialize, Deserialize, Default)]
struct Entries {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<PodUid, PodAllocation>,
}

impl AllocationState {
    /// Reads a checkpoint.
    pub fn from_checkpoint(text: &str) -> Result<Self, CheckpointError> {
        let unreadable = |text: &str, error| units::gojson::fault(text, &error);
        let checkpoint: Checkpoint = units::gojson::decode(text, CHECKPOINT)
            .map_err(|error| CheckpointError::Unreadable(unreadable(text, error)))?;
        if checkpoint.checksum != u64::from(units::string_checksum(&checkpoint.data)) {
            return Err(CheckpointError::Corrupt);
        }
        let entries: Entries =
            units::gojson::decode(&checkpoint.data, ENTRIES).map_err(|error| {
                let why = unreadable(&checkpoint.data, error);
                CheckpointError::Unreadable(format!(
                    "failed to get pod resource information: {why}"
                ))
            })?;
        Ok(Self { pods: entries.entries })
    }

    /// The checkpoint's text.
    pub fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let data = units::gojson::to_string(&Entries { entries: self.pods.clone() })?;
        let checksum = u64::from(units::string_checksum(&data));
        units::gojson::to_string(&Checkpoint { data, checksum })
    }

    /// A pod's allocation.
    pub fn get(&self, uid: &PodUid) -> Option<&PodAllocation> {
        self.pods.get(uid)
    }

    /// Sets a pod's allocation; returns whether it changed.
    pub fn set(&mut self, uid: &PodUid, allocation: PodAllocation) -> bool {
        self.pods.insert(uid.clone(), allocation.clone()) != Some(allocation)
    }

    /// Sets one container's allocation; returns whether it changed.
    pub fn set_container(
        &mut self,
        uid: &PodUid,
        container: &str,
        resources: ResourceRequirements,
    ) -> bool {
        let pod = self.pods.entry(uid.clone()).or_default();
        pod.containers.insert(container.to_owned(), resources.clone()) != Some(resources)
    }

    /// Sets the pod-level allocation; returns whether it changed.
    pub fn set_pod_level(&mut self, uid: &PodUid, resources: Option<ResourceRequirements>) -> bool {
        let pod = self.pods.entry(uid.clone()).or_default();
        std::mem::replace(&mut pod.pod_level, resources.clone()) != resources
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Removes pods for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|uid, _| keep(uid));
    }
}

/// A container's resize for metrics: resource, side and what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedResize {
    /// `cpu` or `memory`.
    pub resource: &'static str,
    /// `requests` or `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase` or `decrease`.
    pub operation: &'static str,
}

/// What an update of the spec changes in containers' CPU and memory.
pub fn requested_resizes(old: &Pod, new: &Pod) -> Vec<RequestedResize> {
    let empty = PodSpec::default();
    let old = old.spec.as_ref().unwrap_or(&empty);
    let new = new.spec.as_ref().unwrap_or(&empty);
    let mut found = Vec::new();
    let all = |spec: &PodSpec| -> Vec<Container> {
        spec.init_containers.iter().flatten().chain(&spec.containers).cloned().collect()
    };
    let before = all(old);
    for container in all(new) {
        let Some(was) = before.iter().find(|c| c.name == container.name) else { continue };
        for (side, requirement) in [(Side::Requests, "requests"), (Side::Limits, "limits")] {
            let had = side_of(was.resources.as_ref(), side);
            let has = side_of(container.resources.as_ref(), side);
            for resource in ["cpu", "memory"] {
                // An amount of zero counts as unset.
                let amount = |list: &Amounts| list.get(resource).copied().filter(|q| !q.is_zero());
                let operation = match (amount(&had), amount(&has)) {
                    (None, Some(_)) => "add",
                    (Some(_), None) => "remove",
                    (Some(a), Some(b)) if b > a => "increase",
                    (Some(a), Some(b)) if b < a => "decrease",
                    _ => continue,
                };
                found.push(RequestedResize { resource, requirement, operation });
            }
        }
    }
    found
}

/// Whether an update changes a pod's desired resources (upstream: `recordResizeOperations`).
pub fn wishes_otherwise(old: &Pod, new: &Pod) -> bool {
    let own = |pod: &'_ Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
    !requested_resizes(old, new).is_empty() || !same(own(old).as_ref(), own(new).as_ref())
}

/// Whether two resource requirements are equal, however their quantities are written.
pub fn same<'a>(a: Option<&'a ResourceRequirements>, b: Option<&'a ResourceRequirements>) -> bool {
    let claims =
        |r: Option<&'a ResourceRequirements>| r.and_then(|r| r.claims.as_deref()).unwrap_or(&[]);
    [Side::Requests, Side::Limits].into_iter().all(|side| side_of(a, side) == side_of(b, side))
        && claims(a) == claims(b)
}

fn null_is_empty<'de, D>(
    deserializer: D,
) -> Result<BTreeMap<String, ResourceRequirements>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::pod;
    use api::machinery::api::resource::Quantity;

    fn cpu(amount: &str) -> ResourceRequirements {
        ResourceRequirements {
            requests: Some([("cpu".to_owned(), Quantity(amount.to_owned()))].into()),
            ..ResourceRequirements::default()
        }
    }

    fn sized(amount: &str) -> Pod {
        let mut pod = pod("i:x s:s a");
        pod.spec.as_mut().unwrap().containers[0].resources = Some(cpu(amount));
        pod
    }

    #[test]
    fn the_checkpoint_has_the_go_form_and_reads_back() {
        let mut state = AllocationState::default();
        let allocation =
            PodAllocation { containers: [("a".to_owned(), cpu("1"))].into(), pod_level: None };
        assert!(state.set(&"u".into(), allocation.clone()));
        assert!(!state.set(&"u".into(), allocation));
        let text = state.to_checkpoint().unwrap();
        let data = r#"{"entries":{"u":{"ContainerResources":{"a":{"requests":{"cpu":"1"}}},"PodLevelResources":null}}}"#;
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["data"], data);
        assert_eq!(AllocationState::from_checkpoint(&text).unwrap(), state);
    }

    #[test]
    fn a_changed_checkpoint_is_refused() {
        let text = AllocationState::default().to_checkpoint().unwrap();
        assert!(AllocationState::from_checkpoint(&text).is_ok());
        let broken = text.replace("checksum\":", "checksum\":1");
        assert!(matches!(AllocationState::from_checkpoint(&broken), Err(CheckpointError::Corrupt)));
        assert!(AllocationState::from_checkpoint("{").is_err());
    }

    #[test]
    fn a_pod_keeps_what_it_was_given_until_a_resize_is_accepted() {
        let gates = AllocationGates::default();
        let allocation = PodAllocation::of(&sized("1"), gates);
        assert_eq!(allocation.apply(&sized("1"), gates), None);
        assert_eq!(allocation.apply(&sized("1000m"), gates), None, "written differently only");
        let back = allocation.apply(&sized("2"), gates).unwrap();
        assert_eq!(back.spec.unwrap().containers[0].resources, Some(cpu("1")));
    }

    #[test]
    fn without_the_gate_only_sidecars_count_among_init_containers() {
        let gates = AllocationGates { init_containers: false, ..AllocationGates::default() };
        let names: Vec<_> = PodAllocation::of(&sized("1"), gates).containers.into_keys().collect();
        assert_eq!(names, ["a", "s"]);
    }

    #[test]
    fn wishes_are_counted_by_resource_side_and_direction() {
        let found = requested_resizes(&sized("1"), &sized("2"));
        let expected =
            RequestedResize { resource: "cpu", requirement: "requests", operation: "increase" };
        assert_eq!(found, [expected]);
        let operations = |old: &str, new: &str| -> Vec<&str> {
            requested_resizes(&sized(old), &sized(new)).iter().map(|r| r.operation).collect()
        };
        assert_eq!(operations("0", "2"), ["add"]);
        assert_eq!(operations("2", "0"), ["remove"]);
        let without = pod("i:x s:s a");
        assert!(requested_resizes(&without, &sized("0")).is_empty());
        assert!(wishes_otherwise(&sized("1"), &sized("2")));
        assert!(!wishes_otherwise(&sized("1"), &sized("1000m")));
        let mut whole = sized("1");
        whole.spec.as_mut().unwrap().resources = Some(cpu("3"));
        assert!(wishes_otherwise(&sized("1"), &whole));
    }
}
