//! The node's state, for other subsystems.

use api::core::v1::Node;
use std::sync::Arc;
use tokio::sync::watch;

/// Pressure conditions that admission and eviction share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PressureCondition {
    /// Node memory is short.
    Memory,
    /// A node filesystem is short of bytes or inodes.
    Disk,
    /// Process ids are short.
    Pid,
}

/// An immutable snapshot of the node.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    /// The node object: the API's once it is known, until then (and in standalone mode) a
    /// synthesised one, which has no UID.
    pub node: Option<Arc<Node>>,
    /// Pressure conditions in force.
    pub pressure: Vec<PressureCondition>,
    /// Set once a graceful node shutdown has begun.
    pub shutting_down: bool,
    /// Why the runtime's network is not ready; `None` when it is.
    pub network_error: Option<String>,
    /// Whether the runtime answers at all.
    pub runtime_up: bool,
}

/// A subscription to the node's state.
pub type NodeViews = watch::Receiver<Arc<NodeView>>;
