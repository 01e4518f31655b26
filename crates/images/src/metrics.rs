//! What image pulls count.

use super::records::Counts;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const ENSURE: Desc = Desc::alpha(
    "kubelet_image_manager_ensure_image_requests_total",
    "Number of ensure-image requests processed by the kubelet.",
)
.labels(&["pull_policy", "present_locally", "pull_required"]);
const PULL_DURATION: Desc =
    Desc::alpha("kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.")
        .labels(&["image_size_in_bytes"]);
const COLLECTED: Desc = Desc::alpha(
    "kubelet_image_garbage_collected_total",
    "Total number of images garbage collected by the kubelet, whether through disk usage or image \
     age.",
)
.labels(&["reason"]);
const CHECKS: Desc = Desc::alpha(
    "kubelet_imagemanager_image_mustpull_checks_total",
    "Counter for how many times kubelet checked whether credentials need to be re-verified to \
     access an image",
)
.labels(&["result"]);
const INTENTS: Desc = Desc::alpha(
    "kubelet_imagemanager_ondisk_pullintents",
    "Number of ImagePullIntents stored on disk.",
);
const RECORDS: Desc = Desc::alpha(
    "kubelet_imagemanager_ondisk_pulledrecords",
    "Number of ImagePulledRecords stored on disk.",
);
const INTENTS_CACHED: Desc = Desc::alpha(
    "kubelet_imagemanager_inmemory_pullintents_usage_percent",
    "The ImagePullIntents in-memory cache usage in percent.",
);
const RECORDS_CACHED: Desc = Desc::alpha(
    "kubelet_imagemanager_inmemory_pulledrecords_usage_percent",
    "The ImagePulledRecords in-memory cache usage in percent.",
);
const PLUGIN_ERRORS: Desc = Desc::alpha(
    "kubelet_credential_provider_plugin_errors_total",
    "Number of errors from credential provider plugin",
)
.labels(&["plugin_name"]);
const PLUGIN_DURATION: Desc = Desc::alpha(
    "kubelet_credential_provider_plugin_duration",
    "Duration of execution in seconds for credential provider plugin",
)
.labels(&["plugin_name"]);
const PLUGIN_CONFIG: Desc = Desc::alpha(
    "kubelet_credential_provider_config_info",
    "Information about the last applied credential provider configuration with hash as label",
)
.labels(&["hash"]);

const PULL_BUCKETS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];
const PLUGIN_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counters of image pulls and collection.
#[derive(Debug, Clone)]
pub struct ImageMetrics {
    pub(super) ensure: CounterFamily,
    pub(super) pull_duration: HistogramFamily,
    pub(super) collected: CounterFamily,
    pub(super) checks: CounterFamily,
    intents: GaugeFamily,
    records: GaugeFamily,
    intents_cached: GaugeFamily,
    records_cached: GaugeFamily,
    pub(super) plugin_errors: CounterFamily,
    pub(super) plugin_duration: HistogramFamily,
    pub(super) plugin_config: GaugeFamily,
}

impl ImageMetrics {
    /// Declares them in a registry.
    pub fn new(registry: &Registry) -> Self {
        let from_nothing = |desc| {
            let gauge = registry.gauge(desc);
            gauge.set(&[], 0.0);
            gauge
        };
        Self {
            ensure: registry.counter(ENSURE),
            pull_duration: registry.histogram(PULL_DURATION, &PULL_BUCKETS),
            collected: registry.counter(COLLECTED),
            checks: registry.counter(CHECKS),
            intents: registry.gauge(INTENTS),
            records: registry.gauge(RECORDS),
            intents_cached: from_nothing(INTENTS_CACHED),
            records_cached: from_nothing(RECORDS_CACHED),
            plugin_errors: registry.counter(PLUGIN_ERRORS),
            plugin_duration: registry.histogram(PLUGIN_DURATION, &PLUGIN_BUCKETS),
            plugin_config: registry.gauge(PLUGIN_CONFIG),
        }
    }

    /// Shows how many pull records there are.
    pub(super) fn show_records(&self, counts: Counts) {
        let number = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        self.intents.set(&[], number(counts.intents));
        self.records.set(&[], number(counts.pulled));
        self.intents_cached.set(&[], number(counts.intents_percent));
        self.records_cached.set(&[], number(counts.pulled_percent));
    }
}
