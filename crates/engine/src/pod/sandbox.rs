//! Whether a pod needs a new sandbox (upstream: `PodSandboxChanged`).

use crate::runtime::{NamespaceMode, RuntimePod, SandboxState};
use api::core::v1::Pod;
use api::ids::SandboxId;

/// The answer: whether to make one, under which attempt, and which one is there now.
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
