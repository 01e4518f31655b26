//! Devices as placement asks for them.

use super::Devices;
use super::allocate::wishes;
use super::calls::{NotGiven, Patience};
use crate::lock;
use crate::placement::{AllocateError, Provider};
use api::core::v1::{Container, Pod, ResourceStatus};
use api::ids::PodUid;
use async_trait::async_trait;
use engine::resources::{Counting, Side, of_pod};
use engine::topology::{Hint, ResourceHints};
use ports::{ContainerExtras, DeviceMapping, ExtraMount, PlacementError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[async_trait]
impl Provider for Devices {
    async fn forget_all_but(&self, active: &BTreeSet<PodUid>) {
        Self::forget_all_but(self, active);
    }

    fn late(&self, pod: &Pod) -> Option<String> {
        Self::late(self, pod)
    }

    async fn settled(&self, pod: &Pod) {
        Self::settled(self, pod).await;
        self.free(pod).await;
    }

    fn busy(&self, pod: &Pod) -> Option<String> {
        Self::busy(self, pod)
    }

    fn abandon(&self, uid: &str) {
        Self::abandon(self, uid);
    }

    async fn hints(&self, pod: &Arc<Pod>, container: &Container) -> ResourceHints {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.book(|book| {
            book.begin_pod(uid);
            book.hints(uid, &container.name, &wishes(container))
        })
    }

    async fn pod_hints(&self, pod: &Arc<Pod>) -> ResourceHints {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let limits = of_pod(pod, Side::Limits, Counting::default());
        let count = |amount: units::Quantity| usize::try_from(amount.value()).unwrap_or_default();
        let wishes: BTreeMap<String, usize> =
            limits.into_iter().map(|(name, amount)| (name, count(amount))).collect();
        self.book(|book| book.pod_hints(uid, &wishes))
    }

    async fn allocate(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let key = (uid.to_owned(), container.name.clone());
        match affinity.affinity {
            Some(mask) => drop(lock(&self.inner.affinities).insert(key, mask)),
            None => drop(lock(&self.inner.affinities).remove(&key)),
        }
        match self.give(pod, container, Patience::Moment).await {
            Err(NotGiven::Failed(err) | NotGiven::Waits(err)) if self.trusts(uid) => {
                tracing::warn!(
                    err,
                    podUID = uid,
                    containerName = container.name,
                    "A pod that runs is not ended for its devices"
                );
                Ok(())
            }
            Err(NotGiven::Waits(what)) => Err(AllocateError::Waits(what)),
            Err(NotGiven::Failed(cause)) => Err(AllocateError::Failed(cause)),
            Ok(()) => Ok(()),
        }
    }

    fn owed(&self, uid: &str) -> BTreeMap<String, i64> {
        Self::owed(self, uid)
    }

    fn health(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        Self::health(self, pod)
    }

    async fn extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        extras: &mut ContainerExtras,
    ) -> Result<(), PlacementError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if self.pre_start(uid, container).await.map_err(PlacementError)? {
            // Only this pod waits.
            let given = self.give(pod, container, Patience::Full).await;
            given
                .map_err(|(NotGiven::Failed(text) | NotGiven::Waits(text))| PlacementError(text))?;
        }
        let additions = self.book(|book| book.additions(uid, &container.name));
        extras.envs.extend(additions.envs);
        extras.annotations.extend(additions.annotations);
        extras.cdi_devices.extend(additions.cdi);
        extras.mounts.extend(additions.mounts.into_iter().map(|mount| ExtraMount {
            host_path: mount.host_path,
            container_path: mount.container_path,
            read_only: mount.read_only,
        }));
        extras.devices.extend(additions.devices.into_iter().map(|device| DeviceMapping {
            host_path: device.host_path,
            container_path: device.container_path,
            permissions: device.permissions,
        }));
        Ok(())
    }
}
