//! Families that every component with Kubernetes' libraries shows although a kubelet never moves them.
//!
//! They are there for those who expect the page to have them; what they count does not exist here.

use telemetry::metrics::{Desc, Registry, Stability, exponential_buckets};

const COUNTERS: [Desc; 14] = [
    Desc::alpha(
        "aggregator_discovery_aggregation_count_total",
        "Counter of number of times discovery was aggregated",
    ),
    Desc::alpha(
        "aggregator_discovery_nopeer_requests_total",
        "Counter of number of times no-peer (non peer-aggregated) discovery was requested",
    ),
    Desc::alpha(
        "aggregator_discovery_peer_aggregated_cache_hits_total",
        "Counter of number of times discovery was served from peer-aggregated cache",
    ),
    Desc::alpha(
        "aggregator_discovery_peer_aggregated_cache_misses_total",
        "Counter of number of times discovery was aggregated across all API servers",
    ),
    Desc::alpha(
        "apiserver_audit_event_total",
        "Counter of audit events generated and sent to the audit backend.",
    ),
    Desc::alpha(
        "apiserver_audit_requests_rejected_total",
        "Counter of apiserver requests rejected due to an error in audit logging backend.",
    ),
    Desc::alpha(
        "apiserver_storage_data_key_generation_failures_total",
        "Total number of failed data encryption key(DEK) generation operations.",
    ),
    Desc::alpha(
        "apiserver_storage_envelope_transformation_cache_misses_total",
        "Total number of cache misses while accessing key decryption key(KEK).",
    ),
    Desc::beta(
        "apiserver_validation_declarative_validation_mismatch_total",
        "Number of times declarative validation results differed from handwritten validation results for core types.",
    ),
    Desc::beta(
        "apiserver_validation_declarative_validation_panic_total",
        "Number of times declarative validation has panicked during validation.",
    ),
    Desc::new(
        Stability::Internal,
        "apiserver_validation_duplicate_validation_error_total",
        "Number of duplicate validation errors during validation.",
    ),
    Desc::alpha(
        "apiserver_webhooks_x509_insecure_sha1_total",
        "Counts the number of requests to servers with insecure SHA1 signatures in their serving certificate OR the number of connection failures due to the insecure SHA1 signatures (either/or, based on the runtime environment)",
    ),
    Desc::alpha(
        "apiserver_webhooks_x509_missing_san_total",
        "Counts the number of requests to servers missing SAN extension in their serving certificate OR the number of connection failures due to the lack of x509 certificate SAN extension missing (either/or, based on the runtime environment)",
    ),
    Desc::alpha(
        "cardinality_enforcement_unexpected_categorizations_total",
        "The count of unexpected categorizations during cardinality enforcement.",
    ),
];
const FILL: Desc = Desc::alpha(
    "apiserver_envelope_encryption_dek_cache_fill_percent",
    "Percent of the cache slots currently occupied by cached DEKs.",
);
const KEYS: Desc = Desc::alpha(
    "apiserver_storage_data_key_generation_duration_seconds",
    "Latencies in seconds of data encryption key(DEK) generation operations.",
);
const AGE: Desc = Desc::alpha(
    "rest_client_exec_plugin_certificate_rotation_age",
    "Histogram of the number of seconds the last auth exec plugin client certificate lived before being rotated. If auth exec plugin client certificates are unused, histogram will contain no data.",
);
const TTL: Desc = Desc::alpha(
    "rest_client_exec_plugin_ttl_seconds",
    "Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused or manage no TLS certificates, the value will be +INF.",
);
const AGE_BUCKETS: [f64; 11] = [
    600.0,
    1800.0,
    3600.0,
    14400.0,
    86400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// Declares them.
pub(crate) fn register(registry: &Registry) {
    for desc in COUNTERS {
        registry.counter(desc);
    }
    registry.gauge(FILL);
    registry.histogram(KEYS, &exponential_buckets(5e-6, 2.0, 14));
    registry.histogram(AGE, &AGE_BUCKETS);
    registry.gauge(TTL).set(&[], f64::INFINITY);
}
