//! Metrics of eviction, with upstream's names.

use telemetry::metrics::{CounterFamily, Desc, HistogramFamily, Registry};

const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const EVICTIONS: Desc =
    Desc::alpha("kubelet_evictions", "Cumulative number of pod evictions by eviction signal")
        .labels(&["eviction_signal"]);
const STATS_AGE: Desc = Desc::alpha(
    "kubelet_eviction_stats_age_seconds",
    "Time between when stats are collected, and when pod is evicted based on those stats by eviction \
     signal",
)
.labels(&["eviction_signal"]);

/// Metrics of the eviction loop.
#[derive(Debug, Clone)]
pub struct EvictionMetrics {
    pub(super) evictions: CounterFamily,
    pub(super) stats_age: HistogramFamily,
}

impl EvictionMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            evictions: registry.counter(EVICTIONS),
            stats_age: registry.histogram(STATS_AGE, &BUCKETS),
        }
    }
}
