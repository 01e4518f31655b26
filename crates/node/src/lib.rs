//! This machine as a node of a cluster.
//!
//! Owns: the health of the runtime, the facts about the machine, the node object (registration and
//! status), the lease, and the [`ports::NodeView`] that others read.
//!
//! ```text
//!   runtime ──status──▶ RuntimeHealth ─┐
//!   machine, images, volumes, devices ─┼─▶ facts ─▶ engine::node ─▶ patch ─▶ API server
//!   pressure, shutdown ────────────────┘                                        │
//!                NodeView ◀──────────────────── node object ◀────────watch──────┘
//! ```
//!
//! Promises: a change of health or pressure is sent at once, not at the next period; without an API
//! server the same node object is built for local use.
#![forbid(unsafe_code)]

mod active;
mod collect;
mod eviction;
mod heartbeat;
mod inputs;
mod lease;
mod oom;
mod runtime;
mod shutdown;
mod standalone;
mod start;
mod startup;
mod view;

pub use eviction::{
    AlarmPlaces, Eviction, EvictionConfig, EvictionMetrics, EvictionParts, KernelMemoryPlaces,
};
pub use heartbeat::{HeartbeatConfig, Registration};
pub use inputs::NodeInputs;
pub use lease::LeaseConfig;
pub use oom::OomWatch;
pub use runtime::{RuntimeHealth, RuntimeProbe};
pub use shutdown::{Shutdown, ShutdownConfig, ShutdownMetrics, ShutdownParts};
pub use start::{NodeConfig, NodeHandle, NodeParts, start};
pub use startup::StartupTimes;
