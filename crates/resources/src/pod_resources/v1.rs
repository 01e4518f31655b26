//! API v1.

use super::{PodResources, container_memory, containers_devices, shown};
use async_trait::async_trait;
use ports::PodEntry;
use proto::pod_resources_v1::pod_resources_lister_server::PodResourcesLister;
use proto::pod_resources_v1::{self as wire, ContainerResources};
use tonic::{Request, Response, Status};

impl PodResources {
    fn of_pod(&self, entry: &PodEntry) -> wire::PodResources {
        let metadata = &entry.pod.metadata;
        let uid = metadata.uid.as_deref().unwrap_or_default();
        let of = |container: &api::core::v1::Container| {
            let name = container.name.as_str();
            let sets = self.exclusive.as_ref();
            let claims = self.claims.as_ref();
            ContainerResources {
                name: name.to_owned(),
                devices: containers_devices(self.devices.of_container(uid, name)),
                cpu_ids: sets.map(|sets| sets.cpus(uid, name)).unwrap_or_default(),
                memory: container_memory(sets.map(|s| s.memory(uid, name)).unwrap_or_default()),
                dynamic_resources: claims
                    .map(|c| c.shown(&entry.pod, container))
                    .unwrap_or_default(),
            }
        };
        wire::PodResources {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            containers: shown(entry).map(of).collect(),
        }
    }
}

#[async_trait]
impl PodResourcesLister for PodResources {
    async fn list(
        &self,
        _request: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        self.metrics.requests.inc(&["v1"]);
        self.metrics.lists.inc(&["v1"]);
        let entries = if self.active_only { self.active() } else { self.entries() };
        self.forget_gone();
        let pod_resources = entries.iter().map(|entry| self.of_pod(entry)).collect();
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _request: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        self.metrics.requests.inc(&["v1"]);
        self.metrics.allocatables.inc(&["v1"]);
        let sets = self.exclusive.as_ref();
        Ok(Response::new(wire::AllocatableResourcesResponse {
            devices: containers_devices(self.devices.allocatable()),
            cpu_ids: sets.map(|sets| sets.allocatable_cpus()).unwrap_or_default(),
            memory: container_memory(sets.map(|s| s.allocatable_memory()).unwrap_or_default()),
        }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        self.metrics.requests.inc(&["v1"]);
        self.metrics.gets.inc(&["v1"]);
        let request = request.into_inner();
        let named = |entry: &&PodEntry| {
            let metadata = &entry.pod.metadata;
            metadata.name.as_ref() == Some(&request.pod_name)
                && metadata.namespace.as_ref() == Some(&request.pod_namespace)
        };
        let entries = self.active();
        let Some(entry) = entries.iter().find(named) else {
            self.metrics.get_errors.inc(&["v1"]);
            return Err(Status::unknown(format!(
                "pod {} in namespace {} not found",
                request.pod_name, request.pod_namespace
            )));
        };
        let pod_resources = Some(self.of_pod(entry));
        Ok(Response::new(wire::GetPodResourcesResponse { pod_resources }))
    }
}
