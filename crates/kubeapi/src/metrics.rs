//! Metrics of requests and certificates, with upstream's names.

use std::time::Duration;
use telemetry::metrics::{
    Counter, CounterFamily, Desc, Histogram, HistogramFamily, Kind, Registry, SampleValue,
};

const REQUEST_DURATION: Desc = Desc::alpha(
    "rest_client_request_duration_seconds",
    "Request latency in seconds. Broken down by verb, and host.",
)
.labels(&["verb", "host"]);
const THROTTLE_DURATION: Desc = Desc::alpha(
    "rest_client_rate_limiter_duration_seconds",
    "Client side rate limiter latency in seconds. Broken down by verb, and host.",
)
.labels(&["verb", "host"]);
const LANE_THROTTLED: Desc = Desc::alpha(
    "rubelet_api_throttled_seconds_total",
    "Seconds for which requests to the API server waited for their turn in the client-side rate limit, by lane.",
)
.labels(&["lane"]);
const REQUEST_SIZE: Desc = Desc::alpha(
    "rest_client_request_size_bytes",
    "Request size in bytes. Broken down by verb and host.",
)
.labels(&["verb", "host"]);
const RESPONSE_SIZE: Desc = Desc::alpha(
    "rest_client_response_size_bytes",
    "Response size in bytes. Broken down by verb and host.",
)
.labels(&["verb", "host"]);
const REQUESTS: Desc = Desc::alpha(
    "rest_client_requests_total",
    "Number of HTTP requests, partitioned by status code, method, and host.",
)
.labels(&["code", "method", "host"]);

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// `rest_client_*`.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    duration: HistogramFamily,
    throttled: HistogramFamily,
    lanes: CounterFamily,
    request_size: HistogramFamily,
    response_size: HistogramFamily,
    requests: CounterFamily,
}

impl RequestMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            duration: registry.histogram(REQUEST_DURATION, &SECONDS),
            throttled: registry.histogram(THROTTLE_DURATION, &SECONDS),
            lanes: registry.counter(LANE_THROTTLED),
            request_size: registry.histogram(REQUEST_SIZE, &BYTES),
            response_size: registry.histogram(RESPONSE_SIZE, &BYTES),
            requests: registry.counter(REQUESTS),
        }
    }

    /// The seconds that a lane waited for the rate limit; the series starts at zero.
    pub(crate) fn lane(&self, name: &str) -> Counter {
        self.lanes.with(&[name])
    }

    pub(crate) fn throttled(&self, verb: &str, host: &str, waited: Duration) {
        self.throttled.observe_duration(&[verb, host], waited);
    }

    /// A request ended with this status, if it had a response.
    pub(crate) fn answered(
        &self,
        (verb, host): (&str, &str),
        sent_bytes: Option<u64>,
        status: Option<u16>,
        took: Duration,
    ) {
        let code = status.map_or("<error>".to_owned(), |code| code.to_string());
        self.requests.inc(&[&code, verb, host]);
        self.duration.observe_duration(&[verb, host], took);
        if let Some(bytes) = sent_bytes {
            self.request_size.observe(&[verb, host], size(bytes));
        }
    }

    /// A response of this many bytes was read.
    pub(crate) fn read(&self, verb: &str, host: &str, bytes: u64) {
        self.response_size.observe(&[verb, host], size(bytes));
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes in a histogram")]
fn size(bytes: u64) -> f64 {
    bytes as f64
}

/// Which certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateKind {
    Client,
    Server,
}

const CLIENT_FAILURES: Desc = Desc::alpha(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "Counter of certificate renewal errors.",
);
const CLIENT_TTL: Desc = Desc::alpha(
    "kubelet_certificate_manager_client_ttl_seconds",
    "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds \
     until certificate expiry (negative if already expired). If client certificate is invalid or \
     unused, the value will be +INF.",
);
const SERVER_FAILURES: Desc =
    Desc::alpha("kubelet_server_expiration_renew_errors", "Counter of certificate renewal errors.");
const SERVER_TTL: Desc = Desc::alpha(
    "kubelet_certificate_manager_server_ttl_seconds",
    "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is \
     in seconds until certificate expiry (negative if already expired). If serving certificate is \
     invalid or unused, the value will be +INF.",
);
const SERVER_ROTATION: Desc = Desc::alpha(
    "kubelet_certificate_manager_server_rotation_seconds",
    "Histogram of the number of seconds the previous certificate lived before being rotated.",
);
const LIVES: [f64; 10] = [
    60.0,
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

/// Metrics of one rotating certificate.
#[derive(Debug)]
pub(crate) struct CertificateMetrics {
    failures: Counter,
    lives: Option<Histogram>,
}

impl CertificateMetrics {
    pub(crate) fn new(
        registry: &Registry,
        kind: CertificateKind,
        seconds_left: impl Fn() -> Option<i64> + Send + Sync + 'static,
    ) -> Self {
        let (failures, ttl) = match kind {
            CertificateKind::Client => (CLIENT_FAILURES, CLIENT_TTL),
            CertificateKind::Server => (SERVER_FAILURES, SERVER_TTL),
        };
        registry.collector(move |scrape| {
            #[expect(clippy::cast_precision_loss, reason = "seconds until an expiry")]
            let left = seconds_left().map_or(f64::INFINITY, |s| s as f64);
            scrape.family(&ttl, Kind::Gauge).push(Vec::new(), SampleValue::Number(left), None);
        });
        let lives = (kind == CertificateKind::Server)
            .then(|| registry.histogram(SERVER_ROTATION, &LIVES).with(&[]));
        Self { failures: registry.counter(failures).with(&[]), lives }
    }

    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    pub(crate) fn rotated(&self, lived_seconds: i64) {
        if let Some(lives) = &self.lives {
            lives.observe_duration(Duration::from_secs(
                u64::try_from(lived_seconds).unwrap_or_default(),
            ));
        }
    }
}
