//! `kubelet_http_*`: requests by method and first segment of the path, both bounded.

use crate::reply::{self, Reply};
use crate::route::Switches;
use http::{Method, Request};
use std::sync::Arc;
use telemetry::metrics::{CounterFamily, Desc, Gauge, GaugeFamily, HistogramFamily, Registry};
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

const ALWAYS: [&str; 14] = [
    "healthz",
    "pods",
    "stats",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "logs",
];

/// The three families.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    requests: CounterFamily,
    duration: HistogramFamily,
    inflight: GaugeFamily,
}

impl RequestMetrics {
    /// Registers the metrics.
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counter(REQUESTS),
            duration: registry.histogram(DURATION, &BUCKETS),
            inflight: registry.gauge(INFLIGHT),
        }
    }

    /// Counts a request.
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
        let duration = self.duration.clone();
        let counted = Counted { inflight, duration, labels, since: Instant::now() };
        Running { _counted: Arc::new(counted) }
    }
}

/// A request in progress, until the last clone is dropped: its response was sent, or its stream has
/// ended.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    _counted: Arc<Counted>,
}

impl Running {
    /// The handle of a request whose stream outlives its handler.
    pub(crate) fn of<T>(request: &Request<T>) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }

    /// Counts until the body is sent.
    pub(crate) fn until_sent(self, reply: Reply) -> Reply {
        reply::holding(reply, self)
    }
}

#[derive(Debug)]
struct Counted {
    inflight: Gauge,
    duration: HistogramFamily,
    labels: [&'static str; 4],
    since: Instant,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inflight.add(-1.0);
        // The series begins with the first request that ended (component-base: `ObserveSince`).
        self.duration.observe_duration(&self.labels, self.since.elapsed());
    }
}

fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] =
        ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// The label value of a path's handler; `other` if it has none (kubelet: `getMetricBucket`).
fn label(path: &str, switches: Switches) -> &'static str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (first, rest) =
        path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let page = rest.filter(|_| first == "metrics").and_then(|rest| rest.split('/').next());
    let fits = |known: &&str| match page {
        Some(page) => known.strip_prefix("metrics/") == Some(page),
        None => *known == first,
    };
    let on = switches.debugging;
    let sometimes = [
        ("debug", on),
        ("configz", on),
        ("checkpoint", on && switches.checkpoint),
        ("flagz", on && switches.flagz),
        ("statusz", on && switches.statusz),
        ("pprof", !on),
    ];
    let sometimes = sometimes.into_iter().filter(|(_, on)| *on).map(|(name, _)| name);
    ALWAYS.into_iter().chain(sometimes).find(fits).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, HttpBody as _};

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
            ("/metrics", "metrics"),
            ("/metrics/", "other"),
            ("/metrics/cadvisor/x", "metrics/cadvisor"),
            ("/pods/", "pods"),
            ("//pods", "other"),
            ("/metrics/pods", "other"),
            ("/debug/pprof/heap", "debug"),
            ("/pprof/heap", "other"),
            ("/checkpoint/a/b/c", "checkpoint"),
        ] {
            assert_eq!(label(path, ALL), want, "{path}");
        }
        let off = Switches { debugging: false, ..ALL };
        for (path, want) in [
            ("/configz", "other"),
            ("/debug/pprof/heap", "other"),
            ("/pprof/heap", "pprof"),
            ("/flagz", "other"),
            ("/logs/x", "logs"),
        ] {
            assert_eq!(label(path, off), want, "{path}");
        }
        let few = Switches { checkpoint: false, flagz: false, statusz: false, ..ALL };
        for path in ["/checkpoint/a/b/c", "/flagz", "/statusz"] {
            assert_eq!(label(path, few), "other", "{path}");
        }
        assert_eq!(method_label(&Method::PATCH), "other");
        let strange = Method::from_bytes(b"BREW").unwrap();
        assert_eq!(method_label(&strange), "other");
    }

    #[test]
    fn a_request_counts_while_it_runs_and_when_it_ended() {
        let registry = Registry::new();
        let metrics = RequestMetrics::new(&registry);
        let running = metrics.begin(&Method::GET, "/pods", ALL, false);
        let mut request = Request::new(());
        request.extensions_mut().insert(running.clone());
        let reply = running.until_sent(Reply::new(Body::from("answer")));
        assert_eq!(reply.body().size_hint().exact(), Some(6));
        let labels =
            "{long_running=\"false\",method=\"GET\",path=\"pods\",server_type=\"readwrite\"}";
        assert!(registry.render().contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        let stream = Running::of(&request);
        drop((request, reply));
        let text = registry.render();
        assert!(!text.contains("kubelet_http_requests_duration_seconds"), "{text}");
        assert!(registry.render().contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        drop(stream);
        let text = registry.render();
        assert!(text.contains(&format!("kubelet_http_inflight_requests{labels} 0\n")), "{text}");
        let count = format!("kubelet_http_requests_duration_seconds_count{labels} 1\n");
        assert!(text.contains(&count), "{text}");
    }
}
