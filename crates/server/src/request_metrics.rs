//! `kubelet_http_*`: requests by method and first part of the path, both bounded.

use crate::route::Switches;
use http::Method;
use telemetry::metrics::{
    CounterFamily, Desc, Gauge, GaugeFamily, Histogram, HistogramFamily, Registry,
};
use tokio::time::Instant;

const LABELS: &[&str] = &["method", "path", "server_type", "long_running"];
const REQUESTS: Desc = Desc::alpha(
    "kubelet_http_requests_total",
    "Number of the http requests received since the server started",
)
.labels(LABELS);
const DURATION: Desc = Desc::alpha(
    "kubelet_http_requests_duration_seconds",
    "Duration in seconds to serve http requests",
)
.labels(LABELS);
const INFLIGHT: Desc =
    Desc::alpha("kubelet_http_inflight_requests", "Number of the inflight http requests")
        .labels(LABELS);
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const ALWAYS: [&str; 8] = [
    "healthz",
    "pods",
    "stats",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "run",
];
const TREES: [&str; 7] =
    ["exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug"];
const DEBUGGING: [&str; 4] = ["configz", "checkpoint", "flagz", "statusz"];

/// The three families.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    requests: CounterFamily,
    duration: HistogramFamily,
    inflight: GaugeFamily,
}

impl RequestMetrics {
    /// Declares them.
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counter(REQUESTS),
            duration: registry.histogram(DURATION, &BUCKETS),
            inflight: registry.gauge(INFLIGHT),
        }
    }

    /// Counts a request; its time ends when the answer is dropped.
    pub(crate) fn begin(
        &self,
        method: &Method,
        path: &str,
        switches: Switches,
        read_only: bool,
    ) -> Running {
        let path = label(path, switches);
        let long = if matches!(path, "exec" | "attach" | "debug") { "true" } else { "false" };
        let server = if read_only { "readonly" } else { "readwrite" };
        let labels = [method_label(method), path, server, long];
        self.requests.inc(&labels);
        let inflight = self.inflight.with(&labels);
        inflight.add(1.0);
        Running { inflight, duration: self.duration.with(&labels), since: Instant::now() }
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Running {
    inflight: Gauge,
    duration: Histogram,
    since: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.inflight.add(-1.0);
        self.duration.observe_duration(self.since.elapsed());
    }
}

fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] =
        ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// The handler that a path belongs to; `other` if it has none.
fn label(path: &str, switches: Switches) -> &'static str {
    let path = path.trim_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    let wanted = if first == "metrics" { path } else { first };
    let debugging = DEBUGGING.into_iter().filter(|_| switches.debugging);
    let mut known = ALWAYS.into_iter().chain(TREES).chain(debugging);
    known.find(|known| *known == wanted).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Switches = Switches {
        debugging: true,
        system_logs: true,
        profiling: true,
        debug_flags: true,
        checkpoint: true,
        flagz: true,
        statusz: true,
        log_query: false,
        split_log_streams: false,
        translate_websockets: true,
    };

    #[test]
    fn labels_are_of_a_fixed_set_whatever_is_asked() {
        for (path, want) in [
            ("/pods", "pods"),
            ("/metrics/cadvisor", "metrics/cadvisor"),
            ("/metrics/slis", "other"),
            ("/exec/a/b/c", "exec"),
            ("/", "other"),
            ("/x/../../y", "other"),
            ("/healthz/log", "healthz"),
        ] {
            assert_eq!(label(path, ALL), want, "{path}");
        }
        assert_eq!(label("/configz", Switches { debugging: false, ..ALL }), "other");
        assert_eq!(method_label(&Method::PATCH), "other");
        let strange = Method::from_bytes(b"BREW").unwrap();
        assert_eq!(method_label(&strange), "other");
    }

    #[test]
    fn a_request_counts_while_it_runs_and_when_it_ended() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry);
        let running = metrics.begin(&Method::GET, "/pods", ALL, false);
        let labels =
            "{long_running=\"false\",method=\"GET\",path=\"pods\",server_type=\"readwrite\"}";
        assert!(registry.render().contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        drop(running);
        let text = registry.render();
        assert!(text.contains(&format!("kubelet_http_inflight_requests{labels} 0\n")), "{text}");
        let count = format!("kubelet_http_requests_duration_seconds_count{labels} 1\n");
        assert!(text.contains(&count), "{text}");
    }
}
