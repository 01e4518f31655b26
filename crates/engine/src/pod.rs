//! One pod: what it needs next and where it is in its life.
//!
//! Owns: the input of the plan ([`PodView`]), its output ([`PodPlan`]), and the worker's record
//! ([`life`]).
//!
//! Promises: [`plan`] is total and deterministic, and applied to the world its own plan produced it asks for
//! nothing more. Executors walk the plan in the order of its fields and never decide.

pub mod backoff;
mod definition;
mod init;
pub mod kill;
pub mod life;
mod plan;
mod resize;
mod restart;
mod sandbox;
#[cfg(test)]
pub(crate) mod testing;
mod view;

pub use definition::{container_hash, definition_changed};
pub(crate) use kill::is_sidecar;
pub use plan::plan;
pub use resize::in_progress as resize_in_progress;
pub use restart::{
    RestartRule, matching_rule, may_run_again, restartable, restarts_all, should_be_restarted,
};
pub use sandbox::{SandboxNeed, sandbox_need};
pub use view::{
    Actuated, ContainerKind, ContainerUpdate, CreateSandbox, KillContainer, KillReason, OnFailure,
    PodGates, PodPlan, PodView, RemoveContainer, ResetContainer, ResizePlan, ResizeResource,
    ResourceAmounts, StartContainer, StartGate,
};

use api::core::v1::Pod;

/// Annotation that says which source a pod came from.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Annotation that marks a mirror pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Whether a pod came from a file or URL.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Whether a pod is the API's mirror of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some()
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
