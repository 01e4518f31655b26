//! Whether a pod needs a new sandbox (upstream: `PodSandboxChanged`), and whether one is being stopped.

use crate::runtime::{ContainerRunState, ContainerView, NamespaceMode, RuntimePod, SandboxState};
use api::core::v1::Pod;
use api::ids::SandboxId;
use std::time::Duration;

/// How long after its killed container a sandbox that is being stopped may become not ready.
const FOLLOWS_WITHIN: Duration = Duration::from_millis(400);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// 128 and the number of SIGKILL.
const KILLED: i32 = 137;

/// The decision: whether to create one, with which attempt, and which one exists now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxNeed {
    /// A new sandbox is needed.
    pub create: bool,
    /// Attempt of the new one, or of the one that stays.
    pub attempt: u32,
    /// The newest sandbox; absent if none exists or it is unfit (wrong network mode).
    pub current: Option<SandboxId>,
}

/// Decides whether the pod needs a new sandbox.
pub fn sandbox_need(pod: &Pod, runtime: &RuntimePod) -> SandboxNeed {
    let Some(newest) = runtime.newest_sandbox() else {
        return SandboxNeed { create: true, attempt: 0, current: None };
    };
    let current = Some(newest.id.clone());
    let next = newest.attempt.saturating_add(1);
    let ready = runtime.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    if ready > 1 || newest.state != SandboxState::Ready {
        return SandboxNeed { create: true, attempt: next, current };
    }
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or_default();
    if host_network != (newest.network_mode == NamespaceMode::Node) {
        return SandboxNeed { create: true, attempt: next, current: None };
    }
    if !host_network && newest.network.as_ref().is_some_and(|n| n.ip.is_empty()) {
        return SandboxNeed { create: true, attempt: next, current };
    }
    SandboxNeed { create: false, attempt: newest.attempt, current }
}

/// What a failed start means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedStart {
    /// Something is wrong with the container: its status says so.
    Fault,
    /// Its sandbox is gone: the failure is not reported, the pod is started in a new sandbox.
    SandboxEnded,
    /// Not known yet: read the sandbox's state after this long.
    LookAfter(Duration),
}

/// Whether a start failed because the sandbox is being stopped by somebody else. Stopping a sandbox kills its
/// containers first, and a reader that polls once a second sees both at once: only after such a kill of the
/// container's last instance the sandbox gets `FOLLOWS_WITHIN`. `seen` is the sandbox's state when last read: not
/// read yet, gone, or its state.
pub fn failed_start(
    last: Option<&ContainerView>,
    seen: Option<Option<SandboxState>>,
    passed: Duration,
) -> FailedStart {
    let was_killed = last.is_some_and(|last| {
        last.state == ContainerRunState::Exited
            && last.exit_code == KILLED
            && last.reason == "Error"
    });
    match seen {
        _ if !was_killed => FailedStart::Fault,
        None => FailedStart::LookAfter(Duration::ZERO),
        Some(Some(SandboxState::Ready)) if passed >= FOLLOWS_WITHIN => FailedStart::Fault,
        Some(Some(SandboxState::Ready)) => FailedStart::LookAfter(LOOK_EVERY),
        Some(Some(SandboxState::NotReady) | None) => FailedStart::SandboxEnded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::runtime;

    #[test]
    fn a_sandbox_gets_a_moment_to_follow_a_container_that_was_killed() {
        let killed = runtime("ready a:exited137");
        let last = killed.newest("a");
        let (ready, not) = (Some(Some(SandboxState::Ready)), Some(Some(SandboxState::NotReady)));
        let soon = Duration::from_millis(100);
        assert_eq!(failed_start(last, None, soon), FailedStart::LookAfter(Duration::ZERO));
        assert_eq!(failed_start(last, ready, soon), FailedStart::LookAfter(LOOK_EVERY));
        assert_eq!(failed_start(last, ready, FOLLOWS_WITHIN), FailedStart::Fault);
        assert_eq!(failed_start(last, not, soon), FailedStart::SandboxEnded);
        assert_eq!(failed_start(last, Some(None), soon), FailedStart::SandboxEnded);
    }

    #[test]
    fn a_start_after_any_other_end_failed_for_its_own_reason() {
        let gone = Some(None);
        assert_eq!(failed_start(None, gone, Duration::ZERO), FailedStart::Fault);
        for words in ["ready a:exited1", "ready a:running", "ready a:exited0", "ready a:cut"] {
            let pod = runtime(words);
            let verdict = failed_start(pod.newest("a"), gone, Duration::ZERO);
            assert_eq!(verdict, FailedStart::Fault, "{words}");
        }
    }
}
