//! Fakes for the neighbours of the pod subsystem: they do what is asked at once, but for what a test sets.

use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use api::ids::PodUid;
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use engine::cgroup::{Limits, PodLimitPolicy, pod_ask, pod_limits, shares_of_weight, weight};
use ports::{
    CgroupError, CgroupValues, ContainerExtras, Events, MountedVolume, NodeEvent, NotPlaced,
    ObjectError, Objects, Placement, PlacementError, PlacementRejection, PodCgroups, PodMounts,
    SubPathRequest, TokenRequest, TokenResponse, VolumeError, Volumes,
};
use ports::{EnsureImage, EnsuredImage, ImageFault, ImageSource};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::fake_cri::FakeCri;

#[derive(Debug, Default)]
pub(crate) struct RecordedEvents {
    pub(crate) all: Mutex<Vec<NodeEvent>>,
}

impl Events for RecordedEvents {
    fn emit(&self, event: NodeEvent) {
        self.all.lock().unwrap().push(event);
    }
}

pub(crate) struct FakeImages {
    pub(super) cri: FakeCri,
    /// Images that cannot be had, with reason and message.
    pub(crate) broken: Mutex<BTreeMap<String, (String, String)>>,
    /// Images whose pull never ends.
    pub(crate) hanging: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for FakeImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeImages").finish_non_exhaustive()
    }
}

#[async_trait]
impl ImageSource for FakeImages {
    async fn ensure(&self, request: EnsureImage) -> Result<EnsuredImage, ImageFault> {
        if self.hanging.lock().unwrap().contains(&request.image) {
            std::future::pending::<()>().await;
        }
        if let Some((reason, message)) = self.broken.lock().unwrap().get(&request.image) {
            return Err(ImageFault { reason: reason.clone(), message: message.clone() });
        }
        let image_ref = self.cri.add_image(&request.image);
        Ok(EnsuredImage {
            image_ref,
            user: engine::request::security::image_user(None),
            runtime_handler: String::new(),
            pulled: true,
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakeCgroups {
    /// By UID, with their limits; one that is half made has none.
    pub(crate) made: Mutex<BTreeMap<String, Option<Limits>>>,
    /// Nothing can be made, changed or removed.
    pub(crate) broken: AtomicBool,
}

/// How limits of pods follow from what they ask for.
const POLICY: PodLimitPolicy = PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: 77 };

impl FakeCgroups {
    fn works(&self) -> Result<(), CgroupError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(CgroupError { message: "device or resource busy".into() });
        }
        Ok(())
    }

    /// The limits that a pod has to have.
    pub(crate) fn limits_for(pod: &Pod) -> Limits {
        pod_limits(&pod_ask(pod, true), &POLICY)
    }

    /// The limits that a pod has.
    pub(crate) fn limits_of(&self, uid: &str) -> Option<Limits> {
        self.made.lock().unwrap().get(uid).cloned().flatten()
    }

    fn set(&self, pod: &Pod, limits: Option<Limits>) {
        self.made.lock().unwrap().insert(pod.metadata.uid.clone().unwrap(), limits);
    }
}

#[async_trait]
impl PodCgroups for FakeCgroups {
    async fn exists(&self, pod: &Pod) -> bool {
        self.made.lock().unwrap().contains_key(pod.metadata.uid.as_deref().unwrap())
    }
    async fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        self.works()?;
        if !self.exists(pod).await {
            self.set(pod, None);
        }
        // Whoever is killed here leaves it half made.
        tokio::task::yield_now().await;
        self.set(pod, Some(Self::limits_for(pod)));
        Ok(())
    }
    async fn resize(&self, pod: &Pod) -> Result<(), CgroupError> {
        self.works()?;
        self.set(pod, Some(Self::limits_for(pod)));
        Ok(())
    }
    async fn values(&self, pod: &Pod) -> Option<CgroupValues> {
        let limits = self.limits_of(pod.metadata.uid.as_deref().unwrap())?;
        Some(CgroupValues {
            cpu_period: i64::try_from(POLICY.period_us).unwrap(),
            cpu_quota: limits.cpu_quota_us.unwrap_or(-1),
            // The kernel keeps a weight, which is rounded.
            cpu_shares: i64::try_from(shares_of_weight(weight(limits.cpu_shares.unwrap_or(2))))
                .unwrap(),
            memory: limits.memory_bytes.unwrap_or(i64::MAX),
        })
    }
    async fn memory_usage(&self, _pod: &Pod) -> Option<u64> {
        Some(1 << 20)
    }
    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        self.works()?;
        self.made.lock().unwrap().remove(uid.as_str());
        Ok(())
    }
    async fn all(&self) -> Vec<PodUid> {
        self.made.lock().unwrap().keys().map(|uid| PodUid::from(uid.as_str())).collect()
    }
    fn parent(&self, pod: &Pod) -> String {
        format!("/kubepods/pod{}", pod.metadata.uid.as_deref().unwrap())
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakeVolumes {
    /// Pods whose volumes never get ready.
    pub(crate) stuck: Mutex<BTreeSet<String>>,
    /// Nothing gets mounted or unmounted.
    pub(crate) broken: AtomicBool,
}

impl FakeVolumes {
    async fn works(&self) -> Result<(), VolumeError> {
        if self.broken.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Err(VolumeError::NotReady("input/output error".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Volumes for FakeVolumes {
    async fn wait_ready(&self, pod: &Arc<Pod>) -> Result<PodMounts, VolumeError> {
        let stuck = self.stuck.lock().unwrap().contains(pod.metadata.uid.as_deref().unwrap());
        if stuck {
            std::future::pending::<()>().await;
        }
        self.works().await?;
        let volumes = pod.spec.as_ref().and_then(|s| s.volumes.clone()).unwrap_or_default();
        Ok(volumes
            .into_iter()
            .map(|volume| {
                let mounted = MountedVolume {
                    host_path: "/dev/null".into(),
                    read_only: false,
                    selinux_relabel: false,
                    block: false,
                    host_owned: false,
                    supplemental_gid: None,
                };
                (volume.name, mounted)
            })
            .collect())
    }
    async fn wait_released(&self, _pod: &Arc<Pod>) -> Result<(), VolumeError> {
        self.works().await
    }
    fn in_use(&self, _uid: &PodUid) -> bool {
        false
    }
    async fn bind_sub_path(&self, request: &SubPathRequest) -> Result<PathBuf, VolumeError> {
        Ok(request.volume_path.clone())
    }
    async fn clean_sub_paths(
        &self,
        _uid: &PodUid,
        _container: Option<&str>,
    ) -> Result<(), VolumeError> {
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakePlacement {
    /// Pods that cannot be placed.
    pub(crate) refused: Mutex<BTreeMap<String, PlacementRejection>>,
    /// What pods had better wait for, by UID.
    pub(crate) late: tokio::sync::watch::Sender<BTreeMap<String, String>>,
    /// Whose answer pods wait for, by UID.
    pub(crate) unanswered: tokio::sync::watch::Sender<BTreeMap<String, String>>,
    /// Nobody gets an answer any more.
    pub(crate) hangs: tokio::sync::watch::Sender<bool>,
}

#[async_trait]
impl Placement for FakePlacement {
    async fn admit(&self, pod: &Arc<Pod>, _active: ports::ActivePods<'_>) -> Result<(), NotPlaced> {
        let mut hangs = self.hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs).await;
        let uid = pod.metadata.uid.as_deref().unwrap();
        if let Some(what) = self.unanswered.borrow().get(uid) {
            return Err(NotPlaced::Waits(what.clone()));
        }
        match self.refused.lock().unwrap().get(uid) {
            Some(refusal) => Err(refusal.clone().into()),
            None => Ok(()),
        }
    }
    fn awaited_plugin(&self, pod: &Pod) -> Option<String> {
        self.late.borrow().get(pod.metadata.uid.as_deref().unwrap()).cloned()
    }
    async fn settled(&self, pod: &Pod) {
        let mut told = self.late.subscribe();
        let uid = pod.metadata.uid.as_deref().unwrap();
        let _ = told.wait_for(|late| !late.contains_key(uid)).await;
        let mut told = self.unanswered.subscribe();
        let _ = told.wait_for(|waiting| !waiting.contains_key(uid)).await;
    }
    fn abandon(&self, uid: &str) {
        self.unanswered.send_modify(|waiting| drop(waiting.remove(uid)));
    }
    async fn prepare(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }
    async fn container_extras(
        &self,
        _pod: &Arc<Pod>,
        _container: &api::core::v1::Container,
    ) -> Result<ContainerExtras, PlacementError> {
        Ok(ContainerExtras::default())
    }
    async fn container_created(
        &self,
        _pod: &Arc<Pod>,
        _container: &api::core::v1::Container,
        _container_id: &str,
    ) -> Result<(), PlacementError> {
        Ok(())
    }
    fn container_removed(&self, _container_id: &str) {}
    async fn release(&self, _pod: &Arc<Pod>) -> Result<(), PlacementError> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct OneProcessor;

impl pods::Processors for OneProcessor {
    fn count(&self) -> usize {
        1
    }

    fn idle(&self) -> Option<Duration> {
        None
    }
}

/// The one runtime class that there is, and its handler.
pub(crate) const SPECIAL: &str = "special";

#[derive(Debug)]
pub(crate) struct NoObjects;

fn absent<T>() -> Result<T, ObjectError> {
    Err(ObjectError::NotFound("not found".into()))
}

#[async_trait]
impl Objects for NoObjects {
    fn register_pod(&self, _pod: &Arc<Pod>) {}
    fn forget_pod(&self, _uid: &str) {}
    async fn config_map(&self, _ns: &str, _name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        absent()
    }
    async fn secret(&self, _ns: &str, _name: &str) -> Result<Arc<Secret>, ObjectError> {
        absent()
    }
    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>> {
        Some(Arc::default())
    }
    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        if name == SPECIAL {
            let handler = SPECIAL.to_owned();
            return Ok(Arc::new(RuntimeClass { handler, ..RuntimeClass::default() }));
        }
        Err(ObjectError::NotFound(format!("runtimeclass.node.k8s.io {name:?} not found")))
    }
    async fn claim(
        &self,
        _ns: &str,
        _name: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        absent()
    }
    async fn volume(&self, _name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        absent()
    }
    async fn node_now(&self) -> Result<Arc<Node>, ObjectError> {
        absent()
    }
    async fn token(&self, _request: &TokenRequest) -> Result<TokenResponse, ObjectError> {
        absent()
    }
}
