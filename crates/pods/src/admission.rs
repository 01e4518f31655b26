//! Whether a pod may run here, and with which resources.
//!
//! Owns: the chain of checks (decisions are `engine::admission`'s, allocation is placement's), pods that
//! wait for room, resizes that wait for room, and the checkpoint of what was admitted.
//!
//! Promises: a pod that was admitted before our restart is judged with the resources it was admitted
//! with; an admitted pod is on disk before it starts; waiting for room holds up nobody else.

pub(crate) mod checkpoint;
pub(crate) mod resize;

use crate::shared::Shared;
use api::core::v1::{Node, Pod};
use api::machinery::api::resource::Quantity as ApiQuantity;
use api::pod::PodExt;
use engine::admission::preempt::Victims;
use engine::admission::resize::ResizePolicy;
use engine::admission::sysctl::{SysctlFault, SysctlPolicy};
use engine::admission::{
    self as rules, AdmissionView, Pressure, Rejection, Verdict, after_placement, before_placement,
    fresh_node_may_help,
};
use ports::{ActivePods, NodeView, NotPlaced, PlacementRejection, PressureCondition, Roots};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Settings of admission.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// `allowedUnsafeSysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// What resizes are possible.
    pub resize: ResizePolicy,
    /// Gate PodLevelResources.
    pub pod_level_resources: bool,
    /// Features this node declares; `None` when the gate NodeDeclaredFeatures is off.
    pub declared_features: Option<Vec<String>>,
    /// Gate TaintTolerationComparisonOperators.
    pub taint_comparison: bool,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            allowed_unsafe_sysctls: Vec::new(),
            resize: ResizePolicy::default(),
            pod_level_resources: true,
            declared_features: None,
            taint_comparison: false,
        }
    }
}

/// The chain.
#[derive(Debug)]
pub(crate) struct Admission {
    config: rules::AdmissionConfig,
}

/// What admission says about a pod.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It may run.
    Yes,
    /// It may run once these pods are ended, because of this resource.
    After(Vec<Arc<Pod>>, String),
    /// It may not.
    No(Rejection),
    /// It is judged again when this is there.
    Waits(String),
}

impl Admitted {
    fn after(victims: &Victims, others: &[&Pod]) -> Self {
        let chosen = victims.pods.iter().filter_map(|index| others.get(*index));
        let chosen = chosen.map(|pod| Arc::new((*pod).clone())).collect();
        Self::After(chosen, victims.signal.clone())
    }

    fn without_place(not_placed: NotPlaced) -> Self {
        match not_placed {
            NotPlaced::Refused(PlacementRejection { reason, message }) => {
                Self::No(Rejection { reason, message })
            }
            NotPlaced::Waits(what) => Self::Waits(what),
        }
    }
}

impl Admission {
    pub(crate) fn new(config: AdmissionConfig, roots: &Roots) -> Result<Self, SysctlFault> {
        let sysctls = SysctlPolicy::new(kernel(roots), &config.allowed_unsafe_sysctls)?;
        Ok(Self {
            config: rules::AdmissionConfig {
                sysctls,
                resize: config.resize,
                app_armor: app_armor(roots),
                pod_level_resources: config.pod_level_resources,
                declared_features: config.declared_features,
                taint_comparison: config.taint_comparison,
            },
        })
    }

    /// What to tell of an update that needs more than the node declares.
    pub(crate) fn update_fault(&self, old: &Pod, new: &Pod) -> Option<String> {
        rules::update_fault(old, new, self.config.declared_features.as_deref())
    }

    /// Judges a new pod beside the others that hold resources here; stores what an admitted one gets.
    pub(crate) async fn admit(
        &self,
        pod: &Arc<Pod>,
        active: ActivePods<'_>,
        shared: &Shared,
    ) -> Admitted {
        let uid = pod.uid();
        let allocated = match shared.allocated.applied_to(pod) {
            Some(changed) => Arc::new(changed),
            None => Arc::clone(pod),
        };
        let node = shared.node.borrow().clone();
        let others: Vec<&Pod> = active.others.iter().map(Arc::as_ref).collect();
        let subject = AdmissionSubject { pod: &allocated, resized_from: None, others: &others };
        if let Err(rejection) = before_placement(&self.view(subject, &node, None, &pressure(&node)))
        {
            return Admitted::No(rejection);
        }
        if let Err(not_placed) = shared.placement.admit(&allocated, active).await {
            return Admitted::without_place(not_placed);
        }
        let subject = AdmissionSubject { pod: &allocated, resized_from: None, others: &others };
        let owed = shared.placement.owed(uid.as_str());
        match self.after(subject, &node, &owed, shared).await {
            Verdict::Rejected(rejection) => Admitted::No(rejection),
            Verdict::Preempt(victims) => Admitted::after(&victims, &others),
            Verdict::Admitted => {
                shared.allocated.record_pod(&uid, &allocated);
                shared.allocated.saved().await;
                Admitted::Yes
            }
        }
    }

    /// Stores what a pod gets that is taken in although others have not quite gone.
    pub(crate) async fn grant(&self, pod: &Arc<Pod>, shared: &Shared) {
        let allocated = shared.allocated.applied_to(pod);
        shared.allocated.record_pod(&pod.uid(), allocated.as_ref().unwrap_or(pod.as_ref()));
        shared.allocated.saved().await;
    }

    /// Judges a resize: the wished pod in place of the allocated one. A critical pod's resize may end others too.
    pub(crate) async fn admit_resize(
        &self,
        wished: &Arc<Pod>,
        allocated: &Arc<Pod>,
        active: ActivePods<'_>,
        shared: &Shared,
    ) -> Admitted {
        let node = shared.node.borrow().clone();
        let others: Vec<&Pod> = active.others.iter().map(Arc::as_ref).collect();
        let subject =
            AdmissionSubject { pod: wished, resized_from: Some(allocated), others: &others };
        if let Err(rejection) = before_placement(&self.view(subject, &node, None, &pressure(&node)))
        {
            return Admitted::No(rejection);
        }
        if let Err(not_placed) = shared.placement.admit(wished, active).await {
            return Admitted::without_place(not_placed);
        }
        let subject =
            AdmissionSubject { pod: wished, resized_from: Some(allocated), others: &others };
        let owed = shared.placement.owed(wished.uid().as_str());
        match self.after(subject, &node, &owed, shared).await {
            Verdict::Admitted => Admitted::Yes,
            Verdict::Rejected(rejection) => Admitted::No(rejection),
            Verdict::Preempt(victims) => Admitted::after(&victims, &others),
        }
    }

    async fn after(
        &self,
        subject: AdmissionSubject<'_>,
        node: &NodeView,
        owed: &BTreeMap<String, i64>,
        shared: &Shared,
    ) -> Verdict {
        let pressure = pressure(node);
        let raised = node.node.as_deref().and_then(|node| with_owed(node, owed));
        let view = self.view(subject, node, raised.as_ref(), &pressure);
        let verdict = after_placement(&view);
        if !matches!(verdict, Verdict::Rejected(_)) || !fresh_node_may_help(&view) {
            return verdict;
        }
        // Labels may have changed since the node was last seen.
        match shared.objects.node_now().await {
            Ok(fresh) => {
                let raised = with_owed(&fresh, owed);
                let fresh = raised.as_ref().unwrap_or(&fresh);
                after_placement(&self.view(subject, node, Some(fresh), &pressure))
            }
            Err(_) => verdict,
        }
    }

    fn view<'a>(
        &'a self,
        subject: AdmissionSubject<'a>,
        node: &'a NodeView,
        fresh: Option<&'a Node>,
        pressure: &'a [Pressure],
    ) -> AdmissionView<'a> {
        AdmissionView {
            pod: subject.pod,
            resized_from: subject.resized_from,
            others: subject.others,
            node: fresh.or(node.node.as_deref()),
            pressure,
            shutting_down: node.shutting_down,
            config: &self.config,
        }
    }
}

/// Who is judged, beside whom.
#[derive(Debug, Clone, Copy)]
struct AdmissionSubject<'a> {
    pod: &'a Pod,
    resized_from: Option<&'a Pod>,
    others: &'a [&'a Pod],
}

/// The node as it counts for a pod that holds devices already: with at least as many as are given, although their
/// plugin may not have come back yet. `None` if it has them.
fn with_owed(node: &Node, owed: &BTreeMap<String, i64>) -> Option<Node> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let has = |name: &str| {
        let amount = allocatable.and_then(|list| list.get(name));
        amount
            .and_then(|amount| amount.0.parse::<units::Quantity>().ok())
            .map(units::Quantity::value)
    };
    let missing = owed.iter().filter(|(name, amount)| has(name).is_none_or(|own| own < **amount));
    let missing: BTreeMap<String, ApiQuantity> =
        missing.map(|(name, amount)| (name.clone(), ApiQuantity(amount.to_string()))).collect();
    if missing.is_empty() {
        return None;
    }
    let mut raised = node.clone();
    let status = raised.status.get_or_insert_default();
    status.allocatable.get_or_insert_default().extend(missing);
    Some(raised)
}

fn pressure(node: &NodeView) -> Vec<Pressure> {
    let one = |condition: &PressureCondition| match condition {
        PressureCondition::Memory => Pressure::Memory,
        PressureCondition::Disk => Pressure::Disk,
        PressureCondition::Pid => Pressure::Pid,
    };
    node.pressure.iter().map(one).collect()
}

/// Major and minor version of the running kernel; zero if it cannot be read.
fn kernel(roots: &Roots) -> (u32, u32) {
    let text = sys::fs::read_to_string(roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let mut parts = text.split(['.', '-']).map(|part| part.trim().parse().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Whether AppArmor is on.
fn app_armor(roots: &Roots) -> bool {
    let enabled = sys::fs::read_to_string(roots.sys.join("module/apparmor/parameters/enabled"));
    let mounted = sys::fs::try_exists(roots.sys.join("kernel/security/apparmor"));
    enabled.is_ok_and(|text| text.starts_with('Y')) && mounted.unwrap_or_default()
}

/// The reason as events carry it: a text that lives as long as we do. There are few of them (checks
/// and resource names of this node); beyond a bound they are told as unexpected.
pub(crate) fn static_reason(reason: &str) -> &'static str {
    static KNOWN: std::sync::Mutex<BTreeSet<&'static str>> = std::sync::Mutex::new(BTreeSet::new());
    const BOUND: usize = 256;
    let Ok(mut known) = KNOWN.lock() else { return "UnexpectedAdmissionError" };
    if let Some(text) = known.get(reason) {
        return text;
    }
    if known.len() >= BOUND {
        return "UnexpectedAdmissionError";
    }
    let text: &'static str = Box::leak(reason.to_owned().into_boxed_str());
    known.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_version_is_read_from_its_release() {
        let dir = std::env::temp_dir().join(format!("rubelet-kernel-{}", std::process::id()));
        sys::fs::create_dir_all(dir.join("sys/kernel"), 0o755).unwrap();
        sys::fs::write(dir.join("sys/kernel/osrelease"), "6.8.0-45-generic\n").unwrap();
        let roots = Roots { proc: dir.clone(), ..Roots::default() };
        assert_eq!(kernel(&roots), (6, 8));
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &dir, all).unwrap();
    }
}
