//! Placement of a node without exclusive resources: every policy `none`, no devices.

use api::core::v1::{Container, Pod};
use async_trait::async_trait;
use ports::{ActivePods, ContainerExtras, Placement, PlacementError, PlacementRejection};
use std::sync::Arc;

/// Admits every pod and adds nothing to its containers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unplaced;

#[async_trait]
impl Placement for Unplaced {
    async fn admit(
        &self,
        _pod: &Arc<Pod>,
        _active: ActivePods<'_>,
    ) -> Result<(), PlacementRejection> {
        Ok(())
    }

    async fn prepare(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }

    async fn container_extras(
        &self,
        _pod: &Arc<Pod>,
        _container: &Container,
    ) -> Result<ContainerExtras, PlacementError> {
        Ok(ContainerExtras::default())
    }

    async fn container_created(
        &self,
        _pod: &Arc<Pod>,
        _container: &Container,
        _container_id: &str,
    ) -> Result<(), PlacementError> {
        Ok(())
    }

    fn container_removed(&self, _container_id: &str) {}

    async fn release(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }
}
