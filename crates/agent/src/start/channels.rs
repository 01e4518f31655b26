//! Who hears whom: the values that subsystems show each other, opened before any of them is built.

use ports::{NodeView, NodeViews, PodsSnapshot, PressureCondition};
use std::sync::Arc;
use tokio::sync::watch;

/// The receiving halves, for everybody.
pub(crate) struct Listeners {
    /// The node object as last seen.
    pub(crate) node_view: NodeViews,
    /// The pods and where they are in their life.
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
    /// Conditions of pressure that hold.
    pub(crate) pressure: watch::Receiver<Vec<PressureCondition>>,
    /// Whether the machine is about to go down.
    pub(crate) shutting_down: watch::Receiver<bool>,
    /// Why the view of what runs cannot be trusted.
    pub(crate) runtime_fault: watch::Receiver<Option<String>>,
}

/// The sending halves: each is moved to the one stage whose subsystem owns the value.
pub(super) struct Senders {
    pub(super) node_view: watch::Sender<Arc<NodeView>>,
    pub(super) pods: watch::Sender<PodsSnapshot>,
    pub(super) pressure: watch::Sender<Vec<PressureCondition>>,
    pub(super) shutting_down: watch::Sender<bool>,
    pub(super) runtime_fault: watch::Sender<Option<String>>,
}

pub(super) fn open() -> (Listeners, Senders) {
    let (node_view_out, node_view) = watch::channel(Arc::new(NodeView::default()));
    let (pods_out, pods) = watch::channel(PodsSnapshot::default());
    let (pressure_out, pressure) = watch::channel(Vec::new());
    let (shutting_down_out, shutting_down) = watch::channel(false);
    let (runtime_fault_out, runtime_fault) = watch::channel(None);
    let listeners = Listeners { node_view, pods, pressure, shutting_down, runtime_fault };
    let senders = Senders {
        node_view: node_view_out,
        pods: pods_out,
        pressure: pressure_out,
        shutting_down: shutting_down_out,
        runtime_fault: runtime_fault_out,
    };
    (listeners, senders)
}
