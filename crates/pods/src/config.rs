//! Settings of the pod subsystem, resolved once, and what it is given to work with.

use crate::sources::http::UrlSourceConfig;
use crate::view::ViewConfig;
use api::core::v1::Pod;
use engine::housekeeping::garbage::GcPolicy;
use engine::pod::PodGates;
use engine::pod::backoff::BackOffCurve;
use engine::request::RequestSettings;
use engine::status::StatusGates;
use ports::{Clock, Events, NodeViews, Objects, Placement, PodApi, PodCgroups, Roots, Volumes};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Settings of the pod subsystem.
/// Many fields: one for each of its settings.
#[derive(Debug, Clone)]
pub struct PodsConfig {
    /// This node's name.
    pub node_name: String,
    /// Places on disk.
    pub roots: Roots,
    /// `staticPodPath`.
    pub static_pod_path: Option<PathBuf>,
    /// `fileCheckFrequency`.
    pub file_check_frequency: Duration,
    /// `staticPodURL` with its headers and period.
    pub static_pod_url: Option<UrlSourceConfig>,
    /// Gate PreventStaticPodAPIReferences.
    pub refuse_api_references: bool,
    /// Rules for static pods that gates switch.
    pub static_pod_rules: engine::static_pod::Rules,
    /// `syncFrequency`.
    pub sync_frequency: Duration,
    /// What CRI requests depend on.
    pub request: RequestSettings,
    /// The host's resolver file (`resolvConf`).
    pub resolv_conf: Option<PathBuf>,
    /// `clusterDNS`.
    pub cluster_dns: Vec<IpAddr>,
    /// Addresses given with `--node-ip`; the first one's family is the primary one.
    pub node_ips: Vec<IpAddr>,
    /// Ids of pods with their own users.
    pub user_namespaces: crate::userns::UsernsConfig,
    /// Gate EnvFiles.
    pub env_files: bool,
    /// Gates that change the plan.
    pub gates: PodGates,
    /// Gates that change statuses.
    pub status_gates: StatusGates,
    /// Crash-loop delays.
    pub crash_loop: BackOffCurve,
    /// How the runtime is watched.
    pub view: ViewConfig,
    /// Which dead containers are kept.
    pub gc: GcPolicy,
    /// `<major>.<minor>` for user agents.
    pub version: String,
    /// The runtime's name: prefix of container ids in statuses.
    pub runtime_name: String,
    /// Admission settings.
    pub admission: crate::admission::AdmissionConfig,
    /// Probes allowed per second over all pods.
    pub probes_per_second: u32,
    /// Begin of the sequence that spreads appointments.
    pub seed: u64,
}

impl PodsConfig {
    /// What static pods are prepared with.
    pub(crate) fn static_pods(&self) -> engine::static_pod::StaticSettings {
        engine::static_pod::StaticSettings {
            node_name: self.node_name.clone(),
            refuse_api_references: self.refuse_api_references,
            rules: self.static_pod_rules,
        }
    }

    /// The user agent of a client.
    pub(crate) fn user_agent(&self, product: &str) -> String {
        format!("{product}/{}", self.version)
    }
}

/// What the pod subsystem is given to work with.
#[derive(Debug)]
pub struct PodsDeps {
    /// The runtime.
    pub runtime: cri::RuntimeClient,
    /// Image pulls.
    pub images: Arc<dyn ports::ImageSource>,
    /// Volumes.
    pub volumes: Arc<dyn Volumes>,
    /// Pod cgroups.
    pub cgroups: Arc<dyn PodCgroups>,
    /// CPU, memory and device placement.
    pub placement: Arc<dyn Placement>,
    /// Referenced objects.
    pub objects: Arc<dyn Objects>,
    /// Events.
    pub events: Arc<dyn Events>,
    /// The node.
    pub node: NodeViews,
    /// Pod writes; `None` in standalone mode.
    pub api: Option<Arc<dyn PodApi>>,
    /// Complete sets of this node's pods as the API server has them, in order; `None` in
    /// standalone mode.
    pub api_pods: Option<mpsc::Receiver<Vec<Arc<Pod>>>>,
    /// What each runtime handler can do.
    pub handlers: watch::Receiver<crate::shared::RuntimeHandlers>,
    /// Where the current pods are published for everybody else.
    pub published: watch::Sender<ports::PodsSnapshot>,
    /// Counters.
    pub metrics: crate::metrics::PodMetrics,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// The machine's processors.
    pub processors: Arc<dyn crate::seams::Processors>,
}
