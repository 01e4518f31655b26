//! How the runtime's events come in.

use jiff::Timestamp;
use telemetry::metrics::{CounterFamily, Desc, HistogramFamily, Registry};

use super::DEFAULT_BUCKETS;

const OPENED: Desc = Desc::alpha(
    "kubelet_evented_pleg_connection_success_count",
    "The number of times a streaming client was obtained to receive CRI Events.",
);
const LOST: Desc = Desc::alpha(
    "kubelet_evented_pleg_connection_error_count",
    "The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
);
const LATENCY: Desc = Desc::alpha(
    "kubelet_evented_pleg_connection_latency_seconds",
    "The latency of streaming connection with the CRI runtime, measured in seconds.",
);
const DISCARDED: Desc =
    Desc::alpha("kubelet_pleg_discard_events", "The number of discard events in PLEG.");

/// Counters of the event stream.
#[derive(Debug, Clone)]
pub(crate) struct EventMetrics {
    pub(crate) opened: CounterFamily,
    pub(crate) lost: CounterFamily,
    pub(crate) discarded: CounterFamily,
    latency: HistogramFamily,
}

impl EventMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            opened: registry.counter(OPENED),
            lost: registry.counter(LOST),
            discarded: registry.counter(DISCARDED),
            latency: registry.histogram(LATENCY, &DEFAULT_BUCKETS),
        }
    }

    /// An event of that moment (nanoseconds of the epoch) came in at `now`.
    pub(crate) fn awaited_plugin(&self, created: i64, now: Timestamp) {
        let passed = now.as_nanosecond() - i128::from(created);
        #[expect(clippy::cast_precision_loss, reason = "a duration for a histogram")]
        self.latency.observe(&[], passed.max(0) as f64 / 1e9);
    }
}
