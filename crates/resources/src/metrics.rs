//! Metrics of placement, with upstream's names, labels and buckets.

use telemetry::metrics::{
    CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry, exponential_buckets,
};

const TOPOLOGY_REQUESTS: Desc = Desc::alpha(
    "kubelet_topology_manager_admission_requests_total",
    "The number of admission requests where resources have to be aligned.",
);
const TOPOLOGY_ERRORS: Desc = Desc::alpha(
    "kubelet_topology_manager_admission_errors_total",
    "The number of admission request failures where resources could not be aligned.",
);
const TOPOLOGY_DURATION: Desc = Desc::alpha(
    "kubelet_topology_manager_admission_duration_ms",
    "Duration in milliseconds to serve a pod admission request.",
);
const ALIGNED: Desc = Desc::alpha(
    "kubelet_container_aligned_compute_resources_count",
    "Cumulative number of aligned compute resources allocated to containers by alignment type.",
)
.labels(&["scope", "boundary"]);
const NOT_ALIGNED: Desc = Desc::alpha(
    "kubelet_container_aligned_compute_resources_failure_count",
    "Cumulative number of failures to allocate aligned compute resources to containers by alignment \
     type.",
)
.labels(&["scope", "boundary"]);
const CPU_REQUESTS: Desc = Desc::alpha(
    "kubelet_cpu_manager_pinning_requests_total",
    "The number of cpu core allocations which required pinning.",
);
const CPU_ERRORS: Desc = Desc::alpha(
    "kubelet_cpu_manager_pinning_errors_total",
    "The number of cpu core allocations which required pinning failed.",
);
const CPU_SHARED: Desc = Desc::alpha(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
);
const CPU_EXCLUSIVE: Desc = Desc::alpha(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "The total number of CPUs exclusively allocated to containers running on this node",
);
const CPU_PER_NUMA: Desc = Desc::alpha(
    "kubelet_cpu_manager_allocation_per_numa",
    "Number of CPUs allocated per NUMA node",
)
.labels(&["numa_node"]);
const MEMORY_REQUESTS: Desc = Desc::alpha(
    "kubelet_memory_manager_pinning_requests_total",
    "The number of memory pages allocations which required pinning.",
);
const MEMORY_ERRORS: Desc = Desc::alpha(
    "kubelet_memory_manager_pinning_errors_total",
    "The number of memory pages allocations which required pinning that failed.",
);

const ALLOCATIONS: Desc = Desc::alpha(
    "resource_manager_allocations_total",
    "Number of exclusive resource allocations performed by a resource manager.",
)
.labels(&["resource_name", "source"]);
const ALLOCATION_ERRORS: Desc = Desc::alpha(
    "resource_manager_allocation_errors_total",
    "Number of errors encountered during exclusive resource allocation.",
)
.labels(&["resource_name", "source"]);
const ASSIGNMENTS: Desc = Desc::alpha(
    "resource_manager_container_assignments",
    "Number of containers with a specific type of resource assignment.",
)
.labels(&["resource_name", "assignment_type"]);

/// Metrics by assignment source: pod or container (gate PodLevelResourceManagers).
#[derive(Debug, Clone)]
pub(crate) struct SourceMetrics {
    pub(crate) allocations: CounterFamily,
    pub(crate) allocation_errors: CounterFamily,
    pub(crate) assignments: CounterFamily,
}

/// Metrics of placement; cheap to clone.
#[derive(Debug, Clone)]
pub struct PlacementMetrics {
    sources: Option<SourceMetrics>,
    pub(crate) topology_requests: CounterFamily,
    pub(crate) topology_errors: CounterFamily,
    pub(crate) topology_duration: HistogramFamily,
    pub(crate) aligned: CounterFamily,
    pub(crate) not_aligned: CounterFamily,
    pub(crate) cpu_requests: CounterFamily,
    pub(crate) cpu_errors: CounterFamily,
    pub(crate) cpu_shared: GaugeFamily,
    pub(crate) cpu_exclusive: GaugeFamily,
    pub(crate) cpu_per_numa: GaugeFamily,
    pub(crate) memory_requests: CounterFamily,
    pub(crate) memory_errors: CounterFamily,
}

impl PlacementMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let buckets = exponential_buckets(0.05, 2.0, 15);
        Self {
            sources: None,
            topology_requests: registry.counter(TOPOLOGY_REQUESTS),
            topology_errors: registry.counter(TOPOLOGY_ERRORS),
            topology_duration: registry.histogram(TOPOLOGY_DURATION, &buckets),
            aligned: registry.counter(ALIGNED),
            not_aligned: registry.counter(NOT_ALIGNED),
            cpu_requests: registry.counter(CPU_REQUESTS),
            cpu_errors: registry.counter(CPU_ERRORS),
            cpu_shared: registry.gauge(CPU_SHARED),
            cpu_exclusive: registry.gauge(CPU_EXCLUSIVE),
            cpu_per_numa: registry.gauge(CPU_PER_NUMA),
            memory_requests: registry.counter(MEMORY_REQUESTS),
            memory_errors: registry.counter(MEMORY_ERRORS),
        }
    }

    /// Also registers the metrics by assignment source.
    pub fn with_sources(mut self, registry: &Registry) -> Self {
        self.sources = Some(SourceMetrics {
            allocations: registry.counter(ALLOCATIONS),
            allocation_errors: registry.counter(ALLOCATION_ERRORS),
            assignments: registry.counter(ASSIGNMENTS),
        });
        self
    }

    /// Updates the metrics by assignment source, if they are registered.
    pub(crate) fn by_source(&self, count: impl FnOnce(&SourceMetrics)) {
        if let Some(sources) = &self.sources {
            count(sources);
        }
    }

    /// Counts the containers of a pod with pod-level resources.
    pub(crate) fn count_pod(&self, resource: &str, exclusive: usize, shared: usize) {
        self.by_source(|sources| {
            for (kind, count) in [("pod_exclusive", exclusive), ("pod_shared", shared)] {
                for _ in 0..count {
                    sources.assignments.inc(&[resource, kind]);
                    sources.allocations.inc(&[resource, "pod"]);
                }
            }
        });
    }

    /// Initialises the alignment counters of these boundaries to 0.
    pub(crate) fn show_alignment(&self, boundaries: &[&str]) {
        for boundary in boundaries {
            for scope in ["container", "pod"] {
                self.aligned.with(&[scope, boundary]).add(0.0);
                self.not_aligned.with(&[scope, boundary]).add(0.0);
            }
        }
    }
}
