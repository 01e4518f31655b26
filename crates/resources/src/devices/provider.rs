//! Devices as a placement provider.

use super::Devices;
use super::allocate::device_requests;
use super::calls::{NotGiven, Patience};
use crate::lock;
use crate::placement::{AllocateError, Provider};
use api::core::v1::{Container, Pod, ResourceStatus};
use api::ids::PodUid;
use api::pod::PodExt;
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

    fn awaited_plugin(&self, pod: &Pod) -> Option<String> {
        Self::awaited_plugin(self, pod)
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
        let uid = pod.uid_str();
        self.state(|state| {
            state.begin_pod(uid);
            state.hints(uid, &container.name, &device_requests(container))
        })
    }

    async fn pod_hints(&self, pod: &Arc<Pod>) -> ResourceHints {
        let uid = pod.uid_str();
        let limits = of_pod(pod, Side::Limits, Counting::default());
        let count = |amount: units::Quantity| usize::try_from(amount.value()).unwrap_or_default();
        let requests: BTreeMap<String, usize> =
            limits.into_iter().map(|(name, amount)| (name, count(amount))).collect();
        self.state(|state| state.pod_hints(uid, &requests))
    }

    async fn allocate(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        let uid = pod.uid_str();
        let key = (uid.to_owned(), container.name.clone());
        match affinity.affinity {
            Some(mask) => drop(lock(&self.inner.affinities).insert(key, mask)),
            None => drop(lock(&self.inner.affinities).remove(&key)),
        }
        match self.give(pod, container, Patience::Brief).await {
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
        let uid = pod.uid_str();
        if self.pre_start(uid, container).await.map_err(PlacementError)? {
            // The pod's worker waits, not admission: no other pod is delayed.
            let given = self.give(pod, container, Patience::Full).await;
            given
                .map_err(|(NotGiven::Failed(text) | NotGiven::Waits(text))| PlacementError(text))?;
        }
        let additions = self.state(|state| state.additions(uid, &container.name));
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
