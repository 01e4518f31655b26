//! The pod resources socket: which devices, CPUs, memory and claims each container has.
//!
//! Owns: `pod-resources/kubelet.sock`, API v1 and v1alpha1. Promises: a response has a consistent snapshot of each
//! resource manager; devices of pods that are gone are not listed. Deliberately absent: any allocation.

mod metrics;
mod v1;
mod v1alpha1;

pub use metrics::PodResourcesMetrics;

use crate::devices::Devices;
use crate::dra::Claims;
use api::core::v1::Container;
use api::ids::PodUid;
use api::pod::ContainerExt;
use engine::devices::DevicesOf;
use ports::{OnExit, PodEntry, PodsSnapshot, Tasks};
use proto::pod_resources_v1::pod_resources_lister_server::PodResourcesListerServer;
use proto::pod_resources_v1::{ContainerDevices, ContainerMemory, NumaNode, TopologyInfo};
use proto::pod_resources_v1alpha1::pod_resources_lister_server::PodResourcesListerServer as AlphaServer;
use sockets::{Listening, RateLimit};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::service::Routes;

/// Upstream's limits.
const CALLS_PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;

/// Memory that is reserved for one container, or can be on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBlock {
    /// `memory` or `hugepages-…`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// NUMA nodes.
    pub nodes: Vec<u32>,
}

/// Exclusive CPUs and memory of containers.
pub trait ExclusiveSets: Send + Sync + std::fmt::Debug {
    /// Exclusive CPUs of a container.
    fn cpus(&self, uid: &str, container: &str) -> Vec<i64>;
    /// Memory blocks of a container.
    fn memory(&self, uid: &str, container: &str) -> Vec<MemoryBlock>;
    /// CPUs that could be exclusive.
    fn allocatable_cpus(&self) -> Vec<i64>;
    /// Memory that could be exclusive.
    fn allocatable_memory(&self) -> Vec<MemoryBlock>;
}

/// The sources of the served data.
#[derive(Debug, Clone)]
pub struct PodResources {
    /// The pods of this node.
    pub pods: watch::Receiver<PodsSnapshot>,
    /// Devices.
    pub devices: Devices,
    /// Dynamic resources; `None` when the gate DynamicResourceAllocation is off.
    pub claims: Option<Claims>,
    /// CPUs and memory.
    pub exclusive: Option<Arc<dyn ExclusiveSets>>,
    /// Gate KubeletPodResourcesListUseActivePods.
    pub active_only: bool,
    /// Metrics.
    pub metrics: PodResourcesMetrics,
}

impl PodResources {
    /// Serves below `dir` until the tasks end.
    pub fn serve(self, dir: &Path, tasks: &Tasks) -> Result<(), sockets::ListenError> {
        let socket = Listening::replace(&dir.join("kubelet.sock"))?;
        tracing::info!(endpoint = %socket.path().display(), "Starting to serve the podresources API");
        let limit = RateLimit::new(CALLS_PER_SECOND, BURST);
        let v1 = PodResourcesListerServer::with_interceptor(self.clone(), limit.clone());
        let alpha = AlphaServer::with_interceptor(self, limit);
        let routes = Routes::new(v1).add_service(alpha);
        let token = tasks.token();
        let all = tasks.clone();
        tasks.spawn("pod-resources", OnExit::Fine, async move {
            if let Err(error) = socket.serve(routes, token).await {
                // As upstream, the agent exits: nobody would notice otherwise.
                all.fail(format!("serve the podresources API: {error}"));
            }
        });
        Ok(())
    }

    /// Pods that their source still has: one that was force-deleted is not listed while it terminates.
    fn entries(&self) -> Vec<PodEntry> {
        let snapshot = self.pods.borrow();
        snapshot.pods.values().filter(|entry| entry.given.is_some()).cloned().collect()
    }

    fn active(&self) -> Vec<PodEntry> {
        let mut entries = self.entries();
        entries.retain(PodEntry::is_active);
        entries
    }

    /// Frees devices of pods that are gone.
    fn forget_gone(&self) {
        let snapshot = self.pods.borrow().clone();
        if !snapshot.sources_ready {
            return;
        }
        let active = snapshot.pods.iter().filter(|(_, entry)| entry.is_active());
        let active: BTreeSet<PodUid> = active.map(|(uid, _)| uid.clone()).collect();
        self.devices.forget_all_but(&active);
    }
}

/// Sidecars, then regular containers.
fn shown(entry: &PodEntry) -> impl Iterator<Item = &Container> {
    let spec = entry.pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let sidecars = init.filter(|container| container.is_sidecar());
    sidecars.chain(spec.into_iter().flat_map(|spec| &spec.containers))
}

/// One entry for each device and NUMA node it is on; one without topology for a device that is on none.
fn containers_devices(devices: DevicesOf) -> Vec<ContainerDevices> {
    let mut list = Vec::new();
    for (resource, ids) in devices {
        for (id, nodes) in ids {
            let entry = |topology: Option<TopologyInfo>| ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
                topology,
            };
            if nodes.is_empty() {
                list.push(entry(None));
            }
            for node in nodes {
                list.push(entry(Some(TopologyInfo { nodes: vec![NumaNode { id: node }] })));
            }
        }
    }
    list
}

fn container_memory(blocks: Vec<MemoryBlock>) -> Vec<ContainerMemory> {
    let one = |block: MemoryBlock| {
        let nodes = block.nodes.into_iter().map(|node| NumaNode { id: i64::from(node) });
        ContainerMemory {
            memory_type: block.kind,
            size: block.size,
            topology: Some(TopologyInfo { nodes: nodes.collect() }),
        }
    };
    blocks.into_iter().map(one).collect()
}
