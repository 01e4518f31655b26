//! Whether this node takes a pod, or a resize of one.
//!
//! Owns: the chain of checks in upstream's order, each with its exact reason and message. The chain has two halves,
//! because exclusive CPUs and devices are allocated between them by another subsystem:
//! [`before_placement`] (resize, pressure, sysctls) → placement → [`after_placement`] (predicates, AppArmor, features,
//! shutdown).
//!
//! Promises: the first failing check decides; nothing here changes any state.

mod affinity;
mod predicates;
pub mod preempt;
pub mod resize;
pub mod sysctl;
mod taints;
#[cfg(test)]
mod tests;

pub use affinity::matches_node;
pub use predicates::{Failure, failures};
pub use taints::{tolerates, untolerated};

use crate::pod::restarts_all;
use crate::resources::{QosClass, qos_class};
use api::core::v1::{Node, Pod, Taint};
use api::pod::{ContainerExt, PodExt};
use resize::ResizePolicy;
use sysctl::SysctlPolicy;

/// Pods of this priority and above are critical.
pub const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Why a pod is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// `status.reason` and event reason.
    pub reason: String,
    /// Event message; the status says `Pod was rejected: ` before it.
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// The reason as label of `kubelet_admission_rejections_total`.
    pub fn metric_label(&self) -> &str {
        const KNOWN: [&str; 21] = [
            "AppArmor",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "PodOSNotSupported",
            "InvalidNodeInfo",
            "InitContainerRestartPolicyForbidden",
            "SupplementalGroupsPolicyNotSupported",
            "UnexpectedAdmissionError",
            "UnknownReason",
            "UnexpectedPredicateFailureType",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfephemeral-storage",
            "OutOfpods",
            "PodLevelResourcesNotSupported",
            "PodFeatureUnsupported",
            "Evicted",
            "SysctlForbidden",
            "TopologyAffinityError",
            "NodeShutdown",
            "VolumeAttachmentLimitExceeded",
            "node(s) had taints that the pod didn't tolerate",
        ];
        if KNOWN.contains(&self.reason.as_str()) {
            &self.reason
        } else if self.reason.starts_with("OutOf") {
            "OutOfExtendedResources"
        } else {
            "Other"
        }
    }
}

/// Node pressure, as the eviction loop reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// Memory is short.
    Memory,
    /// Disk space or inodes are short.
    Disk,
    /// Process ids are short.
    Pid,
}

impl Pressure {
    /// The node condition's type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

/// Settings that decide about admission, resolved once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Allowed sysctls.
    pub sysctls: SysctlPolicy,
    /// What resizes are possible.
    pub resize: ResizePolicy,
    /// AppArmor is enabled on the host.
    pub app_armor: bool,
    /// Gate PodLevelResources.
    pub pod_level_resources: bool,
    /// Features this node declares; `None` when the gate NodeDeclaredFeatures is off.
    pub declared_features: Option<Vec<String>>,
    /// Gate TaintTolerationComparisonOperators.
    pub taint_comparison: bool,
}

/// The input of an admission.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionView<'a> {
    /// The pod: a new one with allocated resources if a checkpoint has them, a resized one with the desired resources.
    pub pod: &'a Pod,
    /// The pod as it is allocated now, when this is a resize.
    pub resized_from: Option<&'a Pod>,
    /// The other active pods with their allocated resources.
    pub others: &'a [&'a Pod],
    /// The node; `None` if it is not known.
    pub node: Option<&'a Node>,
    /// Pressure in force.
    pub pressure: &'a [Pressure],
    /// A graceful shutdown is in progress.
    pub shutting_down: bool,
    /// Settings.
    pub config: &'a AdmissionConfig,
}

/// Checks before CPUs, memory and devices are allocated.
pub fn before_placement(view: &AdmissionView<'_>) -> Result<(), Rejection> {
    if let Some(from) = view.resized_from {
        resize::check(&view.config.resize, from, view.pod)?;
    }
    check_pressure(view)?;
    sysctl::check(&view.config.sysctls, view.pod)
}

/// The result of the checks after placement.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The node takes the pod.
    Admitted,
    /// The node rejects the pod.
    Rejected(Rejection),
    /// The node takes the pod once these pods (by index in `others`, in order) are ended.
    Preempt(preempt::Victims),
}

/// Checks after CPUs, memory and devices were allocated.
pub fn after_placement(view: &AdmissionView<'_>) -> Verdict {
    match predicates::check(view) {
        Ok(None) => {}
        Ok(Some(victims)) => {
            return match check_rest(view) {
                Ok(()) => Verdict::Preempt(victims),
                Err(rejection) => Verdict::Rejected(rejection),
            };
        }
        Err(rejection) => return Verdict::Rejected(rejection),
    }
    match check_rest(view) {
        Ok(()) => Verdict::Admitted,
        Err(rejection) => Verdict::Rejected(rejection),
    }
}

/// Whether the only obstacle is node affinity, so that a fresh read of the node's labels may help.
pub fn fresh_node_may_help(view: &AdmissionView<'_>) -> bool {
    matches!(failures(view).as_slice(), [Failure::Predicate { name: "NodeAffinity", .. }])
}

fn check_rest(view: &AdmissionView<'_>) -> Result<(), Rejection> {
    check_app_armor(view)?;
    if !view.config.pod_level_resources && has_pod_level_resources(view.pod) {
        return Err(Rejection::new(
            "PodLevelResourcesNotSupported",
            "PodLevelResources feature gate is disabled",
        ));
    }
    check_declared_features(view)?;
    if view.shutting_down {
        return Err(Rejection::new(
            "NodeShutdown",
            "Pod was rejected as the node is shutting down.",
        ));
    }
    Ok(())
}

/// Whether a pod is critical: static, mirror or of system priority.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || pod.is_mirror() || has_system_priority(pod)
}

/// Whether a pod has a system priority ([`CRITICAL_PRIORITY`] or above).
pub fn has_system_priority(pod: &Pod) -> bool {
    priority(pod).is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

fn priority(pod: &Pod) -> Option<i32> {
    pod.spec.as_ref()?.priority
}

fn has_pod_level_resources(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    own.is_some_and(|r| {
        r.requests.as_ref().is_some_and(|l| !l.is_empty())
            || r.limits.as_ref().is_some_and(|l| !l.is_empty())
    })
}

/// Upstream: `evictionManager.Admit`.
fn check_pressure(view: &AdmissionView<'_>) -> Result<(), Rejection> {
    if view.pressure.is_empty() || is_critical(view.pod) {
        return Ok(());
    }
    if view.pressure == [Pressure::Memory] {
        if qos_class(view.pod, view.config.pod_level_resources) != QosClass::BestEffort {
            return Ok(());
        }
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if tolerates(view.pod, &taint, view.config.taint_comparison) {
            return Ok(());
        }
    }
    let names: Vec<&str> = view.pressure.iter().map(|p| p.as_str()).collect();
    Err(Rejection::new("Evicted", format!("The node had condition: [{}]. ", names.join(" "))))
}

/// Upstream: `appArmorAdmitHandler`; only for pods that never ran.
fn check_app_armor(view: &AdmissionView<'_>) -> Result<(), Rejection> {
    let phase = view.pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase.is_some_and(|phase| phase != "Pending") {
        return Ok(());
    }
    let profiles = app_armor_profiles(view.pod);
    if profiles.iter().all(|p| p == "unconfined") {
        return Ok(());
    }
    let refuse =
        |cause: &str| Err(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {cause}")));
    if !view.config.app_armor {
        return refuse("AppArmor is not enabled on the host");
    }
    if profiles.iter().any(|p| p.strip_prefix("localhost/").is_some_and(|n| n.trim().is_empty())) {
        return refuse("invalid empty AppArmor profile name: \"localhost/\"");
    }
    Ok(())
}

fn app_armor_profiles(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let describe = |profile: &api::core::v1::AppArmorProfile| match profile.type_.as_str() {
        "Unconfined" => "unconfined".to_owned(),
        "Localhost" => {
            format!("localhost/{}", profile.localhost_profile.as_deref().unwrap_or_default())
        }
        _ => "runtime/default".to_owned(),
    };
    let of_pod = spec.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    let mut found: Vec<String> = of_pod.map(describe).into_iter().collect();
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in all {
        let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
        let key = format!("container.apparmor.security.beta.kubernetes.io/{}", container.name);
        let annotated = pod.metadata.annotations.as_ref().and_then(|a| a.get(&key)).cloned();
        found.extend(own.map(describe).or(annotated).filter(|p| !p.is_empty()));
    }
    found
}

/// Event message for an update that needs features which the node does not declare; `None` if it declares all of them,
/// or the gate NodeDeclaredFeatures is off.
pub fn update_fault(old: &Pod, new: &Pod, declared: Option<&[String]>) -> Option<String> {
    let declared = declared?;
    let (old, new) = (old.spec.as_ref()?, new.spec.as_ref()?);
    let before = old.init_containers.iter().flatten();
    let mut init = before.zip(new.init_containers.iter().flatten());
    let needs = [
        (
            "InPlacePodLevelResourcesVerticalScaling",
            !crate::allocation::same(old.resources.as_ref(), new.resources.as_ref()),
        ),
        (
            "InPlacePodVerticalScalingInitContainers",
            init.any(|(was, is)| {
                !was.is_sidecar()
                    && !crate::allocation::same(was.resources.as_ref(), is.resources.as_ref())
            }),
        ),
    ];
    missing_features(&needs, declared)
}

/// The features that a pod needs and the node does not declare, in upstream's words.
fn missing_features(needs: &[(&str, bool)], declared: &[String]) -> Option<String> {
    let missing: Vec<&str> = needs
        .iter()
        .filter(|(name, needed)| *needed && !declared.iter().any(|d| d == name))
        .map(|(name, _)| *name)
        .collect();
    let text = "Pod requires node features that are not available";
    (!missing.is_empty()).then(|| format!("{text}: {}", missing.join(", ")))
}

/// Upstream: `declaredFeaturesAdmitHandler`.
fn check_declared_features(view: &AdmissionView<'_>) -> Result<(), Rejection> {
    let Some(declared) = &view.config.declared_features else { return Ok(()) };
    let spec = view.pod.spec.as_ref();
    let host_network = spec.and_then(|s| s.host_network).unwrap_or_default();
    let own_users = spec.and_then(|s| s.host_users) == Some(false);
    let needs = [
        ("RestartAllContainersOnContainerExits", restarts_all(view.pod)),
        ("UserNamespacesHostNetworkSupport", host_network && own_users),
    ];
    match missing_features(&needs, declared) {
        Some(text) => Err(Rejection::new("PodFeatureUnsupported", text)),
        None => Ok(()),
    }
}
