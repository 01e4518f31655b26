//! Placement on exclusive resources and what belongs to it: devices, the pod resources socket.

use crate::resource_managers::ResourceManagers;
use crate::{AgentError, settings};
use api::ids::PodUid;
use config::{Config, environment};
use cri::RuntimeClient;
use engine::claims::ClaimRules;
use pods::PodsHandle;
use ports::{ClaimApi, Clock, NodeViews, OnExit, Placement, PodsSnapshot, Roots, Tasks};
use resources::devices::{DeviceMetrics, Devices, DevicesConfig, DevicesDeps, LateDevices};
use resources::dra::{Claims, ClaimsConfig, ClaimsDeps, DraMetrics};
use resources::pod_resources::{PodResources, PodResourcesMetrics};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
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
}

/// Pods whose devices or claims changed their health, for their one reader.
pub(crate) type ChangedDevices = [mpsc::Receiver<PodUid>; 2];

/// What placement is connected to.
#[derive(Debug)]
pub(crate) struct PlacingDeps<'a> {
    pub(crate) running: BTreeSet<(String, String)>,
    /// CPUs and memory.
    pub(crate) resource_managers: &'a ResourceManagers,
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
    ) -> Result<(Self, ChangedDevices), AgentError> {
        let PlacingDeps { running, resource_managers, pods, api, node, clock, registry, tasks } =
            deps;
        let gates = settings::device_gates(config);
        let (devices, device_pods) = Devices::start(
            DevicesConfig {
                dir: roots.device_plugins.clone(),
                numa_nodes: resource_managers.numa_nodes(),
                health_status: gates.health,
                claims_for_extended: gates.extended_claims,
                running,
                late: match config.opt_ins.late_devices {
                    environment::LateDevices::Refuse => LateDevices::Refuse,
                    environment::LateDevices::Wait => LateDevices::Wait,
                },
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
                rules: ClaimRules { extended: gates.extended_claims, groups: gates.group_claims },
                health: gates.health,
                health_message: gates.health_message,
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
            exclusive: Some(resource_managers.sets()),
            active_only: gates.active_pods_only,
            metrics: PodResourcesMetrics::new(registry),
        };
        shown.serve(&roots.kubelet.join("pod-resources"), tasks)?;
        // CDI names of claims come before those of device plugins.
        let front = resource_managers
            .placement(config, vec![Arc::new(claims.clone()), Arc::new(devices.clone())]);
        Ok((Self { front, devices, claims }, [device_pods, claim_pods]))
    }
}

/// How often the runtime is asked what runs, and how long is waited in between.
const LISTS: u32 = 5;
const LIST_PAUSE: Duration = Duration::from_secs(1);

/// Pod UID and name of each container that runs now. A pod that is not known to run may be refused for its devices,
/// so a runtime that stumbles is asked again.
pub(crate) async fn running(client: &RuntimeClient) -> BTreeSet<(String, String)> {
    let mut containers = client.list_containers(None).await;
    for _ in 1..LISTS {
        let Err(error) = &containers else { break };
        tracing::error!(err = %error, "the runtime does not list its containers");
        tokio::time::sleep(LIST_PAUSE).await;
        containers = client.list_containers(None).await;
    }
    let Ok(containers) = containers else { return BTreeSet::new() };
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
pub(crate) fn look_after(changed: ChangedDevices, pods: &PodsHandle, tasks: &Tasks) {
    for mut touched in changed {
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
