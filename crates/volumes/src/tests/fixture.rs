//! A node of its own for each test: a temporary root, fake objects, recorded events.

use super::storage::FakeStorage;
use crate::{VolumeMetrics, VolumesConfig, VolumesDeps, VolumesHandle};
use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use api::ids::PodUid;
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use ports::{
    Events, NodeEvent, NodeView, ObjectChange, ObjectError, ObjectKind, Objects, PodEntry, PodLife,
    PodMounts, PodSource, PodsSnapshot, Roots, StorageApi, SystemClock, Tasks, TokenRequest,
    TokenResponse, Volumes,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Objects kept in memory.
#[derive(Debug)]
pub(super) struct FakeObjects {
    pub(super) maps: Mutex<BTreeMap<String, Arc<ConfigMap>>>,
    pub(super) secrets: Mutex<BTreeMap<String, Arc<Secret>>>,
    pub(super) claims: Mutex<BTreeMap<String, Arc<PersistentVolumeClaim>>>,
    pub(super) volumes: Mutex<BTreeMap<String, Arc<PersistentVolume>>>,
    pub(super) tokens: AtomicU32,
    pub(super) node: Mutex<Arc<Node>>,
    changes: broadcast::Sender<ObjectChange>,
}

fn get<T>(
    map: &Mutex<BTreeMap<String, Arc<T>>>,
    kind: &str,
    name: &str,
) -> Result<Arc<T>, ObjectError> {
    let found = map.lock().unwrap().get(name).cloned();
    found.ok_or_else(|| ObjectError::NotFound(format!("{kind} {name:?} not found")))
}

impl FakeObjects {
    pub(super) fn new() -> Self {
        Self {
            maps: Mutex::default(),
            secrets: Mutex::default(),
            claims: Mutex::default(),
            volumes: Mutex::default(),
            tokens: AtomicU32::new(0),
            node: Mutex::default(),
            changes: broadcast::channel(64).0,
        }
    }

    pub(super) fn set_map(&self, name: &str, data: &[(&str, &str)]) {
        let data = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        self.maps.lock().unwrap().insert(name.to_owned(), Arc::new(map));
        self.changed(ObjectKind::ConfigMap, name);
    }

    pub(super) fn set_secret(&self, name: &str, data: &[(&str, &str)]) {
        let data = data
            .iter()
            .map(|(k, v)| ((*k).to_owned(), k8s_openapi::ByteString(v.as_bytes().to_vec())))
            .collect();
        let secret = Secret { data: Some(data), ..Secret::default() };
        self.secrets.lock().unwrap().insert(name.to_owned(), Arc::new(secret));
        self.changed(ObjectKind::Secret, name);
    }

    /// A claim bound to a persistent volume with this spec.
    pub(super) fn bind_claim(&self, name: &str, spec: serde_json::Value) {
        let mut pv = serde_json::json!({
            "metadata": {"name": format!("pv-{name}")},
            "spec": {"capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"],
                "claimRef": {"uid": format!("{name}-uid")}}
        });
        for (key, value) in spec.as_object().unwrap() {
            pv["spec"][key] = value.clone();
        }
        let claim = serde_json::json!({
            "metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid")},
            "spec": {"volumeName": format!("pv-{name}")},
            "status": {"phase": "Bound", "capacity": {"storage": "16Mi"}}
        });
        let (pv, claim) =
            (serde_json::from_value(pv).unwrap(), serde_json::from_value(claim).unwrap());
        self.volumes.lock().unwrap().insert(format!("pv-{name}"), Arc::new(pv));
        self.claims.lock().unwrap().insert(name.to_owned(), Arc::new(claim));
    }

    pub(super) fn changed(&self, kind: ObjectKind, name: &str) {
        let change = ObjectChange { kind, namespace: "ns".into(), name: name.to_owned() };
        let _ = self.changes.send(change);
    }
}

#[async_trait]
impl Objects for FakeObjects {
    fn register_pod(&self, _pod: &Arc<Pod>) {}
    fn forget_pod(&self, _uid: &str) {}
    async fn config_map(&self, _ns: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        get(&self.maps, "configmap", name)
    }
    async fn secret(&self, _ns: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        get(&self.secrets, "secret", name)
    }
    fn services(&self) -> Option<Arc<Vec<Arc<Service>>>> {
        None
    }
    async fn runtime_class(&self, name: &str) -> Result<Arc<RuntimeClass>, ObjectError> {
        Err(ObjectError::NotFound(name.to_owned()))
    }
    async fn claim(
        &self,
        _ns: &str,
        name: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, ObjectError> {
        get(&self.claims, "persistentvolumeclaims", name)
    }
    async fn volume(&self, name: &str) -> Result<Arc<PersistentVolume>, ObjectError> {
        get(&self.volumes, "persistentvolumes", name)
    }
    async fn node_now(&self) -> Result<Arc<Node>, ObjectError> {
        Ok(Arc::clone(&self.node.lock().unwrap()))
    }
    async fn token(&self, request: &TokenRequest) -> Result<TokenResponse, ObjectError> {
        let number = self.tokens.load(Ordering::Relaxed);
        Ok(TokenResponse {
            token: format!("token-{}-{number}", request.service_account),
            expires_at: jiff::Timestamp::UNIX_EPOCH,
        })
    }
    async fn service_account(
        &self,
        _ns: &str,
        name: &str,
    ) -> Result<Arc<ServiceAccount>, ObjectError> {
        let mut account = ServiceAccount::default();
        account.metadata.uid = Some(format!("{name}-uid"));
        Ok(Arc::new(account))
    }
    fn changes(&self) -> Option<broadcast::Receiver<ObjectChange>> {
        Some(self.changes.subscribe())
    }
}

/// Events as `reason: message`.
#[derive(Debug, Default)]
pub(super) struct RecordedEvents(Mutex<Vec<String>>);

impl Events for RecordedEvents {
    fn emit(&self, event: NodeEvent) {
        self.0.lock().unwrap().push(format!("{}: {}", event.reason, event.message));
    }
}

impl RecordedEvents {
    pub(super) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// One node.
pub(super) struct Fixture {
    pub(super) root: PathBuf,
    pub(super) objects: Arc<FakeObjects>,
    pub(super) storage: Arc<FakeStorage>,
    pub(super) events: Arc<RecordedEvents>,
    pub(super) pods: watch::Sender<PodsSnapshot>,
    pub(super) node: watch::Sender<Arc<NodeView>>,
    pub(super) handle: VolumesHandle,
    pub(super) tasks: Tasks,
    pub(super) registry: telemetry::metrics::Registry,
    config: VolumesConfig,
    deps: VolumesDeps,
}

impl Fixture {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, |_, _| {})
    }

    /// With other settings; `change` gets the configuration and the fixture's folder.
    pub(super) fn with(name: &str, change: impl FnOnce(&mut VolumesConfig, &Path)) -> Self {
        let root = std::env::temp_dir().join(format!("rubelet-vol-{name}-{}", std::process::id()));
        clean(&root);
        std::fs::create_dir_all(&root).unwrap();
        let (pods, _) = watch::channel(PodsSnapshot::default());
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "node", "uid": "node-uid", "labels": {"zone": "a"}},
            "status": {"allocatable": {"memory": "64Mi", "cpu": "2"}}
        }))
        .unwrap();
        let objects = Arc::new(FakeObjects::new());
        let node = Arc::new(node);
        *objects.node.lock().unwrap() = Arc::clone(&node);
        let view = NodeView { node: Some(node), ..NodeView::default() };
        let (node, _) = watch::channel(Arc::new(view));
        let storage = Arc::new(FakeStorage::new(Arc::clone(&objects)));
        let events = Arc::new(RecordedEvents::default());
        let tasks = Tasks::new();
        let registry = telemetry::metrics::Registry::new();
        let deps = VolumesDeps {
            pods: pods.subscribe(),
            objects: Arc::clone(&objects) as Arc<dyn Objects>,
            storage: Some(Arc::clone(&storage) as Arc<dyn StorageApi>),
            events: Arc::clone(&events) as Arc<dyn Events>,
            node: node.subscribe(),
            clock: Arc::new(SystemClock),
            metrics: VolumeMetrics::new(&registry),
            tasks: tasks.clone(),
        };
        let roots = Roots { kubelet: root.join("kubelet"), ..Roots::default() };
        let mut config = VolumesConfig::new(roots, "node");
        change(&mut config, &root);
        let handle = crate::start(config.clone(), deps.clone());
        Self { root, objects, storage, events, pods, node, handle, tasks, registry, config, deps }
    }

    /// Stops the subsystem and starts a new one on the same disk.
    pub(super) async fn restart(&mut self) {
        self.tasks.shutdown().await;
        self.tasks = Tasks::new();
        self.deps.tasks = self.tasks.clone();
        self.handle = crate::start(self.config.clone(), self.deps.clone());
    }

    /// Shows these pods to the subsystem.
    pub(super) fn show(&self, pods: &[(&Arc<Pod>, PodLife)]) {
        let entries = pods
            .iter()
            .map(|(pod, life)| {
                let entry = PodEntry {
                    pod: Arc::clone(pod),
                    given: Some(Arc::clone(pod)),
                    source: PodSource::Api,
                    mirror: None,
                    life: *life,
                    status: None,
                    evicted: false,
                };
                (PodUid::from(pod.metadata.uid.as_deref().unwrap()), entry)
            })
            .collect();
        self.pods.send_replace(PodsSnapshot { pods: Arc::new(entries), sources_ready: true });
    }

    pub(super) async fn ready(&self, pod: &Arc<Pod>) -> PodMounts {
        tokio::time::timeout(Duration::from_secs(20), self.handle.wait_ready(pod))
            .await
            .unwrap_or_else(|_| panic!("not ready: {:?}", self.events.all()))
            .unwrap()
    }

    /// The pod ends: its volumes go, then the pod itself.
    pub(super) async fn end(&self, pod: &Arc<Pod>) {
        self.show(&[(pod, PodLife::Terminated)]);
        tokio::time::timeout(Duration::from_secs(20), self.handle.wait_released(pod))
            .await
            .expect("not released")
            .unwrap();
        self.show(&[]);
    }

    /// The controller attaches these volumes; the node reports them in use.
    pub(super) fn attach(&self, names: &[&str]) {
        let mut node = (*Arc::clone(&self.objects.node.lock().unwrap())).clone();
        let status = node.status.get_or_insert_default();
        status.volumes_in_use = Some(names.iter().map(|n| (*n).to_owned()).collect());
        status.volumes_attached = Some(
            names
                .iter()
                .map(|n| api::core::v1::AttachedVolume {
                    name: (*n).to_owned(),
                    device_path: String::new(),
                })
                .collect(),
        );
        let node = Arc::new(node);
        *self.objects.node.lock().unwrap() = Arc::clone(&node);
        self.node.send_replace(Arc::new(NodeView { node: Some(node), ..NodeView::default() }));
    }

    /// A claim bound to a persistent volume with this spec.
    pub(super) fn claim(&self, name: &str, spec: serde_json::Value) {
        self.objects.bind_claim(name, spec);
    }

    pub(super) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("kubelet/pods").join(uid)
    }

    /// Mount points below the root.
    pub(super) fn mounts(&self) -> Vec<PathBuf> {
        let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
        sys::mountinfo::at_or_below(&table, &self.root)
            .into_iter()
            .map(|m| m.mount_point.strip_prefix(&self.root).unwrap().to_owned())
            .collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        clean(&self.root);
    }
}

pub(super) fn clean(root: &Path) {
    let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
    for mount in sys::mountinfo::at_or_below(&table, root) {
        let _ = sys::mount::unmount(&mount.mount_point, sys::mount::Unmount::Detach);
    }
    let _ = std::fs::remove_dir_all(root);
}

/// Polls a condition; the test fails if it never holds.
pub(super) async fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(30), what, condition).await;
}

/// [`eventually`] with a longer timeout.
pub(super) async fn eventually_within(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(limit, waiting).await.is_ok(), "never happened: {what}");
}

/// A pod with these volumes, each mounted at `/<name>`.
pub(super) fn pod(uid: &str, volumes: serde_json::Value) -> Arc<Pod> {
    let mounts: Vec<_> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|v| {
            let name = v["name"].as_str().unwrap();
            serde_json::json!({"name": name, "mountPath": format!("/{name}")})
        })
        .collect();
    Arc::new(
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": uid, "labels": {"l": "1"}},
            "spec": {
                "serviceAccountName": "sa",
                "containers": [{"name": "c", "volumeMounts": mounts}],
                "volumes": volumes
            }
        }))
        .unwrap(),
    )
}
