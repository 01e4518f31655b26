//! Fakes for the neighbours of the pod subsystem: they do what is asked at once, but for what a test sets.

use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use api::ids::PodUid;
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use pods::ImageSource;
use pods::images::{EnsureImage, EnsuredImage, ImageFault};
use ports::{
    CgroupError, CgroupValues, ContainerExtras, Events, MountedVolume, NodeEvent, NotPlaced,
    ObjectError, Objects, Placement, PlacementError, PlacementRejection, PodCgroups, PodMounts,
    SubPathRequest, TokenRequest, TokenResponse, VolumeError, Volumes,
};
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
    pub(crate) made: Mutex<BTreeSet<String>>,
    /// Nothing can be made, changed or removed.
    pub(crate) broken: AtomicBool,
}

impl FakeCgroups {
    fn works(&self) -> Result<(), CgroupError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(CgroupError { message: "device or resource busy".into() });
        }
        Ok(())
    }
}

#[async_trait]
impl PodCgroups for FakeCgroups {
    async fn exists(&self, pod: &Pod) -> bool {
        self.made.lock().unwrap().contains(pod.metadata.uid.as_deref().unwrap())
    }
    async fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        self.works()?;
        self.made.lock().unwrap().insert(pod.metadata.uid.clone().unwrap());
        Ok(())
    }
    async fn resize(&self, _pod: &Pod) -> Result<(), CgroupError> {
        self.works()
    }
    async fn values(&self, _pod: &Pod) -> Option<CgroupValues> {
        let (cpu_period, cpu_quota, cpu_shares, memory) = (100_000, -1, 2, i64::MAX);
        Some(CgroupValues { cpu_period, cpu_quota, cpu_shares, memory })
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
        self.made.lock().unwrap().iter().map(|uid| PodUid::from(uid.as_str())).collect()
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
}

#[async_trait]
impl Placement for FakePlacement {
    async fn admit(&self, pod: &Arc<Pod>, _active: ports::ActivePods<'_>) -> Result<(), NotPlaced> {
        let uid = pod.metadata.uid.as_deref().unwrap();
        if let Some(what) = self.unanswered.borrow().get(uid) {
            return Err(NotPlaced::Waits(what.clone()));
        }
        match self.refused.lock().unwrap().get(uid) {
            Some(refusal) => Err(refusal.clone().into()),
            None => Ok(()),
        }
    }
    fn late(&self, pod: &Pod) -> Option<String> {
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
