//! This machine as a member of a cluster.
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

mod collect;
mod heartbeat;
mod inputs;
mod lease;
mod runtime;
mod standalone;
mod start;
mod startup;
mod view;

pub use heartbeat::{HeartbeatConfig, Registration};
pub use inputs::NodeInputs;
pub use lease::LeaseConfig;
pub use runtime::{RuntimeHealth, RuntimeProbe};
pub use start::{NodeConfig, NodeHandle, NodeParts, start};
pub use startup::StartupTimes;
