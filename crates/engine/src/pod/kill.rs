//! Killing a pod or a container: grace, hook window and order.
//!
//! Owns: the grace period of a container, how the time spent on hooks and on waiting for other containers is
//! deducted from it, and which containers a sidecar waits for. Upstream: `killContainer`, `terminationOrdering`.
//!
//! Promises: the budget never grows; the runtime always gets at least two seconds.

use super::view::{ContainerKind, KillContainer, KillReason};
use crate::image::keyring::aggregate;
use crate::runtime::{ContainerView, RuntimePod};
use api::core::v1::{LifecycleHandler, Pod};
use api::ids::SandboxId;
use api::pod::ContainerExt;
use std::time::Duration;

/// The least time a container gets between the stop signal and the kill, in seconds.
pub const MINIMUM_GRACE_SECONDS: i64 = 2;

/// How to kill one container.
#[derive(Debug, Clone, PartialEq)]
pub struct StopContainer {
    /// The container, and the text of the `Killing` event.
    pub target: KillContainer,
    /// Time for the hook, the wait for other containers and the stop together.
    pub budget: StopBudget,
    /// The hook to run first; `None` also when there is no time for it.
    pub pre_stop: Option<LifecycleHandler>,
    /// Names that must have stopped before this one is stopped (only when the whole pod is killed).
    pub after: Vec<String>,
}

/// How to kill a whole pod: containers in parallel (each after those it waits for), then the sandboxes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KillPod {
    /// Running containers.
    pub containers: Vec<StopContainer>,
    /// Sandboxes to stop one by one, also when a container failed.
    pub sandboxes: Vec<SandboxId>,
}

/// Seconds that are left for a container to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopBudget {
    seconds: i64,
}

impl StopBudget {
    /// A budget of this many seconds.
    pub fn new(seconds: i64) -> Self {
        Self { seconds: seconds.max(0) }
    }

    /// How long to wait for the preStop hook or for other containers; `None` when there is no time for it.
    pub fn window(self) -> Option<Duration> {
        let seconds = u64::try_from(self.seconds).ok().filter(|s| *s > 0)?;
        Some(Duration::from_secs(seconds))
    }

    /// What is left after something took this long; only whole seconds count.
    #[must_use]
    pub fn after(self, elapsed: Duration) -> Self {
        let spent = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
        Self { seconds: self.seconds.saturating_sub(spent).max(0) }
    }

    /// Takes over a shorter grace given meanwhile; a longer one is ignored.
    #[must_use]
    pub fn shortened(self, seconds: i64) -> Self {
        Self { seconds: self.seconds.min(seconds.max(0)) }
    }

    /// The timeout for the runtime's stop call in seconds.
    pub fn stop_timeout(self) -> i64 {
        self.seconds.max(MINIMUM_GRACE_SECONDS)
    }
}

/// Why a container cannot be killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// Its name is not in the pod's spec.
    #[error("failed to get container spec for container {0:?}")]
    NotInSpec(String),
}

/// Plans the kill of every running container and all sandboxes.
///
/// `pod` is `None` for a pod known only to the runtime: what its spec was is unknown, so no hook runs.
pub fn plan_pod(pod: Option<&Pod>, runtime: &RuntimePod, grace_override: Option<i64>) -> KillPod {
    let running: Vec<&ContainerView> =
        runtime.containers.iter().filter(|c| c.is_running()).collect();
    let containers = running
        .iter()
        .map(|view| {
            let kind = pod.and_then(|p| kind_of(p, &view.name)).unwrap_or(ContainerKind::Regular);
            let target = KillContainer {
                id: view.id.clone(),
                name: view.name.clone(),
                kind,
                message: default_message(&view.name),
                reason: KillReason::Other,
            };
            let Some(pod) = pod else {
                let mut stop = stop_restored(view, target, grace_override);
                stop.pre_stop = None;
                return stop;
            };
            let mut stop = match find(pod, &view.name) {
                Some(_) => stop_known(pod, target, grace_override),
                None => stop_restored(view, target, grace_override),
            };
            stop.after = waits_for(pod, &view.name, &running);
            stop
        })
        .collect();
    let sandboxes = runtime.sandboxes.iter().map(|s| s.id.clone()).collect();
    KillPod { containers, sandboxes }
}

/// Plans the kill of one container of a known pod (it waits for no other container).
pub fn plan_container(
    pod: &Pod,
    target: &KillContainer,
    grace_override: Option<i64>,
) -> Result<StopContainer, KillError> {
    if find(pod, &target.name).is_none() {
        return Err(KillError::NotInSpec(target.name.clone()));
    }
    Ok(stop_known(pod, target.clone(), grace_override))
}

/// Plans the kill of a container whose pod is unknown, from its annotations.
pub fn plan_restored(view: &ContainerView, message: &str) -> StopContainer {
    let target = KillContainer {
        id: view.id.clone(),
        name: view.name.clone(),
        kind: ContainerKind::Regular,
        message: message.to_owned(),
        reason: KillReason::Unknown,
    };
    stop_restored(view, target, None)
}

/// The error of killing a pod: `containers` by name, and the last of its sandboxes that did not stop (upstream:
/// `PodSyncResult.Error`). `None` if nothing failed.
pub fn faults(uid: &str, containers: &[(String, String)], sandbox: Option<&str>) -> Option<String> {
    let fault = |action: &str, target: &str, text: &str| {
        let (target, text) = (units::strconv::quote(target), units::strconv::quote(text));
        format!("failed to \"{action}\" for {target} with {action}Error: {text}")
    };
    let stuck = containers.iter().map(|(name, text)| fault("KillContainer", name, text));
    let left = sandbox.map(|text| fault("KillPodSandbox", uid, text));
    let all: Vec<String> = stuck.chain(left).collect();
    (!all.is_empty()).then(|| aggregate(&all))
}

/// Default text of the `Killing` event.
pub fn default_message(name: &str) -> String {
    format!("Stopping container {name}")
}

fn stop_known(pod: &Pod, target: KillContainer, grace_override: Option<i64>) -> StopContainer {
    let container = find(pod, &target.name);
    let probe_grace = container.and_then(|c| match target.reason {
        KillReason::StartupProbe => c.startup_probe.as_ref()?.termination_grace_period_seconds,
        KillReason::LivenessProbe => c.liveness_probe.as_ref()?.termination_grace_period_seconds,
        KillReason::Other | KillReason::Unknown => None,
    });
    let spec_grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let own = match pod.metadata.deletion_grace_period_seconds {
        Some(seconds) => seconds,
        None => probe_grace.or(spec_grace).unwrap_or(MINIMUM_GRACE_SECONDS),
    };
    let budget = StopBudget::new(grace_override.unwrap_or(own));
    let pre_stop = container
        .and_then(|c| c.lifecycle.as_ref()?.pre_stop.clone())
        .filter(|_| budget.window().is_some());
    StopContainer { target, budget, pre_stop, after: Vec::new() }
}

fn stop_restored(
    view: &ContainerView,
    target: KillContainer,
    grace_override: Option<i64>,
) -> StopContainer {
    let restored = &view.restored;
    let own = restored
        .deletion_grace_seconds
        .or(restored.termination_grace_seconds)
        .unwrap_or(MINIMUM_GRACE_SECONDS);
    let budget = StopBudget::new(grace_override.unwrap_or(own));
    let pre_stop = restored.pre_stop.clone().filter(|_| budget.window().is_some());
    StopContainer { target, budget, pre_stop, after: Vec::new() }
}

/// A sidecar waits for all running regular containers and for the sidecar that comes next, if that one runs: the
/// waits of a stopped sidecar are not inherited (upstream: `newTerminationOrdering`).
fn waits_for(pod: &Pod, name: &str, running: &[&ContainerView]) -> Vec<String> {
    if kind_of(pod, name) != Some(ContainerKind::Sidecar) {
        return Vec::new();
    }
    let Some(spec) = &pod.spec else { return Vec::new() };
    let is_running = |n: &str| running.iter().any(|c| c.name == n);
    let regular = spec.containers.iter().map(|c| c.name.as_str());
    let next_sidecar = spec
        .init_containers
        .iter()
        .flatten()
        .skip_while(|c| c.name != name)
        .skip(1)
        .find(|c| c.is_sidecar())
        .map(|c| c.name.as_str());
    regular.chain(next_sidecar).filter(|n| is_running(n)).map(str::to_owned).collect()
}

/// Which list of the spec has this name.
pub(crate) fn kind_of(pod: &Pod, name: &str) -> Option<ContainerKind> {
    let spec = pod.spec.as_ref()?;
    if spec.containers.iter().any(|c| c.name == name) {
        return Some(ContainerKind::Regular);
    }
    if let Some(init) = spec.init_containers.iter().flatten().find(|c| c.name == name) {
        return Some(if init.is_sidecar() { ContainerKind::Sidecar } else { ContainerKind::Init });
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|c| c.name == name);
    ephemeral.then_some(ContainerKind::Ephemeral)
}

/// Lifecycle and probes of a container; ephemeral containers have neither, but they count as known.
#[derive(Clone, Copy)]
struct Known<'a> {
    lifecycle: Option<&'a api::core::v1::Lifecycle>,
    startup_probe: Option<&'a api::core::v1::Probe>,
    liveness_probe: Option<&'a api::core::v1::Probe>,
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<Known<'a>> {
    let spec = pod.spec.as_ref()?;
    let full = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if let Some(c) = full.into_iter().find(|c| c.name == name) {
        return Some(Known {
            lifecycle: c.lifecycle.as_ref(),
            startup_probe: c.startup_probe.as_ref(),
            liveness_probe: c.liveness_probe.as_ref(),
        });
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|c| c.name == name);
    ephemeral.then_some(Known { lifecycle: None, startup_probe: None, liveness_probe: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::{pod, runtime};
    use api::core::v1::{ExecAction, Lifecycle, Probe};

    fn order(spec: &str, state: &str) -> Vec<(String, Vec<String>)> {
        let plan = plan_pod(Some(&pod(spec)), &runtime(state), None);
        let mut order: Vec<_> =
            plan.containers.into_iter().map(|c| (c.target.name, c.after)).collect();
        order.sort();
        order
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn sidecars_stop_last_in_reverse_order() {
        let found = order("s:s1 s:s2 a b", "ready s1:running s2:running a:running b:running");
        let expected = [
            ("a".to_owned(), vec![]),
            ("b".to_owned(), vec![]),
            ("s1".to_owned(), names(&["a", "b", "s2"])),
            ("s2".to_owned(), names(&["a", "b"])),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn nobody_waits_for_a_container_that_does_not_run() {
        let found = order("s:s1 s:s2 a", "ready s1:running a:exited0");
        assert_eq!(found, [("s1".to_owned(), vec![])]);
    }

    #[test]
    fn a_sidecar_waits_for_the_next_one_only() {
        let all = "ready s1:running s2:running s3:running a:running";
        let found = order("s:s1 i:i s:s2 s:s3 a", all);
        let expected = [
            ("a".to_owned(), vec![]),
            ("s1".to_owned(), names(&["a", "s2"])),
            ("s2".to_owned(), names(&["a", "s3"])),
            ("s3".to_owned(), names(&["a"])),
        ];
        assert_eq!(found, expected);
        let found = order("s:s1 s:s2 s:s3 a", "ready s1:running s2:exited1 s3:running a:running");
        let expected = [
            ("a".to_owned(), vec![]),
            ("s1".to_owned(), names(&["a"])),
            ("s3".to_owned(), names(&["a"])),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn every_sandbox_is_stopped() {
        let plan = plan_pod(Some(&pod("a")), &runtime("notready ready a:running"), None);
        assert_eq!(plan.sandboxes.len(), 2);
        assert_eq!(plan.containers[0].target.message, "Stopping container a");
    }

    #[test]
    fn grace_comes_from_deletion_then_probe_then_spec() {
        let probe = |seconds| {
            Some(Probe { termination_grace_period_seconds: Some(seconds), ..Probe::default() })
        };
        let cases = [
            ("nothing set", None, None, None, KillReason::LivenessProbe, None, 2),
            ("spec", Some(30), None, None, KillReason::LivenessProbe, None, 30),
            ("probe", Some(30), Some(7), None, KillReason::LivenessProbe, None, 7),
            (
                "probe grace only for probe kills",
                Some(30),
                Some(7),
                None,
                KillReason::Other,
                None,
                30,
            ),
            (
                "deletion beats probe",
                Some(30),
                Some(7),
                Some(9),
                KillReason::LivenessProbe,
                None,
                9,
            ),
            ("override", Some(30), Some(7), Some(9), KillReason::LivenessProbe, Some(1), 2),
        ];
        for (name, spec, of_probe, deletion, reason, wish, expected) in cases {
            let mut pod = pod("a");
            pod.metadata.deletion_grace_period_seconds = deletion;
            let pod_spec = pod.spec.as_mut().unwrap();
            pod_spec.termination_grace_period_seconds = spec;
            pod_spec.containers[0].liveness_probe = of_probe.and_then(probe);
            let target = KillContainer {
                id: "x".into(),
                name: "a".to_owned(),
                kind: ContainerKind::Regular,
                message: String::new(),
                reason,
            };
            let stop = plan_container(&pod, &target, wish).unwrap();
            assert_eq!(stop.budget.stop_timeout(), expected, "{name}");
        }
    }

    #[test]
    fn hooks_eat_into_the_grace_but_two_seconds_stay() {
        let budget = StopBudget::new(10);
        assert_eq!(budget.window(), Some(Duration::from_secs(10)));
        let after = budget.after(Duration::from_millis(3_900));
        assert_eq!(after.stop_timeout(), 7, "only whole seconds count");
        let late = after.after(Duration::from_secs(60));
        assert_eq!((late.window(), late.stop_timeout()), (None, 2));
        assert_eq!(budget.shortened(4).shortened(8).stop_timeout(), 4);
    }

    #[test]
    fn no_hook_runs_without_grace() {
        let mut pod = pod("a");
        pod.spec.as_mut().unwrap().containers[0].lifecycle = Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                exec: Some(ExecAction::default()),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        });
        let state = runtime("ready a:running");
        assert!(plan_pod(Some(&pod), &state, Some(5)).containers[0].pre_stop.is_some());
        assert!(plan_pod(Some(&pod), &state, Some(0)).containers[0].pre_stop.is_none());
    }

    #[test]
    fn a_pod_unknown_to_us_is_killed_by_its_annotations_and_without_hooks() {
        let mut state = runtime("ready a:running");
        state.containers[0].restored.termination_grace_seconds = Some(40);
        state.containers[0].restored.pre_stop = Some(LifecycleHandler::default());
        assert_eq!(plan_pod(None, &state, None).containers[0].budget.stop_timeout(), 40);
        let stop = plan_pod(None, &state, Some(1)).containers.remove(0);
        assert_eq!(stop.budget.stop_timeout(), 2);
        assert_eq!(stop.pre_stop, None);
        assert_eq!(stop.target.message, "Stopping container a");
        let kept = plan_restored(&state.containers[0], "gone").pre_stop;
        assert!(kept.is_some(), "one container in an unknown state keeps its hook");
    }

    #[test]
    fn what_went_wrong_reads_as_upstream_tells_it() {
        assert_eq!(faults("u", &[], None), None);
        let stuck = [("a".to_owned(), "rpc error: desc = task \"x\"".to_owned())];
        let first = "failed to \"KillContainer\" for \"a\" with KillContainerError: \
                     \"rpc error: desc = task \\\"x\\\"\"";
        assert_eq!(faults("u", &stuck, None).as_deref(), Some(first));
        let second = "failed to \"KillPodSandbox\" for \"u\" with KillPodSandboxError: \"no\"";
        assert_eq!(faults("u", &stuck, Some("no")), Some(format!("[{first}, {second}]")));
    }

    #[test]
    fn a_name_missing_in_the_spec_is_an_error() {
        let target = KillContainer {
            id: "x".into(),
            name: "z".to_owned(),
            kind: ContainerKind::Regular,
            message: String::new(),
            reason: KillReason::Other,
        };
        assert_eq!(
            plan_container(&pod("a"), &target, None),
            Err(KillError::NotInSpec("z".to_owned()))
        );
    }
}
