//! `/metrics/slis`: how often each health check passed, counted by requests to `/healthz`.

use std::sync::Mutex;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, Kind, Registry};

const CHECK: Desc = Desc::stable(
    "kubernetes_healthcheck",
    "This metric records the result of a single healthcheck.",
)
.labels(&["name", "type"]);
const CHECKS: Desc = Desc::stable(
    "kubernetes_healthchecks_total",
    "This metric records the results of all healthcheck.",
)
.labels(&["name", "type", "status"]);
const START: Desc = Desc::alpha(
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
);

/// Results of health checks.
#[derive(Debug)]
pub struct HealthMetrics(Mutex<Page>);

#[derive(Debug)]
struct Page {
    registry: Registry,
    check: GaugeFamily,
    reset: bool,
    checks: CounterFamily,
}

impl Page {
    fn new() -> Self {
        let registry = Registry::new();
        let (check, checks) = (registry.gauge(CHECK), registry.counter(CHECKS));
        Self { registry, check, checks, reset: false }
    }
}

impl HealthMetrics {
    /// No results yet; the process started at this second.
    pub fn new(started: i64) -> Self {
        let page = Page::new();
        #[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
        let started = started as f64;
        page.registry.collector(move |scrape| {
            scrape.family(&START, Kind::Gauge).push_values(&[], &[], started.into(), None);
        });
        Self(Mutex::new(page))
    }

    /// Counts a result.
    pub(crate) fn record(&self, name: &str, passed: bool) {
        let Ok(page) = self.0.lock() else { return };
        page.check.set(&[name, "healthz"], if passed { 1.0 } else { 0.0 });
        page.checks.inc(&[name, "healthz", if passed { "success" } else { "error" }]);
    }

    /// Drops all results and the process start time.
    pub(crate) fn reset(&self) {
        if let Ok(mut page) = self.0.lock() {
            *page = Page { reset: true, ..Page::new() };
        }
    }

    /// Whether `reset` was called: upstream's other endpoints lose the process start time then too.
    pub fn is_reset(&self) -> bool {
        self.0.lock().is_ok_and(|page| page.reset)
    }

    /// The text of the endpoint.
    pub(crate) fn render(&self) -> String {
        self.0.lock().map(|page| page.registry.render()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_counted_until_reset() {
        let metrics = HealthMetrics::new(7);
        metrics.record("ping", true);
        metrics.record("log", false);
        let text = metrics.render();
        assert!(text.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"));
        let failed =
            "kubernetes_healthchecks_total{name=\"log\",status=\"error\",type=\"healthz\"} 1";
        assert!(text.contains(failed), "{text}");
        assert!(text.contains("process_start_time_seconds 7\n"));
        metrics.reset();
        assert_eq!((metrics.render().as_str(), metrics.is_reset()), ("", true));
    }
}
