//! Metrics of calls.

use std::fmt::Debug;
use std::time::Duration;

use telemetry::metrics::{CounterFamily, Desc, HistogramFamily, Registry, exponential_buckets};

use crate::call::Call;
use crate::error::CriError;

/// Called after every finished call.
pub trait CallObserver: Debug + Send + Sync {
    /// A call ended. A cancelled one is not reported.
    fn ended(&self, call: Call, elapsed: Duration, outcome: Result<(), &CriError>);
}

/// Ignores all calls.
impl CallObserver for () {
    fn ended(&self, _: Call, _: Duration, _: Result<(), &CriError>) {}
}

const TOTAL: Desc = Desc::alpha(
    "kubelet_runtime_operations_total",
    "Cumulative number of runtime operations by operation type.",
)
.labels(&["operation_type"]);
const ERRORS: Desc = Desc::alpha(
    "kubelet_runtime_operations_errors_total",
    "Cumulative number of runtime operation errors by operation type.",
)
.labels(&["operation_type"]);
const DURATION: Desc = Desc::alpha(
    "kubelet_runtime_operations_duration_seconds",
    "Duration in seconds of runtime operations. Broken down by operation type.",
)
.labels(&["operation_type"]);

/// `kubelet_runtime_operations_*`.
#[derive(Debug, Clone)]
pub struct RuntimeOperations {
    total: CounterFamily,
    errors: CounterFamily,
    duration: HistogramFamily,
}

impl RuntimeOperations {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            total: registry.counter(TOTAL),
            errors: registry.counter(ERRORS),
            duration: registry.histogram(DURATION, &exponential_buckets(0.005, 2.5, 14)),
        }
    }
}

/// Whether upstream counts a call: it makes stats, log rotation, events and the query of the cgroup
/// driver through an uncounted client (kubelet: `Dependencies.RemoteRuntimeService`).
fn is_counted(call: Call) -> bool {
    !matches!(
        call,
        Call::ContainerStats
            | Call::ListContainerStats
            | Call::StreamContainerStats
            | Call::PodSandboxStats
            | Call::ListPodSandboxStats
            | Call::StreamPodSandboxStats
            | Call::ImageFsInfo
            | Call::ReopenContainerLog
            | Call::GetContainerEvents
            | Call::RuntimeConfig
    )
}

impl CallObserver for RuntimeOperations {
    fn ended(&self, call: Call, elapsed: Duration, outcome: Result<(), &CriError>) {
        if !is_counted(call) {
            return;
        }
        let labels = [call.operation()];
        self.total.inc(&labels);
        self.duration.observe_duration(&labels, elapsed);
        if outcome.is_err() {
            self.errors.inc(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_past_the_counting_client_are_not_counted() {
        let registry = Registry::new();
        let operations = RuntimeOperations::new(&registry);
        let calls = [Call::ListContainers, Call::RuntimeConfig, Call::ImageFsInfo, Call::Version];
        calls.iter().for_each(|call| operations.ended(*call, Duration::ZERO, Ok(())));
        let page = registry.render();
        let total = "kubelet_runtime_operations_total{operation_type=";
        let mut counted = page.lines().filter_map(|line| line.strip_prefix(total));
        assert_eq!(counted.next(), Some("\"list_containers\"} 1"));
        assert_eq!(counted.next(), Some("\"version\"} 1"));
        assert_eq!(counted.next(), None);
    }
}
