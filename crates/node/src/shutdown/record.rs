//! When the last graceful shutdown began and ended: a file that survives the reboot, and two
//! metrics.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use telemetry::metrics::{Desc, GaugeFamily, Registry};

const FILE: &str = "graceful_node_shutdown_state";
/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

const START: Desc = Desc::alpha(
    "kubelet_graceful_shutdown_start_time_seconds",
    "Last graceful shutdown start time since unix epoch in seconds",
);
const END: Desc = Desc::alpha(
    "kubelet_graceful_shutdown_end_time_seconds",
    "Last graceful shutdown end time since unix epoch in seconds",
);

/// The two times as metrics.
#[derive(Debug, Clone)]
pub struct ShutdownMetrics {
    start: GaugeFamily,
    end: GaugeFamily,
}

impl ShutdownMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self { start: registry.gauge(START), end: registry.gauge(END) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Times {
    start_time: String,
    end_time: String,
}

/// The file and the metrics.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    metrics: ShutdownMetrics,
}

impl Record {
    pub(super) fn new(root: PathBuf, metrics: ShutdownMetrics) -> Self {
        Self { path: root.join(FILE), metrics }
    }

    /// Sets the metrics from the file of the last shutdown.
    pub(super) async fn restore(&self) {
        let path = self.path.clone();
        let read = sys::blocking::run(move || sys::fs::read_to_string(path)).await;
        let Ok(Ok(text)) = read else { return };
        let Ok(times) = serde_json::from_str::<Times>(&text) else {
            tracing::error!("Failed to load graceful shutdown state");
            return;
        };
        for (text, gauge) in
            [(&times.start_time, &self.metrics.start), (&times.end_time, &self.metrics.end)]
        {
            if text != NEVER
                && let Ok(time) = text.parse::<Timestamp>()
            {
                gauge.set(&[], seconds(time));
            }
        }
    }

    /// A shutdown began.
    pub(super) async fn began(&self, start: Timestamp) {
        self.store(start, None).await;
        self.metrics.start.set(&[], seconds(start));
        self.metrics.end.set(&[], 0.0);
    }

    /// All groups have been processed.
    pub(super) async fn ended(&self, start: Timestamp, end: Timestamp) {
        self.store(start, Some(end)).await;
        self.metrics.end.set(&[], seconds(end));
    }

    async fn store(&self, start: Timestamp, end: Option<Timestamp>) {
        let times = Times {
            start_time: start.to_string(),
            end_time: end.map_or_else(|| NEVER.to_owned(), |end| end.to_string()),
        };
        let Ok(text) = serde_json::to_string(&times) else { return };
        let path = self.path.clone();
        let written =
            sys::blocking::run(move || sys::fs::write_atomic(path, text.as_bytes(), 0o644)).await;
        if !matches!(written, Ok(Ok(()))) {
            tracing::error!("Failed to store graceful shutdown state");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds since the epoch fit")]
fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}
