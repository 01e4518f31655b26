//! The [`NodeView`] that others read, assembled by its own task, so that a silent API server delays
//! nobody.

use crate::inputs::{NodeInputs, next};
use crate::runtime::RuntimeHealth;
use api::core::v1::Node;
use ports::NodeView;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Publishes until cancelled; wakes readers only when something in the view changed.
pub(crate) async fn publish(
    mut node: watch::Receiver<Option<Arc<Node>>>,
    mut health: watch::Receiver<RuntimeHealth>,
    mut inputs: NodeInputs,
    out: watch::Sender<Arc<NodeView>>,
    cancel: CancellationToken,
) {
    loop {
        let view = {
            let health = health.borrow_and_update();
            NodeView {
                node: node.borrow_and_update().clone(),
                pressure: inputs.pressure.borrow_and_update().clone(),
                shutting_down: *inputs.shutting_down.borrow_and_update(),
                network_error: health.network_error.clone(),
                runtime_up: health.answers,
            }
        };
        inputs.mark_seen();
        out.send_if_modified(|current| {
            let differs = !same(current, &view);
            if differs {
                *current = Arc::new(view);
            }
            differs
        });
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => return,
            // Cancel-safe, all three: a change stays marked until it is seen above.
            () = next(&mut node) => {}
            () = next(&mut health) => {}
            () = inputs.changed() => {}
        }
    }
}

fn same(a: &NodeView, b: &NodeView) -> bool {
    let same_node = match (&a.node, &b.node) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    };
    same_node
        && a.pressure == b.pressure
        && a.shutting_down == b.shutting_down
        && a.network_error == b.network_error
        && a.runtime_up == b.runtime_up
}
