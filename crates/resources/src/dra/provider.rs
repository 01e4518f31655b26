//! Dynamic resources as a placement provider. They give no hints: the scheduler has placed them.

use super::Claims;
use crate::placement::Provider;
use api::core::v1::{Container, Pod, ResourceStatus};
use api::pod::PodExt;
use async_trait::async_trait;
use engine::claims::container_requests;
use ports::{ContainerExtras, PlacementError};
use std::collections::BTreeMap;
use std::sync::Arc;

#[async_trait]
impl Provider for Claims {
    async fn prepare(&self, pod: &Arc<Pod>) -> Result<(), PlacementError> {
        self.prepare_pod(pod).await.map_err(PlacementError)
    }

    async fn extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        extras: &mut ContainerExtras,
    ) -> Result<(), PlacementError> {
        let failed = |error: engine::claims::ClaimError| PlacementError(error.to_string());
        let namespace = pod.namespace_str();
        let used = container_requests(pod, container, self.inner.config.rules).map_err(failed)?;
        for (name, requests) in used {
            let names =
                self.state(|state| state.cdi(namespace, &name, &requests)).map_err(failed)?;
            extras.cdi_devices.extend(names);
        }
        Ok(())
    }

    fn health(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        Self::health(self, pod)
    }

    async fn release(&self, pod: &Arc<Pod>) -> Result<(), PlacementError> {
        self.unprepare_pod(pod).await.map_err(PlacementError)
    }
}
