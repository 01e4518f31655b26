//! One pod: what it needs next and where it is in its life.
//!
//! Owns: the input of the plan ([`PodView`]), its output ([`PodPlan`]), and the worker's record
//! ([`life`]).
//!
//! Promises: [`plan`] is total and deterministic; applied to the state that its own plan produced, it plans
//! nothing more. Executors walk the plan in the order of its fields and never decide.

pub mod backoff;
mod cgroup;
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

pub use cgroup::{MissingCgroup, missing_cgroup};
pub use definition::{container_hash, definition_changed};
pub use plan::plan;
pub use resize::in_progress as resize_in_progress;
pub use restart::{
    RestartRule, matching_rule, may_run_again, restartable, restarts_all, should_be_restarted,
};
pub use sandbox::{FailedStart, SandboxNeed, failed_start, sandbox_need};
pub use view::{
    Actuated, ContainerKind, ContainerUpdate, CreateSandbox, KillContainer, KillReason, OnFailure,
    PodGates, PodPlan, PodView, RemoveContainer, ResetContainer, ResizePlan, ResizeResource,
    ResourceAmounts, StartContainer, StartGate, UnstartedContainer,
};
