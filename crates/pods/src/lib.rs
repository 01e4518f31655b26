//! The tasks that make pods live.
//!
//! Owns: what should run (`sources`), what does run (`view`), one task per pod (`worker`) with
//! the records of their lives (`lives`), admission, probes, statuses and leftovers.
//!
//! Promises: every decision is `engine`'s; every state has one owner; a pod can hold up only itself;
//! a restart of the agent changes nothing that runs.
#![forbid(unsafe_code)]

mod admission;
mod chance;
mod config;
mod dispatch;
mod explain;
mod handle;
mod housekeeping;
pub mod images;
mod lives;
pub mod logs;
mod metrics;
mod probe_client;
mod prober;
mod reclaim;
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
pub use chance::Chance;
pub use config::{GcPolicy, PodsConfig, PodsDeps};
pub use handle::PodsHandle;
pub use metrics::PodMetrics;
pub use reclaim::Leftovers;
pub use seams::{ImageSource, Processors};
pub use shared::RuntimeHandlers;
pub use sources::ManifestFaults;
pub use sources::http::UrlSourceConfig;
pub use start::{PodsError, start};
pub use userns::{UsernsConfig, UsernsStartError, host_ids};
pub use view::{ViewConfig, ViewHealth};
