//! The API server's validation of a pod (upstream: `ValidatePodCreate`).
//!
//! Owns: the rules for every field that a pod of a file or URL can carry, and their wording, which is upstream's.
//! Which rules hold depends on gates; they come in as [`Rules`].
//!
//! Deliberately thin: fields of volumes that a static pod may not use at all (claims, trust bundles, certificates),
//! managed fields and Windows' options are checked only as far as the pod would be accepted.

mod containers;
mod env;
mod faults;
mod handlers;
mod metadata;
mod mounts;
mod projected;
mod resources;
mod scheduling;
mod security;
mod spec;
mod text;
mod volumes;

pub use faults::Fault;

use api::core::v1::{Pod, PodSpec};
use faults::{At, Faults};

/// Rules that feature gates switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `spec.resources` is validated (`PodLevelResources`).
    pub pod_level_resources: bool,
    /// Containers may have restart policies and rules (`ContainerRestartRules`).
    pub restart_rules: bool,
    /// Rules may restart all containers (`RestartAllContainersOnContainerExits`).
    pub restart_all: bool,
    /// Tolerations may compare numbers (`TaintTolerationComparisonOperators`).
    pub toleration_numbers: bool,
    /// User namespaces together with the host's network (`UserNamespacesHostNetworkSupport`).
    pub user_namespace_on_host_network: bool,
    /// Addresses must be written plainly (`StrictIPCIDRValidation`).
    pub strict_addresses: bool,
    /// Label keys of spread constraints are merged into selectors
    /// (`MatchLabelKeysInPodTopologySpreadSelectorMerge`).
    pub merged_label_keys: bool,
    /// The deletion cost must be a number (`PodDeletionCost`).
    pub deletion_cost: bool,
}

impl Default for Rules {
    /// As without any gate set.
    fn default() -> Self {
        Self {
            pod_level_resources: true,
            restart_rules: true,
            restart_all: true,
            toleration_numbers: false,
            user_namespace_on_host_network: false,
            strict_addresses: true,
            merged_label_keys: true,
            deletion_cost: true,
        }
    }
}

/// All faults of a pod that has its defaults.
pub fn faults(pod: &Pod, rules: &Rules) -> Vec<Fault> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let at = At::new("spec");
    let mut list = Faults::default();
    metadata::check(pod, spec, rules, &mut list);
    spec::check(pod, spec, rules, &at, &mut list);
    security::check_annotations_match(pod, spec, &at, &mut list);
    list.into_vec()
}
