//! Metrics of the pod resources socket.

use telemetry::metrics::{CounterFamily, Desc, Registry};

const REQUESTS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_requests_total",
    "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
)
.labels(&["server_api_version"]);
const LISTS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_requests_list",
    "Number of requests to the PodResource List endpoint. Broken down by server api version.",
)
.labels(&["server_api_version"]);
const ALLOCATABLES: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server \
     api version.",
)
.labels(&["server_api_version"]);
const GETS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_requests_get",
    "Number of requests to the PodResource Get endpoint. Broken down by server api version.",
)
.labels(&["server_api_version"]);
const LIST_ERRORS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_errors_list",
    "Number of requests to the PodResource List endpoint which returned error. Broken down by \
     server api version.",
)
.labels(&["server_api_version"]);
const ALLOCATABLE_ERRORS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_errors_get_allocatable",
    "Number of requests to the PodResource GetAllocatableResources endpoint which returned error. \
     Broken down by server api version.",
)
.labels(&["server_api_version"]);
const GET_ERRORS: Desc = Desc::alpha(
    "kubelet_pod_resources_endpoint_errors_get",
    "Number of requests to the PodResource Get endpoint which returned error. Broken down by server \
     api version.",
)
.labels(&["server_api_version"]);

/// Metrics of the pod resources socket.
#[derive(Debug, Clone)]
pub struct PodResourcesMetrics {
    pub(super) requests: CounterFamily,
    pub(super) lists: CounterFamily,
    pub(super) allocatables: CounterFamily,
    pub(super) gets: CounterFamily,
    pub(super) get_errors: CounterFamily,
}

impl PodResourcesMetrics {
    /// Registers the metrics; List and GetAllocatableResources never fail, so their error counters stay empty.
    pub fn new(registry: &Registry) -> Self {
        registry.counter(LIST_ERRORS);
        registry.counter(ALLOCATABLE_ERRORS);
        Self {
            requests: registry.counter(REQUESTS),
            lists: registry.counter(LISTS),
            allocatables: registry.counter(ALLOCATABLES),
            gets: registry.counter(GETS),
            get_errors: registry.counter(GET_ERRORS),
        }
    }
}
