//! API v1alpha1: devices of all known pods, no topology, no init containers.

use super::{PodResources, containers_devices};
use async_trait::async_trait;
use ports::PodEntry;
use proto::pod_resources_v1alpha1::pod_resources_lister_server::PodResourcesLister;
use proto::pod_resources_v1alpha1::{self as wire, ContainerDevices, ContainerResources};
use tonic::{Request, Response, Status};

impl PodResources {
    fn alpha(&self, entry: &PodEntry) -> wire::PodResources {
        let metadata = &entry.pod.metadata;
        let uid = metadata.uid.as_deref().unwrap_or_default();
        let of = |container: &api::core::v1::Container| {
            let devices = containers_devices(self.devices.of_container(uid, &container.name));
            let device = |device: proto::pod_resources_v1::ContainerDevices| ContainerDevices {
                resource_name: device.resource_name,
                device_ids: device.device_ids,
            };
            ContainerResources {
                name: container.name.clone(),
                devices: devices.into_iter().map(device).collect(),
            }
        };
        let containers = entry.pod.spec.iter().flat_map(|spec| &spec.containers);
        wire::PodResources {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            containers: containers.map(of).collect(),
        }
    }
}

#[async_trait]
impl PodResourcesLister for PodResources {
    async fn list(
        &self,
        _request: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        self.metrics.requests.inc(&["v1alpha1"]);
        self.forget_gone();
        let pod_resources = self.entries().iter().map(|entry| self.alpha(entry)).collect();
        Ok(Response::new(wire::ListPodResourcesResponse { pod_resources }))
    }
}
