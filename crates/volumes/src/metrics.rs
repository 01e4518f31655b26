//! Metrics of volume operations.

use engine::volumes::{Plugin, VolumeSpec};
use telemetry::metrics::{CounterFamily, Desc, GaugeFamily, HistogramFamily, Registry};

const OPERATION: Desc =
    Desc::alpha("storage_operation_duration_seconds", "Storage operation duration").labels(&[
        "volume_plugin",
        "operation_name",
        "status",
        "migrated",
    ]);
const END_TO_END: Desc = Desc::alpha(
    "volume_operation_total_seconds",
    "Storage operation end to end duration in seconds",
)
.labels(&["plugin_name", "operation_name"]);
const CSI: Desc = Desc::alpha(
    "csi_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
)
.labels(&["driver_name", "method_name", "grpc_status_code", "migrated"]);
const VOLUMES: Desc =
    Desc::alpha("volume_manager_total_volumes", "Number of volumes in Volume Manager")
        .labels(&["plugin_name", "state"]);
const RECONSTRUCTED: Desc = Desc::alpha(
    "reconstruct_volume_operations_total",
    "The number of volumes that were attempted to be reconstructed from the operating system \
     during kubelet startup. This includes both successful and failed reconstruction.",
);
const NOT_RECONSTRUCTED: Desc = Desc::alpha(
    "reconstruct_volume_operations_errors_total",
    "The number of volumes that failed reconstruction from the operating system during kubelet \
     startup.",
);
const FORCED: Desc = Desc::alpha(
    "force_cleaned_failed_volume_operations_total",
    "The number of volumes that were force cleaned after their reconstruction failed during \
     kubelet startup. This includes both successful and failed cleanups.",
);
const NOT_FORCED: Desc = Desc::alpha(
    "force_cleaned_failed_volume_operation_errors_total",
    "The number of volumes that failed force cleanup after their reconstruction failed during \
     kubelet startup.",
);
const ORPHANS: Desc = Desc::alpha(
    "kubelet_orphan_pod_cleaned_volumes",
    "The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
);
const ORPHAN_ERRORS: Desc = Desc::alpha(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
);
const MEASURED: Desc = Desc::alpha(
    "kubelet_volume_metric_collection_duration_seconds",
    "Duration in seconds to calculate volume stats",
)
.labels(&["metric_source"]);
const CERTIFICATES: Desc = Desc::alpha(
    "kubelet_podcertificate_states",
    "Gauge vector reporting the number of pod certificate projected volume sources, faceted by \
     signer_name and state.",
)
.labels(&["signer_name", "state"]);
const POD_LABELS_DIFFER: Desc = Desc::alpha(
    "volume_manager_selinux_pod_context_mismatch_errors_total",
    "Number of errors when a Pod defines different SELinux contexts for its containers that use the \
     same volume. Kubelet can't start such a Pod then and it will retry, therefore value of this \
     metric may not represent the actual nr. of Pods.",
)
.labels(&["access_mode"]);
const POD_LABELS_WOULD_DIFFER: Desc = Desc::alpha(
    "volume_manager_selinux_pod_context_mismatch_warnings_total",
    "Number of errors when a Pod defines different SELinux contexts for its containers that use the \
     same volume. They are not errors yet, but they will become real errors when \
     SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.",
)
.labels(&["access_mode"]);
const LABELS_CONFLICT: Desc = Desc::alpha(
    "volume_manager_selinux_volume_context_mismatch_errors_total",
    "Number of errors when a Pod uses a volume that is already mounted with a different SELinux \
     context than the Pod needs. Kubelet can't start such a Pod then and it will retry, therefore \
     value of this metric may not represent the actual nr. of Pods.",
)
.labels(&["volume_plugin", "access_mode"]);
const LABELS_WOULD_CONFLICT: Desc = Desc::alpha(
    "volume_manager_selinux_volume_context_mismatch_warnings_total",
    "Number of errors when a Pod uses a volume that is already mounted with a different SELinux \
     context than the Pod needs. They are not errors yet, but they will become real errors when \
     SELinuxMountReadWriteOncePod feature is expanded to all volume access modes.",
)
.labels(&["volume_plugin", "access_mode"]);
const LABELLED: Desc = Desc::alpha(
    "volume_manager_selinux_volumes_admitted_total",
    "Number of volumes whose SELinux context was fine and will be mounted with mount -o context \
     option.",
)
.labels(&["volume_plugin", "access_mode"]);
const PLUGINS: Desc =
    Desc::alpha("plugin_manager_total_plugins", "Number of plugins in Plugin Manager")
        .labels(&["socket_path", "state"]);
const QUARANTINED: Desc = Desc::alpha(
    "rubelet_volume_quarantined_calls",
    "File system calls on volumes that have not returned and are quarantined.",
);

const BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of volumes.
/// Many fields: one for each metric.
#[derive(Debug, Clone)]
pub struct VolumeMetrics {
    pub(crate) operation: HistogramFamily,
    pub(crate) end_to_end: HistogramFamily,
    pub(crate) csi: HistogramFamily,
    pub(crate) volumes: GaugeFamily,
    pub(crate) reconstructed: CounterFamily,
    pub(crate) not_reconstructed: CounterFamily,
    pub(crate) forced: CounterFamily,
    pub(crate) not_forced: CounterFamily,
    pub(crate) orphans: GaugeFamily,
    pub(crate) orphan_errors: GaugeFamily,
    pub(crate) measured: HistogramFamily,
    pub(crate) quarantined: GaugeFamily,
    pub(crate) plugins: GaugeFamily,
    pub(crate) certificates: GaugeFamily,
    pub(crate) pod_labels_differ: GaugeFamily,
    pub(crate) pod_labels_would_differ: GaugeFamily,
    pub(crate) labels_conflict: GaugeFamily,
    pub(crate) labels_would_conflict: GaugeFamily,
    pub(crate) labelled: GaugeFamily,
}

impl VolumeMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            operation: registry.histogram(OPERATION, &BUCKETS),
            end_to_end: registry.histogram(END_TO_END, &BUCKETS),
            csi: registry.histogram(CSI, &BUCKETS),
            volumes: registry.gauge(VOLUMES),
            reconstructed: registry.counter(RECONSTRUCTED),
            not_reconstructed: registry.counter(NOT_RECONSTRUCTED),
            forced: registry.counter(FORCED),
            not_forced: registry.counter(NOT_FORCED),
            orphans: registry.gauge(ORPHANS),
            orphan_errors: registry.gauge(ORPHAN_ERRORS),
            measured: registry.histogram(MEASURED, &DEFAULT_BUCKETS),
            quarantined: registry.gauge(QUARANTINED),
            plugins: registry.gauge(PLUGINS),
            certificates: registry.gauge(CERTIFICATES),
            pod_labels_differ: registry.gauge(POD_LABELS_DIFFER),
            pod_labels_would_differ: registry.gauge(POD_LABELS_WOULD_DIFFER),
            labels_conflict: registry.gauge(LABELS_CONFLICT),
            labels_would_conflict: registry.gauge(LABELS_WOULD_CONFLICT),
            labelled: registry.gauge(LABELLED),
        }
    }
}

/// The plugin's name in labels; for CSI it includes the driver.
pub(crate) fn label(spec: &VolumeSpec) -> String {
    match &spec.plugin {
        Plugin::Csi => {
            let inline = spec.as_inline().and_then(|v| v.csi.as_ref()).map(|c| c.driver.clone());
            let stored = || crate::csi::mount::storage_id(spec).map(|(driver, _)| driver);
            match inline.or_else(stored) {
                Some(driver) => format!("kubernetes.io/csi:{driver}"),
                None => "kubernetes.io/csi".to_owned(),
            }
        }
        other => other.name().to_owned(),
    }
}

/// A boolean as a label value.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Go's name of a status code.
pub(crate) fn code_label(code: tonic::Code) -> String {
    match code {
        tonic::Code::Ok => "OK".to_owned(),
        tonic::Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}
