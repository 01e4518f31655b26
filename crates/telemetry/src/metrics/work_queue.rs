//! `workqueue_*`: repeated work, by the name of its queue.

use std::time::Duration;

use super::desc::{Desc, exponential_buckets};
use super::family::{Counter, Gauge, Histogram};
use super::registry::Registry;

const DEPTH: Desc = Desc::beta("workqueue_depth", "Current depth of workqueue").labels(&["name"]);
const ADDS: Desc = Desc::beta("workqueue_adds_total", "Total number of adds handled by workqueue")
    .labels(&["name"]);
const WAITED: Desc = Desc::beta(
    "workqueue_queue_duration_seconds",
    "How long in seconds an item stays in workqueue before being requested.",
)
.labels(&["name"]);
const WORKED: Desc = Desc::beta(
    "workqueue_work_duration_seconds",
    "How long in seconds processing an item from workqueue takes.",
)
.labels(&["name"]);
const UNFINISHED: Desc = Desc::beta(
    "workqueue_unfinished_work_seconds",
    "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
)
.labels(&["name"]);
const LONGEST: Desc = Desc::beta(
    "workqueue_longest_running_processor_seconds",
    "How many seconds has the longest running processor for workqueue been running.",
)
.labels(&["name"]);
const RETRIES: Desc =
    Desc::beta("workqueue_retries_total", "Total number of retries handled by workqueue")
        .labels(&["name"]);

/// The metrics of one queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkQueue {
    depth: Gauge,
    adds: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl WorkQueue {
    /// Registers a queue; all of its series exist from now on.
    pub fn new(registry: &Registry, name: &str) -> Self {
        let bounds = exponential_buckets(10e-9, 10.0, 10);
        registry.gauge(UNFINISHED).with(&[name]);
        registry.gauge(LONGEST).with(&[name]);
        registry.counter(RETRIES).with(&[name]);
        Self {
            depth: registry.gauge(DEPTH).with(&[name]),
            adds: registry.counter(ADDS).with(&[name]),
            waited: registry.histogram(WAITED, &bounds).with(&[name]),
            worked: registry.histogram(WORKED, &bounds).with(&[name]),
        }
    }

    /// An item was added.
    pub fn added(&self) {
        self.adds.inc();
        self.depth.add(1.0);
    }

    /// An item was taken out after waiting this long.
    pub fn taken(&self, waited: Duration) {
        self.depth.add(-1.0);
        self.waited.observe_duration(waited);
    }

    /// An item was processed.
    pub fn done(&self, worked: Duration) {
        self.worked.observe_duration(worked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_waits_is_taken_and_done() {
        let registry = Registry::new();
        let queue = WorkQueue::new(&registry, "q");
        queue.added();
        assert!(registry.render().contains("workqueue_depth{name=\"q\"} 1\n"));
        queue.taken(Duration::from_millis(1));
        queue.done(Duration::from_secs(2));
        let page = registry.render();
        for line in [
            "workqueue_adds_total{name=\"q\"} 1",
            "workqueue_depth{name=\"q\"} 0",
            "workqueue_retries_total{name=\"q\"} 0",
            "workqueue_work_duration_seconds_sum{name=\"q\"} 2",
            "workqueue_queue_duration_seconds_count{name=\"q\"} 1",
        ] {
            assert!(page.lines().any(|have| have == line), "{line}\n{page}");
        }
    }
}
