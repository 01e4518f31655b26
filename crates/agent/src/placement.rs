//! Placement on exclusive resources and what belongs to it: devices, the pod resources socket.

use crate::AgentError;
use crate::exclusive::Exclusive;
use api::ids::PodUid;
use config::Config;
use cri::RuntimeClient;
use engine::claims::ClaimRules;
use pods::PodsHandle;
use ports::{ClaimApi, Clock, NodeViews, OnExit, Placement, PodsSnapshot, Roots, Tasks};
use resources::devices::{DeviceMetrics, Devices, DevicesConfig, DevicesDeps};
use resources::dra::{Claims, ClaimsConfig, ClaimsDeps, DraMetrics};
use resources::pod_resources::{PodResources, PodResourcesMetrics};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use telemetry::metrics::Registry;
use tokio::sync::{mpsc, watch};

/// The label of a container's pod.
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Everything about exclusive resources.
#[derive(Debug)]
pub(crate) struct Placing {
    pub(crate) front: Arc<dyn Placement>,
    pub(crate) devices: Devices,
    pub(crate) claims: Claims,
    /// Pods whose devices changed their health.
    pub(crate) touched: [mpsc::Receiver<PodUid>; 2],
}

/// What placement is connected to.
#[derive(Debug)]
pub(crate) struct PlacingDeps<'a> {
    pub(crate) running: BTreeSet<(String, String)>,
    /// CPUs and memory.
    pub(crate) exclusive: &'a Exclusive,
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
    pub(crate) api: Option<Arc<dyn ClaimApi>>,
    pub(crate) node: NodeViews,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) registry: &'a Registry,
    pub(crate) tasks: &'a Tasks,
}

impl Placing {
    pub(crate) fn start(
        config: &Config,
        roots: &Roots,
        deps: PlacingDeps<'_>,
    ) -> Result<Self, AgentError> {
        let PlacingDeps { running, exclusive, pods, api, node, clock, registry, tasks } = deps;
        let (devices, device_pods) = Devices::start(
            DevicesConfig {
                dir: roots.device_plugins.clone(),
                numa_nodes: exclusive.numa_nodes(),
                health_status: config.gates.enabled("ResourceHealthStatus"),
                claims_for_extended: config.gates.enabled("DRAExtendedResource"),
                running,
            },
            DevicesDeps {
                pods: pods.clone(),
                metrics: DeviceMetrics::new(registry),
                tasks: tasks.clone(),
            },
        )?;
        let (claims, claim_pods) = Claims::start(
            ClaimsConfig {
                dir: roots.kubelet.clone(),
                rules: ClaimRules {
                    extended: config.gates.enabled("DRAExtendedResource"),
                    groups: config.gates.enabled("DRAWorkloadResourceClaims"),
                },
                health: config.gates.enabled("ResourceHealthStatus"),
                health_message: config.gates.enabled("ResourceHealthStatusMessage"),
            },
            ClaimsDeps {
                api,
                node,
                pods: pods.clone(),
                metrics: DraMetrics::new(registry),
                clock,
                tasks: tasks.clone(),
            },
        )?;
        let shown = PodResources {
            pods,
            devices: devices.clone(),
            claims: Some(claims.clone()),
            exclusive: Some(exclusive.sets()),
            active_only: config.gates.enabled("KubeletPodResourcesListUseActivePods"),
            metrics: PodResourcesMetrics::new(registry),
        };
        shown.serve(&roots.kubelet.join("pod-resources"), tasks)?;
        // CDI names of claims come before those of device plugins.
        let front =
            exclusive.placement(config, vec![Arc::new(claims.clone()), Arc::new(devices.clone())]);
        let touched = [device_pods, claim_pods];
        Ok(Self { front, devices, claims, touched })
    }
}

/// Pod UID and name of each container that runs now.
pub(crate) async fn running(client: &RuntimeClient) -> BTreeSet<(String, String)> {
    let containers = match client.list_containers(None).await {
        Ok(containers) => containers,
        Err(error) => {
            tracing::error!(err = %error, "the runtime does not list its containers");
            return BTreeSet::new();
        }
    };
    let label =
        |labels: &BTreeMap<String, String>, key: &str| labels.get(key).cloned().unwrap_or_default();
    containers
        .iter()
        .filter(|container| container.state() == cri::api::ContainerState::ContainerRunning)
        .map(|container| {
            (label(&container.labels, POD_UID), label(&container.labels, CONTAINER_NAME))
        })
        .collect()
}

/// Has pods looked at whose devices changed.
pub(crate) fn look_after(touched: [mpsc::Receiver<PodUid>; 2], pods: &PodsHandle, tasks: &Tasks) {
    for mut touched in touched {
        let (pods, token) = (pods.clone(), tasks.token());
        tasks.spawn("device-health", OnExit::Fine, async move {
            // Cancel-safe: a pod that is not looked at now is looked at after the next start.
            let looks = token.run_until_cancelled(async {
                while let Some(uid) = touched.recv().await {
                    pods.look_at(&uid).await;
                }
            });
            looks.await;
        });
    }
}
