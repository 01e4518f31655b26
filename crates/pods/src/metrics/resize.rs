//! Counters of in-place resizes.

use engine::allocation::RequestedResize;
use engine::status::resize::ResizeConditions;
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const REQUESTED: Desc = Desc::alpha(
    "kubelet_container_requested_resizes_total",
    "Number of requested resizes, counted at the container level. Different resources on the same \
     container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the \
     'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
)
.labels(&["resource", "requirement", "operation"]);
const DURATION: Desc = Desc::alpha(
    "kubelet_pod_resize_duration_milliseconds",
    "Duration in milliseconds to actuate a pod resize",
)
.labels(&["success"]);
const PENDING: Desc =
    Desc::alpha("kubelet_pod_pending_resizes", "Number of pending resizes for pods.")
        .labels(&["reason"]);
const INFEASIBLE: Desc =
    Desc::alpha("kubelet_pod_infeasible_resizes_total", "Number of infeasible resizes for pods.")
        .labels(&["reason_detail"]);
const IN_PROGRESS: Desc =
    Desc::alpha("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.");
const DEFERRED_ACCEPTED: Desc = Desc::alpha(
    "kubelet_pod_deferred_accepted_resizes_total",
    "Cumulative number of resizes that were accepted after being deferred.",
)
.labels(&["retry_trigger"]);

const MILLISECONDS: [f64; 14] = [
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0,
    120_000.0, 300_000.0, 600_000.0,
];

/// Why waiting resizes are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryTrigger {
    Periodic,
    PodResized,
    PodUpdated,
    PodsAdded,
    PodsRemoved,
    PodTerminated,
}

impl RetryTrigger {
    fn as_str(self) -> &'static str {
        match self {
            Self::Periodic => "periodic_retry",
            Self::PodResized => "pod_resized",
            Self::PodUpdated => "pod_updated",
            Self::PodsAdded => "pods_added",
            Self::PodsRemoved => "pods_removed",
            Self::PodTerminated => "pod_terminated",
        }
    }
}

/// What is counted about resizes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ResizeMetrics {
    requested: CounterFamily,
    duration: HistogramFamily,
    pending: GaugeFamily,
    infeasible: CounterFamily,
    in_progress: GaugeFamily,
    deferred_accepted: CounterFamily,
}

impl ResizeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let metrics = Self {
            requested: registry.counter(REQUESTED),
            duration: registry.histogram(DURATION, &MILLISECONDS),
            pending: registry.gauge(PENDING),
            infeasible: registry.counter(INFEASIBLE),
            in_progress: registry.gauge(IN_PROGRESS),
            deferred_accepted: registry.counter(DEFERRED_ACCEPTED),
        };
        metrics.in_progress.set(&[], 0.0);
        metrics
    }

    /// A pod wishes other resources.
    pub(crate) fn requested(&self, changes: &[RequestedResize]) {
        for change in changes {
            let labels = [change.resource, change.requirement, change.operation];
            self.requested.inc(&labels);
        }
    }

    /// A granted resize was carried out, or not.
    pub(crate) fn carried_out(&self, success: bool, took: Duration) {
        let label = if success { "true" } else { "false" };
        // Whole milliseconds, as upstream.
        let whole = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        self.duration.observe(&[label], f64::from(whole));
    }

    /// A resize can never be carried out here.
    pub(crate) fn infeasible(&self, detail: &str) {
        self.infeasible.inc(&[detail]);
    }

    /// A resize that had to wait was granted.
    pub(crate) fn accepted_at_last(&self, trigger: RetryTrigger) {
        self.deferred_accepted.inc(&[trigger.as_str()]);
    }

    /// How many wait and how many are under way now.
    pub(crate) fn show<'a>(&self, all: impl Iterator<Item = &'a ResizeConditions>) {
        let (mut pending, mut in_progress) = (BTreeMap::<String, u32>::new(), 0_u32);
        for conditions in all {
            if let Some(reason) = conditions.pending_reason() {
                *pending.entry(reason.to_lowercase()).or_default() += 1;
            }
            in_progress += u32::from(conditions.is_in_progress());
        }
        self.pending.clear();
        for (reason, count) in pending {
            self.pending.set(&[&reason], f64::from(count));
        }
        self.in_progress.set(&[], f64::from(in_progress));
    }
}
