//! How pods start, and which the workers hold.

use api::core::v1::{Container, Pod};
use engine::startup::Startups;
use engine::status::StartError;
use jiff::Timestamp;
use proto::cri_v1::ImageSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry, Stability};

use super::{DEFAULT_BUCKETS, START_BUCKETS};

const SANDBOX: Desc = Desc::alpha(
    "kubelet_run_podsandbox_duration_seconds",
    "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
)
.labels(&["runtime_handler"]);
const SANDBOX_ERRORS: Desc = Desc::alpha(
    "kubelet_run_podsandbox_errors_total",
    "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
)
.labels(&["runtime_handler"]);
const USERNS: Desc = Desc::alpha(
    "kubelet_started_user_namespaced_pods_total",
    "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
);
const USERNS_ERRORS: Desc = Desc::alpha(
    "kubelet_started_user_namespaced_pods_errors_total",
    "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
);
const IMAGE_VOLUMES: Desc =
    Desc::beta("kubelet_image_volume_requested_total", "Number of requested image volumes.");
const IMAGE_VOLUMES_MOUNTED: Desc = Desc::beta(
    "kubelet_image_volume_mounted_succeed_total",
    "Number of successful image volume mounts.",
);
const IMAGE_VOLUME_ERRORS: Desc = Desc::beta(
    "kubelet_image_volume_mounted_errors_total",
    "Number of failed image volume mounts.",
);
const TOTAL: Desc = Desc::alpha(
    "kubelet_pod_start_total_duration_seconds",
    "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const SLI: Desc = Desc::alpha(
    "kubelet_pod_start_sli_duration_seconds",
    "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const FIRST: Desc = Desc::new(
    Stability::Internal,
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const EPHEMERAL: Desc = Desc::alpha(
    "kubelet_managed_ephemeral_containers",
    "Current number of ephemeral containers in pods managed by this kubelet.",
);
const WORKING: Desc = Desc::alpha(
    "kubelet_working_pods",
    "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
)
.labels(&["lifecycle", "config", "static"]);
const SLEEP_EARLY: Desc = Desc::alpha(
    "kubelet_sleep_action_terminated_early_total",
    "The number of times lifecycle sleep handler got terminated before it finishes",
);
const HTTP_FALLBACKS: Desc = Desc::alpha(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    "The number of times lifecycle handlers successfully fell back to http from https.",
);
/// Counters of starts.
/// Many fields: one for each metric.
#[derive(Debug, Clone)]
pub(crate) struct StartMetrics {
    sandbox: HistogramFamily,
    sandbox_errors: CounterFamily,
    userns: CounterFamily,
    userns_errors: CounterFamily,
    image_volumes: CounterFamily,
    image_volumes_mounted: CounterFamily,
    image_volume_errors: CounterFamily,
    total: HistogramFamily,
    sli: HistogramFamily,
    first: GaugeFamily,
    first_is_set: Arc<AtomicBool>,
    startups: Arc<Mutex<Startups>>,
    pub(crate) ephemeral: GaugeFamily,
    pub(crate) working: GaugeFamily,
    pub(crate) sleep_early: CounterFamily,
    pub(crate) http_fallbacks: CounterFamily,
}

impl StartMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            sandbox: registry.histogram(SANDBOX, &DEFAULT_BUCKETS),
            sandbox_errors: registry.counter(SANDBOX_ERRORS),
            userns: registry.counter(USERNS),
            userns_errors: registry.counter(USERNS_ERRORS),
            image_volumes: registry.counter(IMAGE_VOLUMES),
            image_volumes_mounted: registry.counter(IMAGE_VOLUMES_MOUNTED),
            image_volume_errors: registry.counter(IMAGE_VOLUME_ERRORS),
            total: registry.histogram(TOTAL, &START_BUCKETS),
            sli: registry.histogram(SLI, &START_BUCKETS),
            first: registry.gauge(FIRST),
            first_is_set: Arc::default(),
            startups: Arc::default(),
            ephemeral: registry.gauge(EPHEMERAL),
            working: registry.gauge(WORKING),
            sleep_early: registry.counter(SLEEP_EARLY),
            http_fallbacks: registry.counter(HTTP_FALLBACKS),
        }
    }

    /// A sandbox was asked for and came, or did not.
    pub(crate) fn sandbox(&self, handler: &str, took: Duration, came: bool) {
        self.sandbox.observe_duration(&[handler], took);
        if !came {
            self.sandbox_errors.inc(&[handler]);
        }
    }

    /// A pod is given a sandbox.
    pub(crate) fn with_own_users(&self, pod: &Pod) {
        if has_own_users(pod) {
            self.userns.inc(&[]);
        }
    }

    /// Something failed in the look that was to give a pod its sandbox.
    pub(crate) fn first_look_failed(&self, pod: &Pod) {
        if has_own_users(pod) {
            self.userns_errors.inc(&[]);
        }
    }

    /// A container was started, or not, with these image volumes at hand (upstream: `incrementImageVolumeMetrics`).
    pub(crate) fn with_image_volumes(
        &self,
        container: &Container,
        images: &BTreeMap<String, ImageSpec>,
        fault: Option<&StartError>,
    ) {
        let mounts = container.volume_mounts.iter().flatten();
        let mounts: Vec<&str> = mounts
            .map(|mount| mount.name.as_str())
            .filter(|name| images.contains_key(*name))
            .collect();
        for _ in mounts.iter().collect::<BTreeSet<_>>() {
            self.image_volumes.inc(&[]);
        }
        let refused = fault.is_some_and(|fault| {
            fault.reason == "CreateContainerError"
                && fault.message.starts_with("ImageVolumeMountFailed")
        });
        let outcome = if refused { &self.image_volume_errors } else { &self.image_volumes_mounted };
        mounts.iter().for_each(|_| outcome.inc(&[]));
    }

    /// The API server shows these pods.
    pub(crate) fn observed<'a>(&self, pods: impl Iterator<Item = &'a Arc<Pod>>, now: Timestamp) {
        let Ok(mut startups) = self.startups.lock() else { return };
        for started in pods.filter_map(|pod| startups.observed(pod, now)) {
            self.total.observe(&[], started.total);
            let Some(own) = started.own else { continue };
            self.sli.observe(&[], own);
            if started.own_network && !self.first_is_set.swap(true, Ordering::Relaxed) {
                self.first.set(&[], own);
            }
        }
    }

    /// Notes something about a pod's start.
    pub(crate) fn note(&self, what: impl FnOnce(&mut Startups)) {
        if let Ok(mut startups) = self.startups.lock() {
            what(&mut startups);
        }
    }
}

fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false))
}
