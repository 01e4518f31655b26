//! What the pod subsystem counts, with upstream's names, labels and buckets.

pub(crate) mod events;
pub(crate) mod resize;
pub(crate) mod starts;

use events::EventMetrics;
use resize::ResizeMetrics;
use starts::StartMetrics;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const START_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const STATUS_BUCKETS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const CONTAINER_BUCKETS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

const CONTAINERS_PER_POD: Desc =
    Desc::alpha("kubelet_containers_per_pod_count", "The number of containers per pod.");
const WORKER_DURATION: Desc = Desc::alpha(
    "kubelet_pod_worker_duration_seconds",
    "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
)
.labels(&["operation_type"]);
const WORKER_START: Desc = Desc::alpha(
    "kubelet_pod_worker_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod to starting a worker.",
);
const POD_START: Desc = Desc::alpha(
    "kubelet_pod_start_duration_seconds",
    "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
);
const STATUS_SYNC: Desc = Desc::alpha(
    "kubelet_pod_status_sync_duration_seconds",
    "Duration in seconds to sync a pod status update. Measures time from detection of a change to \
     pod status until the API is successfully updated for that pod, even if multiple intevening \
     changes to pod status occur.",
);
const RELIST: Desc = Desc::alpha(
    "kubelet_pleg_relist_duration_seconds",
    "Duration in seconds for relisting pods in PLEG.",
);
const RELIST_INTERVAL: Desc = Desc::alpha(
    "kubelet_pleg_relist_interval_seconds",
    "Interval in seconds between relisting in PLEG.",
);
const POD_RELIST: Desc = Desc::alpha(
    "kubelet_pleg_pod_relist_duration_seconds",
    "Duration in seconds for relisting a single pod in PLEG.",
);
const LAST_SEEN: Desc = Desc::alpha(
    "kubelet_pleg_last_seen_seconds",
    "Timestamp in seconds when PLEG was last seen active.",
);
const RUNNING_PODS: Desc =
    Desc::alpha("kubelet_running_pods", "Number of pods that have a running pod sandbox");
const RUNNING_CONTAINERS: Desc =
    Desc::alpha("kubelet_running_containers", "Number of containers currently running")
        .labels(&["container_state"]);
const DESIRED_PODS: Desc = Desc::alpha(
    "kubelet_desired_pods",
    "The number of pods the kubelet is being instructed to run. static is true if the pod is not from \
     the apiserver.",
)
.labels(&["static"]);
const ACTIVE_PODS: Desc = Desc::alpha(
    "kubelet_active_pods",
    "The number of pods the kubelet considers active and which are being considered when admitting new \
     pods. static is true if the pod is not from the apiserver.",
)
.labels(&["static"]);
const MIRROR_PODS: Desc = Desc::alpha(
    "kubelet_mirror_pods",
    "The number of mirror pods the kubelet will try to create (one per admitted static pod)",
);
const ORPHANED: Desc = Desc::alpha(
    "kubelet_orphaned_runtime_pods_total",
    "Number of pods that have been detected in the container runtime without being already known to \
     the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted \
     in the API or in the local configuration, which is unusual.",
);
const RESTARTED: Desc = Desc::alpha(
    "kubelet_restarted_pods_total",
    "Number of pods that have been restarted because they were deleted and recreated with the same UID \
     while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
)
.labels(&["static"]);
const STARTED_PODS: Desc =
    Desc::alpha("kubelet_started_pods_total", "Cumulative number of pods started");
const STARTED_PODS_ERRORS: Desc = Desc::alpha(
    "kubelet_started_pods_errors_total",
    "Cumulative number of errors when starting pods",
);
const STARTED_CONTAINERS: Desc =
    Desc::alpha("kubelet_started_containers_total", "Cumulative number of containers started")
        .labels(&["container_type"]);
const STARTED_CONTAINERS_ERRORS: Desc = Desc::alpha(
    "kubelet_started_containers_errors_total",
    "Cumulative number of errors when starting containers",
)
.labels(&["container_type", "code"]);
const TERMINATED: Desc = Desc::alpha(
    "kubelet_terminated_containers_total",
    "Cumulative number of container terminations.",
)
.labels(&["container_type", "exit_code", "reason"]);
const EVENTS_DROPPED: Desc = Desc::alpha(
    "kubelet_pod_watch_events_dropped_total",
    "Cumulative number of pod watch events dropped.",
);
const REJECTIONS: Desc = Desc::alpha(
    "kubelet_admission_rejections_total",
    "Cumulative number pod admission rejections by the Kubelet.",
)
.labels(&["reason"]);
const PREEMPTIONS: Desc = Desc::alpha(
    "kubelet_preemptions",
    "Cumulative number of pod preemptions by preemption resource",
)
.labels(&["preemption_signal"]);
const PROBES: Desc = Desc::beta(
    "prober_probe_total",
    "Cumulative number of a liveness, readiness or startup probe for a container by result.",
)
.labels(&["probe_type", "result", "container", "pod", "namespace", "pod_uid"]);
const PROBE_DURATION: Desc =
    Desc::alpha("prober_probe_duration_seconds", "Duration in seconds for a probe response.")
        .labels(&["probe_type", "container", "pod", "namespace"]);

/// Counters of the pod subsystem. Cheap to clone.
/// Many fields: one for each metric.
#[derive(Debug, Clone)]
pub struct PodMetrics {
    pub(crate) containers_per_pod: HistogramFamily,
    pub(crate) worker_duration: HistogramFamily,
    pub(crate) worker_start: HistogramFamily,
    pub(crate) pod_start: HistogramFamily,
    pub(crate) status_sync: HistogramFamily,
    pub(crate) relist: HistogramFamily,
    pub(crate) relist_interval: HistogramFamily,
    pub(crate) pod_relist: HistogramFamily,
    pub(crate) last_seen: GaugeFamily,
    pub(crate) running_pods: GaugeFamily,
    pub(crate) running_containers: GaugeFamily,
    pub(crate) desired_pods: GaugeFamily,
    pub(crate) active_pods: GaugeFamily,
    pub(crate) mirror_pods: GaugeFamily,
    pub(crate) orphaned: CounterFamily,
    pub(crate) restarted: CounterFamily,
    pub(crate) events_dropped: CounterFamily,
    pub(crate) started_pods: CounterFamily,
    pub(crate) started_pods_errors: CounterFamily,
    pub(crate) started_containers: CounterFamily,
    pub(crate) started_containers_errors: CounterFamily,
    pub(crate) terminated: CounterFamily,
    pub(crate) rejections: CounterFamily,
    pub(crate) preemptions: CounterFamily,
    pub(crate) resize: ResizeMetrics,
    pub(crate) starts: StartMetrics,
    pub(crate) events: EventMetrics,
    pub(crate) probes: CounterFamily,
    pub(crate) probe_duration: HistogramFamily,
}

impl PodMetrics {
    /// Declares them: probes in the registry of `/metrics/probes`, the rest in that of `/metrics`.
    pub fn new(registry: &Registry, probes: &Registry) -> Self {
        Self {
            containers_per_pod: registry.histogram(CONTAINERS_PER_POD, &CONTAINER_BUCKETS),
            worker_duration: registry.histogram(WORKER_DURATION, &DEFAULT_BUCKETS),
            worker_start: registry.histogram(WORKER_START, &DEFAULT_BUCKETS),
            pod_start: registry.histogram(POD_START, &START_BUCKETS),
            status_sync: registry.histogram(STATUS_SYNC, &STATUS_BUCKETS),
            relist: registry.histogram(RELIST, &DEFAULT_BUCKETS),
            relist_interval: registry.histogram(RELIST_INTERVAL, &DEFAULT_BUCKETS),
            pod_relist: registry.histogram(POD_RELIST, &DEFAULT_BUCKETS),
            last_seen: registry.gauge(LAST_SEEN),
            running_pods: registry.gauge(RUNNING_PODS),
            running_containers: registry.gauge(RUNNING_CONTAINERS),
            desired_pods: registry.gauge(DESIRED_PODS),
            active_pods: registry.gauge(ACTIVE_PODS),
            mirror_pods: registry.gauge(MIRROR_PODS),
            orphaned: registry.counter(ORPHANED),
            restarted: {
                let family = registry.counter(RESTARTED);
                for label in ["", "true"] {
                    family.with(&[label]);
                }
                family
            },
            events_dropped: registry.counter(EVENTS_DROPPED),
            started_pods: registry.counter(STARTED_PODS),
            started_pods_errors: registry.counter(STARTED_PODS_ERRORS),
            started_containers: registry.counter(STARTED_CONTAINERS),
            started_containers_errors: registry.counter(STARTED_CONTAINERS_ERRORS),
            terminated: registry.counter(TERMINATED),
            rejections: registry.counter(REJECTIONS),
            preemptions: registry.counter(PREEMPTIONS),
            resize: ResizeMetrics::new(registry),
            starts: StartMetrics::new(registry),
            events: EventMetrics::new(registry),
            probes: probes.counter(PROBES),
            probe_duration: probes.histogram(PROBE_DURATION, &DEFAULT_BUCKETS),
        }
    }
}
