//! Metrics of dynamic resources.

use std::collections::BTreeMap;
use telemetry::metrics::{Desc, GaugeFamily, HistogramFamily, Registry};

const OPERATIONS: Desc = Desc::alpha(
    "dra_operations_duration_seconds",
    "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a \
     pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or \
     UnprepareResources) and separated by the success of the operation. The number of failed \
     operations is provided through the histogram's overall count.",
)
.labels(&["operation_name", "is_error"]);
const CALLS: Desc = Desc::alpha(
    "dra_grpc_operations_duration_seconds",
    "Duration in seconds of the DRA gRPC operations",
)
.labels(&["driver_name", "method_name", "grpc_status_code"]);
const CLAIMS: Desc = Desc::alpha(
    "dra_resource_claims_in_use",
    "The number of ResourceClaims that are currently in use on the node, by driver name \
     (driver_name label value) and across all drivers (special value <any> for driver_name). Note \
     that the sum of all by-driver counts is not the total number of in-use ResourceClaims because \
     the same ResourceClaim might use devices from different drivers. Instead, use the count for \
     the <any> driver_name.",
)
.labels(&["driver_name"]);

/// Upstream: `ExponentialBucketsRange(.1, 40, 15)`.
const BUCKETS: [f64; 15] = [
    0.1,
    0.153_412_740_463_439_1,
    0.235_354_689_365_025_24,
    0.361_064_078_764_099_46,
    0.553_918_298_061_075_2,
    0.849_781_240_983_936,
    1.303_672_689_737_678,
    1.999_999_999_999_999_3,
    3.068_254_809_268_780_5,
    4.707_093_787_300_502_5,
    7.221_281_575_281_985,
    11.078_365_961_221_499,
    16.995_624_819_678_714,
    26.073_453_794_753_54,
    39.999_999_999_999_97,
];

/// Metrics of dynamic resources.
#[derive(Debug, Clone)]
pub struct DraMetrics {
    pub(super) operations: HistogramFamily,
    pub(super) calls: HistogramFamily,
    claims: GaugeFamily,
}

impl DraMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            operations: registry.histogram(OPERATIONS, &BUCKETS),
            calls: registry.histogram(CALLS, &BUCKETS),
            claims: registry.gauge(CLAIMS),
        }
    }

    /// Sets the gauge of claims in use.
    pub(super) fn show(&self, counts: &BTreeMap<String, usize>) {
        self.claims.clear();
        for (driver, count) in counts {
            let count = u32::try_from(*count).unwrap_or(u32::MAX);
            self.claims.set(&[driver], f64::from(count));
        }
    }
}
