//! Desired and actual volumes, plugins, atomic writer, subpaths.
//!
//! Owns: what is mounted where. One task holds the desired and the actual state, plans with
//! `engine::volumes` and starts operations; each operation runs in a task of its own, so that a mount,
//! an API read or a driver that does not answer delays only its own volume. Work that may block in the
//! kernel runs in a pool of its own, where a call that does not return is quarantined and reported.
//!
//! Promises: a volume is unmounted only when its pod's containers are gone and all pod sources are
//! ready; nothing is ever removed across a mount; what the Go kubelet left on disk is taken over.
//!
//! Deliberately absent: decisions (they are in `engine::volumes`), CRI (the request builder asks for
//! paths), eviction by size.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests look at the real disk and spawn waiters")
)]

mod atomic_writer;
mod block;
mod certificates;
mod config;
mod csi;
mod env;
mod expand;
mod handle;
mod host_tools;
mod metrics;
mod ops;
mod orphans;
mod ownership;
mod paths;
mod plugin_registration;
mod plugins;
mod pool;
mod published;
mod quota;
mod reconstruct;
mod resolve;
mod subpath;
mod task;
mod usage;

pub use config::{VolumesConfig, VolumesDeps};
pub use handle::{VolumesHandle, start};
pub use metrics::VolumeMetrics;
pub use plugin_registration::PluginHandlers;
pub use task::VolumeStory;

#[cfg(test)]
mod tests;
