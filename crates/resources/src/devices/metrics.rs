//! Metrics of devices.

use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const REGISTRATIONS: Desc = Desc::alpha(
    "kubelet_device_plugin_registration_total",
    "Cumulative number of device plugin registrations. Broken down by resource name.",
)
.labels(&["resource_name"]);
const ALLOCATION: Desc = Desc::alpha(
    "kubelet_device_plugin_alloc_duration_seconds",
    "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
)
.labels(&["resource_name"]);
const UNANSWERED: Desc = Desc::alpha(
    "rubelet_device_plugin_unanswered_calls",
    "Calls for which pods wait because their device plugin does not answer. Broken down by resource name.",
)
.labels(&["resource_name"]);

const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of devices.
#[derive(Debug, Clone)]
pub struct DeviceMetrics {
    pub(super) registrations: CounterFamily,
    pub(super) allocation: HistogramFamily,
    pub(super) unanswered: GaugeFamily,
}

impl DeviceMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            registrations: registry.counter(REGISTRATIONS),
            allocation: registry.histogram(ALLOCATION, &BUCKETS),
            unanswered: registry.gauge(UNANSWERED),
        }
    }
}
