//! A node without an API server: the same object, for local use only.

use crate::collect::Collector;
use api::core::v1::Node;
use engine::node::{NodeMemory, initial_node};
use ports::Clock;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(10);

/// Builds the node object again whenever something changed, at least every 10 s.
#[derive(Debug)]
pub(crate) struct Standalone {
    collector: Collector,
    clock: Arc<dyn Clock>,
    node: watch::Sender<Option<Arc<Node>>>,
}

impl Standalone {
    /// Publishes to `node`.
    pub(crate) fn new(
        collector: Collector,
        clock: Arc<dyn Clock>,
        node: watch::Sender<Option<Arc<Node>>>,
    ) -> Self {
        Self { collector, clock, node }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let facts = self.collector.facts().await;
            let settings = self.collector.settings();
            let update = initial_node(settings, &facts, NodeMemory::default(), self.clock.now());
            for fault in &update.faults {
                tracing::error!(err = fault, "Failed to set some node status fields");
            }
            self.node.send_replace(Some(Arc::new(update.node)));
            tokio::select! {
                // Cancel-safe: a token has no state to lose.
                () = cancel.cancelled() => return,
                // Cancel-safe: a change stays marked until the facts are gathered.
                () = self.collector.changed() => {}
                // Cancel-safe: a fresh sleep each round.
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }
}
