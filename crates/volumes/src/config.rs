//! Settings and dependencies of the volume subsystem.

use crate::metrics::VolumeMetrics;
use engine::volumes::Labelling;
use ports::{Clock, Events, NodeViews, Objects, PodsSnapshot, Roots, StorageApi, Tasks};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Settings, resolved once.
#[derive(Debug, Clone)]
pub struct VolumesConfig {
    /// Directories of the node agent.
    pub roots: Roots,
    /// This node's name.
    pub node_name: String,
    /// There is no API server.
    pub standalone: bool,
    /// `enableControllerAttachDetach`.
    pub controller_attaches: bool,
    /// `volumePluginDir`: where flexvolume drivers live.
    pub volume_plugin_dir: PathBuf,
    /// Where storage tools (`iscsiadm`, `multipath`) are; `None` finds them by `PATH`.
    pub tools: Option<PathBuf>,
    /// Gate `ClusterTrustBundleProjection`.
    pub cluster_trust_bundles: bool,
    /// Gate `PodCertificateRequest`.
    pub pod_certificates: bool,
    /// Gate `LocalStorageCapacityIsolationFSQuotaMonitoring`.
    pub project_quotas: bool,
    /// Gate `CSIVolumeHealth`.
    pub health: bool,
    /// SELinux is on: the runtime is asked to relabel.
    pub selinux: bool,
    /// How volumes are mounted with an SELinux context instead of relabelled, where that is possible.
    pub labelling: Option<Labelling>,
    /// `volumeStatsAggPeriod`: how long a measurement is kept; `None` measures nothing.
    pub usage_period: Option<Duration>,
}

impl VolumesConfig {
    /// Defaults for a node of this name with these directories.
    pub fn new(roots: Roots, node_name: impl Into<String>) -> Self {
        Self {
            roots,
            node_name: node_name.into(),
            standalone: false,
            controller_attaches: true,
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into(),
            tools: None,
            cluster_trust_bundles: false,
            pod_certificates: false,
            project_quotas: false,
            health: false,
            selinux: false,
            labelling: None,
            usage_period: Some(Duration::from_secs(60)),
        }
    }
}

/// The interfaces of other subsystems that volumes use.
#[derive(Debug, Clone)]
pub struct VolumesDeps {
    /// Which pods there are.
    pub pods: watch::Receiver<PodsSnapshot>,
    /// Referenced objects.
    pub objects: Arc<dyn Objects>,
    /// Storage objects; `None` in standalone mode.
    pub storage: Option<Arc<dyn StorageApi>>,
    /// Where events go.
    pub events: Arc<dyn Events>,
    /// The node object.
    pub node: NodeViews,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// The subsystem's metrics.
    pub metrics: VolumeMetrics,
    /// Where tasks are spawned.
    pub tasks: Tasks,
}
