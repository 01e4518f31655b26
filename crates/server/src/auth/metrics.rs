//! Metrics of authentication and authorization, with the names of the apiserver library.

use ports::ReviewTry;
use std::time::Duration;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const CACHE_TIME: Desc =
    Desc::alpha("authentication_token_cache_request_duration_seconds", "").labels(&["status"]);
const CACHE: Desc = Desc::alpha("authentication_token_cache_request_total", "").labels(&["status"]);
const FETCHES: Desc = Desc::alpha("authentication_token_cache_fetch_total", "").labels(&["status"]);
const ACTIVE: Desc =
    Desc::alpha("authentication_token_cache_active_fetch_count", "").labels(&["status"]);
const AUTHN: Desc = Desc::alpha(
    "apiserver_delegated_authn_request_total",
    "Number of HTTP requests partitioned by status code.",
)
.labels(&["code"]);
const AUTHN_TIME: Desc = Desc::alpha(
    "apiserver_delegated_authn_request_duration_seconds",
    "Request latency in seconds. Broken down by status code.",
)
.labels(&["code"]);
const AUTHZ: Desc = Desc::alpha(
    "apiserver_delegated_authz_request_total",
    "Number of HTTP requests partitioned by status code.",
)
.labels(&["code"]);
const AUTHZ_TIME: Desc = Desc::alpha(
    "apiserver_delegated_authz_request_duration_seconds",
    "Request latency in seconds. Broken down by status code.",
)
.labels(&["code"]);
const EXPIRATION: Desc = Desc::alpha(
    "apiserver_client_certificate_expiration_seconds",
    "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
);
const CACHE_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const REVIEW_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
const EXPIRATION_BUCKETS: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Metrics of the guard.
#[derive(Debug)]
pub struct AuthMetrics {
    cache: CounterFamily,
    cache_time: HistogramFamily,
    fetches: CounterFamily,
    active: GaugeFamily,
    authn: CounterFamily,
    authn_time: HistogramFamily,
    authz: CounterFamily,
    authz_time: HistogramFamily,
    pub(super) expiration: HistogramFamily,
}

impl AuthMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let expiration = registry.histogram(EXPIRATION, &EXPIRATION_BUCKETS);
        expiration.with(&[]);
        Self {
            cache: registry.counter(CACHE),
            cache_time: registry.histogram(CACHE_TIME, &CACHE_BUCKETS),
            fetches: registry.counter(FETCHES),
            active: registry.gauge(ACTIVE),
            authn: registry.counter(AUTHN),
            authn_time: registry.histogram(AUTHN_TIME, &REVIEW_BUCKETS),
            authz: registry.counter(AUTHZ),
            authz_time: registry.histogram(AUTHZ_TIME, &REVIEW_BUCKETS),
            expiration,
        }
    }

    /// A token was looked up; `fetched` is set if it had to be reviewed: whether that succeeded,
    /// and the attempts.
    pub(super) fn token(&self, took: Duration, fetched: Option<(bool, &[ReviewTry])>) {
        let status = if fetched.is_some() { "miss" } else { "hit" };
        self.cache.inc(&[status]);
        self.cache_time.observe_duration(&[status], took);
        if let Some((well, tries)) = fetched {
            self.fetches.inc(&[if well { "ok" } else { "error" }]);
            count(&self.authn, &self.authn_time, tries);
            for status in ["in_flight", "blocked"] {
                self.active.with(&[status]).add(0.0);
            }
        }
    }

    /// Access was reviewed.
    pub(super) fn access(&self, tries: &[ReviewTry]) {
        count(&self.authz, &self.authz_time, tries);
    }
}

/// Counts review requests by status code; requests without a response have none.
fn count(total: &CounterFamily, time: &HistogramFamily, tries: &[ReviewTry]) {
    for attempt in tries {
        let code = attempt.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        total.inc(&[&code]);
        time.observe_duration(&[&code], attempt.took);
    }
}
