//! The tasks that make pods live.
//!
//! Owns: what should run (`sources`), what does run (`view`), one task per pod (`worker`) with
//! the records of their lives (`pod_states`), admission, probes, statuses and leftovers.
//!
//! Promises: every decision is `engine`'s; every state has one owner; a pod can hold up only itself;
//! a restart of the agent changes nothing that runs.
#![forbid(unsafe_code)]

mod admission;
mod config;
mod dispatch;
mod explain;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod handle;
mod heartbeat;
mod housekeeping;
mod jitter;
pub mod logs;
mod metrics;
mod pod_states;
mod prober;
mod resolver;
mod runtime;
mod seams;
mod shared;
mod slots;
mod sources;
mod start;
mod status;
mod timeline;
mod userns;
mod view;
mod worker;

pub use admission::AdmissionConfig;
pub use admission::checkpoint::{CheckpointError, check_actuated, check_allocated};
pub use config::{PodsConfig, PodsDeps};
pub use handle::PodsHandle;
pub use jitter::Jitter;
pub use metrics::PodMetrics;
pub use seams::Processors;
pub use shared::RuntimeHandlers;
pub use sources::ManifestFaults;
pub use sources::http::UrlSourceConfig;
pub use start::{PodsError, start};
pub use userns::{UsernsConfig, UsernsStartError, host_ids};
pub use view::{ViewConfig, ViewHealth};
