//! Events about pods and the node. Fire and forget: the sink correlates, limits and sends.

use api::core::v1::{ObjectReference, Pod};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kubernetes event types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventSeverity {
    /// Something happened as intended.
    Normal,
    /// Something needs attention.
    Warning,
}

/// What an event is about.
#[derive(Debug, Clone)]
pub enum EventTarget {
    /// A pod, or with a field path such as `spec.containers{web}` a part of it.
    Pod {
        /// The pod.
        pod: Arc<Pod>,
        /// The part of the pod the event is about.
        field_path: Option<String>,
    },
    /// This node.
    Node,
    /// Any other object, e.g. a claim.
    Object(Box<ObjectReference>),
}

/// One event.
#[derive(Debug, Clone)]
pub struct NodeEvent {
    /// What it is about.
    pub target: EventTarget,
    /// Normal or Warning.
    pub severity: EventSeverity,
    /// Upstream's reason (`api::reasons`).
    pub reason: &'static str,
    /// Upstream's message.
    pub message: String,
}

/// Where events go.
pub trait Events: Send + Sync + std::fmt::Debug {
    /// Records the event; never blocks, never fails.
    fn emit(&self, event: NodeEvent);
    /// Records the event with annotations for other tools, if the sink supports them.
    fn emit_annotated(&self, event: NodeEvent, annotations: BTreeMap<String, String>) {
        drop(annotations);
        self.emit(event);
    }
}
