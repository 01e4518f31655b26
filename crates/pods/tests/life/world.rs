//! A node in memory: the pod subsystem over a fake runtime, with fakes for all its neighbours.

use api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus, Secret, Service,
};
use api::ids::PodUid;
use api::node::v1::RuntimeClass;
use async_trait::async_trait;
use engine::request::RequestSettings;
use engine::request::hostname::HostnameOverride;
use engine::request::resources::{CgroupVersion, ResourceSettings};
use engine::request::security::SecuritySettings;
use pods::images::{EnsureImage, EnsuredImage, ImageFault};
use pods::{
    AdmissionConfig, GcPolicy, ImageSource, PodsConfig, PodsDeps, PodsHandle, RuntimeHandlers,
    ViewConfig,
};
use ports::{
    CgroupError, CgroupValues, Clock, ContainerExtras, Events, MountedVolume, NodeEvent, NodeView,
    ObjectError, Objects, Placement, PlacementError, PlacementRejection, PodApi, PodApiError,
    PodCgroups, PodMounts, Pods, PodsSnapshot, Roots, SubPathRequest, Tasks, TokenRequest,
    TokenResponse, VolumeError, Volumes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telemetry::metrics::Registry;
use testkit::fake_cri::FakeCri;
use testkit::paused_clock::PausedClock;
use tokio::sync::{mpsc, watch};

static WORLDS: AtomicU64 = AtomicU64::new(0);

/// Everything outside the pod subsystem; outlives the agent.
pub(crate) struct World {
    pub(crate) cri: FakeCri,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) roots: Roots,
    pub(crate) events: Arc<RecordedEvents>,
    pub(crate) cgroups: Arc<FakeCgroups>,
    pub(crate) volumes: Arc<FakeVolumes>,
    pub(crate) api: Arc<FakeApi>,
    pub(crate) placement: Arc<FakePlacement>,
    pub(crate) images: Arc<FakeImages>,
    node: watch::Sender<Arc<NodeView>>,
    root: PathBuf,
}

/// One run of the agent.
pub(crate) struct Agent {
    pub(crate) pods: PodsHandle,
    pub(crate) tasks: Tasks,
}

/// Which sources the agent has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sources {
    Api,
    Files,
    Both,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(PausedClock::new());
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("rubelet-life-{}-{number}", std::process::id()));
        let roots = Roots {
            kubelet: root.join("kubelet"),
            pod_logs: root.join("logs"),
            container_logs: root.join("links"),
            etc: root.join("etc"),
            ..Roots::default()
        };
        for folder in ["kubelet", "logs", "links", "etc", "manifests"] {
            sys::fs::create_dir_all(root.join(folder), 0o755).unwrap();
        }
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "node", "uid": "node-uid"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}
            }
        }))
        .unwrap();
        let view = NodeView { node: Some(Arc::new(node)), runtime_up: true, ..NodeView::default() };
        let cri = FakeCri::new(Arc::clone(&clock));
        Self {
            images: Arc::new(FakeImages {
                cri: cri.clone(),
                broken: Mutex::default(),
                hanging: Mutex::default(),
            }),
            cri,
            clock,
            roots,
            events: Arc::default(),
            cgroups: Arc::default(),
            volumes: Arc::default(),
            api: Arc::default(),
            placement: Arc::default(),
            node: watch::Sender::new(Arc::new(view)),
            root,
        }
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub(crate) fn write_manifest(&self, name: &str, text: &str) {
        sys::fs::write_atomic(self.manifests().join(name), text, 0o644).unwrap();
    }

    pub(crate) fn set_node(&self, change: impl FnOnce(&mut NodeView)) {
        self.node.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// Makes the node unknown; returns what was known.
    pub(crate) fn take_node(&self) -> Arc<Node> {
        let mut taken = None;
        self.set_node(|view| taken = view.node.take());
        taken.unwrap()
    }

    /// Starts the agent.
    pub(crate) async fn start(&self, sources: Sources) -> Agent {
        let tasks = Tasks::new();
        let (sets, api_pods) = mpsc::channel(50);
        let with_api = sources != Sources::Files;
        let deps = PodsDeps {
            runtime: self.cri.client(),
            images: Arc::<FakeImages>::clone(&self.images),
            volumes: Arc::<FakeVolumes>::clone(&self.volumes),
            cgroups: Arc::<FakeCgroups>::clone(&self.cgroups),
            placement: Arc::<FakePlacement>::clone(&self.placement),
            objects: Arc::new(NoObjects),
            events: Arc::<RecordedEvents>::clone(&self.events),
            node: self.node.subscribe(),
            api: with_api.then(|| -> Arc<dyn PodApi> { Arc::<FakeApi>::clone(&self.api) }),
            api_pods: with_api.then_some(api_pods),
            handlers: watch::Sender::new(RuntimeHandlers::default()).subscribe(),
            metrics: pods::PodMetrics::new(&Registry::new(), &Registry::new()),
            clock: Arc::clone(&self.clock),
            processors: Arc::new(OneProcessor),
            published: watch::Sender::new(PodsSnapshot::default()),
        };
        let pods = pods::start(self.config(sources), deps, &tasks).await.unwrap();
        if with_api {
            self.api.feed(sets);
        }
        Agent { pods, tasks }
    }

    fn config(&self, sources: Sources) -> PodsConfig {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        PodsConfig {
            node_name: "node".into(),
            roots: self.roots.clone(),
            static_pod_path: (sources != Sources::Api).then(|| self.manifests()),
            file_check_frequency: Duration::from_secs(20),
            static_pod_url: None,
            refuse_api_references: true,
            static_pod_rules: engine::static_pod::Rules::default(),
            user_namespaces: pods::UsernsConfig::default(),
            sync_frequency: Duration::from_secs(60),
            request: RequestSettings {
                kubelet_root: text(&self.roots.kubelet),
                pod_logs_dir: text(&self.roots.pod_logs),
                cluster_domain: "cluster.local".into(),
                hostname_override: HostnameOverride::Honoured,
                stop_signals: false,
                selinux_enabled: false,
                resources: ResourceSettings {
                    cgroup: CgroupVersion::V2,
                    cfs_period: Some(Duration::from_millis(100)),
                    single_process_oom_kill: false,
                    pod_level_resources: true,
                    memory_capacity: 8 << 30,
                    swap_capacity: 0,
                    swap_controller: false,
                    limited_swap: false,
                    memory_qos: None,
                    hugepage_sizes: Vec::new(),
                },
                security: SecuritySettings {
                    seccomp_default: false,
                    seccomp_root: "/var/lib/kubelet/seccomp".into(),
                    thermal_throttle_paths: Vec::new(),
                },
            },
            resolv_conf: None,
            cluster_dns: Vec::new(),
            node_ips: Vec::new(),
            env_files: true,
            gates: Default::default(),
            status_gates: Default::default(),
            crash_loop: Default::default(),
            view: ViewConfig::default(),
            gc: GcPolicy::default(),
            version: "1.36".into(),
            runtime_name: "containerd".into(),
            admission: AdmissionConfig::default(),
            probes_per_second: 500,
            seed: 1,
        }
    }

    /// Live containers with this name.
    pub(crate) fn running(&self, name: &str) -> usize {
        self.cri.containers().iter().filter(|c| c.name() == name && c.is_running()).count()
    }

    /// All instances ever made with this name that are still there.
    pub(crate) fn instances(&self, name: &str) -> usize {
        self.cri.containers().iter().filter(|c| c.name() == name).count()
    }

    /// Reasons of events, in order.
    pub(crate) fn reasons(&self) -> Vec<&'static str> {
        self.events.all.lock().unwrap().iter().map(|e| e.reason).collect()
    }

    /// Messages of events with this reason.
    pub(crate) fn messages(&self, reason: &str) -> Vec<String> {
        let all = self.events.all.lock().unwrap();
        all.iter().filter(|e| e.reason == reason).map(|e| e.message.clone()).collect()
    }

    /// Waits until the condition holds; time is paused, so this costs nothing.
    pub(crate) async fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let events: BTreeSet<String> = self
            .events
            .all
            .lock()
            .unwrap()
            .iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect();
        panic!("never happened: {what}\nevents: {events:#?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let all = sys::removal::Contents::Everything;
        let _ = sys::removal::remove_tree(std::path::Path::new("/proc"), &self.root, all);
    }
}

impl Agent {
    /// Ends the agent as a crash does: its tasks stop where they are.
    pub(crate) async fn crash(self) {
        self.tasks.shutdown().await;
    }

    /// The status as last published in the snapshot.
    pub(crate) fn status(&self, uid: &str) -> Option<Arc<PodStatus>> {
        self.pods.watch().borrow().pods.get(uid)?.status.clone()
    }

    pub(crate) fn phase(&self, uid: &str) -> Option<String> {
        self.status(uid)?.phase.clone()
    }

    pub(crate) fn is_ready(&self, uid: &str) -> bool {
        self.status(uid).is_some_and(|status| {
            status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
        })
    }
}

/// A pod with containers given as JSON.
pub(crate) fn pod(name: &str, spec: serde_json::Value) -> Pod {
    let mut spec = spec;
    let defaults = serde_json::json!({
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default",
        "securityContext": {}, "enableServiceLinks": true, "nodeName": "node"
    });
    for (key, value) in defaults.as_object().unwrap() {
        spec.as_object_mut().unwrap().entry(key).or_insert(value.clone());
    }
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": 1},
        "spec": spec,
        "status": {"phase": "Pending"}
    }))
    .unwrap()
}

/// A pod with one container `main`.
pub(crate) fn simple(name: &str) -> Pod {
    pod(name, serde_json::json!({"containers": [{"name": "main", "image": "busybox:1"}]}))
}

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
    cri: FakeCri,
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
        Ok(EnsuredImage { image_ref, user: engine::request::security::image_user(None) })
    }
}

#[derive(Debug, Default)]
pub(crate) struct FakeCgroups {
    pub(crate) made: Mutex<BTreeSet<String>>,
}

#[async_trait]
impl PodCgroups for FakeCgroups {
    async fn exists(&self, pod: &Pod) -> bool {
        self.made.lock().unwrap().contains(pod.metadata.uid.as_deref().unwrap())
    }
    async fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        self.made.lock().unwrap().insert(pod.metadata.uid.clone().unwrap());
        Ok(())
    }
    async fn resize(&self, _pod: &Pod) -> Result<(), CgroupError> {
        Ok(())
    }
    async fn values(&self, _pod: &Pod) -> Option<CgroupValues> {
        let (cpu_period, cpu_quota, cpu_shares, memory) = (100_000, -1, 2, i64::MAX);
        Some(CgroupValues { cpu_period, cpu_quota, cpu_shares, memory })
    }
    async fn memory_usage(&self, _pod: &Pod) -> Option<u64> {
        Some(1 << 20)
    }
    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
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
}

#[async_trait]
impl Volumes for FakeVolumes {
    async fn wait_ready(&self, pod: &Arc<Pod>) -> Result<PodMounts, VolumeError> {
        let stuck = self.stuck.lock().unwrap().contains(pod.metadata.uid.as_deref().unwrap());
        if stuck {
            std::future::pending::<()>().await;
        }
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
        Ok(())
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
}

#[async_trait]
impl Placement for FakePlacement {
    async fn admit(
        &self,
        pod: &Arc<Pod>,
        _active: ports::ActivePods<'_>,
    ) -> Result<(), PlacementRejection> {
        match self.refused.lock().unwrap().get(pod.metadata.uid.as_deref().unwrap()) {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(()),
        }
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
struct OneProcessor;

impl pods::Processors for OneProcessor {
    fn count(&self) -> usize {
        1
    }

    fn idle(&self) -> Option<Duration> {
        None
    }
}

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

/// An API server that holds pods and sends the whole set after each change, as the watch does.
#[derive(Debug, Default)]
pub(crate) struct FakeApi {
    state: Mutex<ApiState>,
}

#[derive(Debug, Default)]
struct ApiState {
    pods: BTreeMap<String, Pod>,
    feed: Option<mpsc::Sender<Vec<Arc<Pod>>>>,
    patches: Vec<serde_json::Value>,
    deleted: Vec<String>,
    deleted_uids: BTreeSet<String>,
    version: u64,
    next_uid: u64,
    cut: bool,
    mute: bool,
}

impl FakeApi {
    /// Answers nobody from now on, or everybody again.
    pub(crate) fn cut(&self, cut: bool) {
        let mut state = self.state.lock().unwrap();
        state.cut = cut;
        if cut {
            state.feed = None;
        }
    }

    /// Answers and tells nobody anything from now on; or again, with what has changed meanwhile.
    pub(crate) fn mute(&self, mute: bool) {
        let mut state = self.state.lock().unwrap();
        let was = std::mem::replace(&mut state.mute, mute);
        if was && !mute {
            state.announce();
        }
    }

    /// UIDs of the pods that the agent has deleted.
    pub(crate) fn deleted_uids(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().deleted_uids.clone()
    }

    /// All pods by name.
    pub(crate) fn all(&self) -> BTreeMap<String, Pod> {
        self.state.lock().unwrap().pods.clone()
    }

    fn reachable(&self) -> Result<(), PodApiError> {
        let state = self.state.lock().unwrap();
        if state.cut || state.mute {
            Err(PodApiError::Unavailable("connection refused".into()))
        } else {
            Ok(())
        }
    }

    fn feed(&self, sets: mpsc::Sender<Vec<Arc<Pod>>>) {
        let mut state = self.state.lock().unwrap();
        state.feed = Some(sets);
        state.announce();
    }

    pub(crate) fn put(&self, pod: Pod) {
        let mut state = self.state.lock().unwrap();
        state.store(pod);
        state.announce();
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut state = self.state.lock().unwrap();
        let mut pod = state.pods.get(name).unwrap().clone();
        change(&mut pod);
        state.store(pod);
        state.announce();
    }

    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        state.pods.remove(name);
        state.announce();
    }

    /// Asks for a graceful deletion.
    pub(crate) fn delete(&self, name: &str, grace: i64, now: jiff::Timestamp) {
        self.change(name, |pod| {
            let time = api::machinery::apis::meta::v1::Time(now);
            pod.metadata.deletion_timestamp.get_or_insert(time);
            pod.metadata.deletion_grace_period_seconds = Some(grace);
        });
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Pod> {
        self.state.lock().unwrap().pods.get(name).cloned()
    }

    pub(crate) fn phase(&self, name: &str) -> Option<String> {
        self.pod(name)?.status?.phase
    }

    pub(crate) fn deleted(&self) -> Vec<String> {
        self.state.lock().unwrap().deleted.clone()
    }

    pub(crate) fn patches(&self) -> Vec<serde_json::Value> {
        self.state.lock().unwrap().patches.clone()
    }
}

impl ApiState {
    fn store(&mut self, mut pod: Pod) {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        self.pods.insert(pod.metadata.name.clone().unwrap(), pod);
    }

    fn announce(&self) {
        if let Some(feed) = self.feed.as_ref().filter(|_| !self.mute) {
            let all = self.pods.values().cloned().map(Arc::new).collect();
            // A reader that is gone or far behind gets the next set.
            let _ = feed.try_send(all);
        }
    }
}

#[async_trait]
impl PodApi for FakeApi {
    async fn get(&self, _namespace: &str, name: &str) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        self.pod(name).map(Arc::new).ok_or_else(|| PodApiError::NotFound(name.into()))
    }

    async fn patch_status(
        &self,
        _namespace: &str,
        name: &str,
        uid: &PodUid,
        patch: serde_json::Value,
    ) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        let Some(mut pod) = state.pods.get(name).cloned() else {
            return Err(PodApiError::NotFound(name.into()));
        };
        if pod.metadata.uid.as_deref() != Some(uid.as_str()) {
            return Err(PodApiError::Conflict("uid".into()));
        }
        let mut status = serde_json::to_value(pod.status.clone().unwrap_or_default()).unwrap();
        apply(&mut status, &patch["status"]);
        pod.status = serde_json::from_value(status).unwrap();
        state.patches.push(patch);
        state.store(pod.clone());
        state.announce();
        Ok(Arc::new(pod))
    }

    async fn create(&self, pod: &Pod) -> Result<Arc<Pod>, PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        let name = pod.metadata.name.clone().unwrap();
        if state.pods.contains_key(&name) {
            return Err(PodApiError::Conflict("exists".into()));
        }
        state.next_uid += 1;
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("api-uid-{}", state.next_uid));
        state.store(pod.clone());
        state.announce();
        Ok(Arc::new(pod))
    }

    async fn delete_now(
        &self,
        _namespace: &str,
        name: &str,
        uid: &PodUid,
    ) -> Result<(), PodApiError> {
        self.reachable()?;
        let mut state = self.state.lock().unwrap();
        match state.pods.get(name) {
            None => Err(PodApiError::NotFound(name.into())),
            Some(pod) if pod.metadata.uid.as_deref() != Some(uid.as_str()) => {
                Err(PodApiError::Conflict("uid".into()))
            }
            Some(_) => {
                state.pods.remove(name);
                state.deleted.push(name.to_owned());
                state.deleted_uids.insert(uid.as_str().to_owned());
                state.announce();
                Ok(())
            }
        }
    }
}

/// Just enough of a strategic merge patch.
fn apply(target: &mut serde_json::Value, patch: &serde_json::Value) {
    let keys = [("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];
    for (key, value) in patch.as_object().unwrap() {
        if key.starts_with('$') {
            continue;
        }
        let merged = keys.iter().find(|(list, _)| list == key).map(|(_, by)| *by);
        match (value, merged) {
            (serde_json::Value::Null, _) => {
                target.as_object_mut().unwrap().remove(key);
            }
            (serde_json::Value::Array(elements), Some(by)) => {
                let list =
                    target.as_object_mut().unwrap().entry(key).or_insert(serde_json::json!([]));
                let list = list.as_array_mut().unwrap();
                for element in elements {
                    let found = list.iter().position(|e| e[by] == element[by]);
                    match (found, element.get("$patch").is_some()) {
                        (Some(at), true) => {
                            list.remove(at);
                        }
                        (Some(at), false) => apply(&mut list[at], element),
                        (None, false) => list.push(element.clone()),
                        (None, true) => {}
                    }
                }
            }
            (serde_json::Value::Object(_), _) if target[key].is_object() => {
                apply(&mut target[key], value);
            }
            _ => target[key] = value.clone(),
        }
    }
}
