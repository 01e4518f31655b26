//! A node in memory: the pod subsystem over a fake runtime, with fakes for all its neighbours.

mod api;
mod neighbours;

use self::api::FakeApi;
pub(crate) use self::neighbours::FakeCgroups;
use self::neighbours::{
    FakeImages, FakePlacement, FakeVolumes, NoObjects, OneProcessor, RecordedEvents, SPECIAL,
};
use ::api::core::v1::{Node, Pod, PodStatus};
use engine::housekeeping::garbage::GcPolicy;
use engine::request::RequestSettings;
use engine::request::hostname::HostnameOverride;
use engine::request::resources::{CgroupVersion, ResourceSettings};
use engine::request::security::SecuritySettings;
use pods::{AdmissionConfig, PodsConfig, PodsDeps, PodsHandle, RuntimeHandlers, ViewConfig};
use ports::{Clock, NodeView, PodApi, Pods, PodsSnapshot, Roots, Tasks};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
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
    /// The same clock, to be set.
    pub(crate) jumps: Arc<JumpingClock>,
    pub(crate) roots: Roots,
    pub(crate) events: Arc<RecordedEvents>,
    pub(crate) cgroups: Arc<FakeCgroups>,
    pub(crate) volumes: Arc<FakeVolumes>,
    pub(crate) api: Arc<FakeApi>,
    pub(crate) placement: Arc<FakePlacement>,
    pub(crate) images: Arc<FakeImages>,
    /// What the agent counts.
    pub(crate) counted: Registry,
    /// What resizes the node can carry out.
    pub(crate) resizes: Mutex<engine::admission::resize::ResizePolicy>,
    node: watch::Sender<Arc<NodeView>>,
    root: PathBuf,
}

/// A clock that somebody sets.
#[derive(Debug, Default)]
pub(crate) struct JumpingClock {
    steady: PausedClock,
    /// Seconds before or after.
    offset: AtomicI64,
}

impl JumpingClock {
    /// Shows so many seconds more, or less, than it would have.
    pub(crate) fn set(&self, seconds: i64) {
        self.offset.store(seconds, Ordering::Relaxed);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> jiff::Timestamp {
        let offset = jiff::SignedDuration::from_secs(self.offset.load(Ordering::Relaxed));
        let now = self.steady.now();
        now.checked_add(offset).unwrap_or(now)
    }
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
        let jumps = Arc::new(JumpingClock::default());
        let clock: Arc<dyn Clock> = Arc::<JumpingClock>::clone(&jumps);
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
        sys::fs::write(roots.etc.join("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
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
            jumps,
            roots,
            events: Arc::default(),
            cgroups: Arc::default(),
            volumes: Arc::default(),
            api: Arc::default(),
            placement: Arc::default(),
            counted: Registry::new(),
            resizes: Mutex::default(),
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
            handlers: watch::Sender::new(RuntimeHandlers {
                recursive_read_only: [SPECIAL.to_owned()].into(),
                ..RuntimeHandlers::default()
            })
            .subscribe(),
            metrics: pods::PodMetrics::new(&self.counted, &Registry::new()),
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
            resolv_conf: Some(self.roots.etc.join("resolv.conf")),
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
            admission: AdmissionConfig {
                resize: self.resizes.lock().unwrap().clone(),
                ..AdmissionConfig::default()
            },
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

    /// Lets an image be missing, for this reason.
    pub(crate) fn break_image(&self, image: &str, reason: &str, message: &str) {
        let why = (reason.to_owned(), message.to_owned());
        self.images.broken.lock().unwrap().insert(image.to_owned(), why);
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

    /// The value of a series of the agent's metrics; 0 if nothing was counted.
    pub(crate) fn count(&self, series: &str) -> u64 {
        let text = self.counted.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
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
    /// Ends the agent as a crash does: its tasks stop where they are, and each must stop.
    pub(crate) async fn crash(self) {
        let late = self.tasks.shutdown_within(Duration::from_secs(3600)).await;
        assert!(late.is_empty(), "tasks that never end: {late:?}");
    }

    /// Ends the agent as a signal does: what is under way ends first.
    pub(crate) async fn stop(self) {
        let left = self.tasks.finish_within(Duration::from_secs(30)).await;
        assert_eq!(left, 0, "calls under way that never end");
        self.crash().await;
    }

    /// The status as last published in the snapshot.
    pub(crate) fn status(&self, uid: &str) -> Option<Arc<PodStatus>> {
        self.pods.watch().borrow().pods.get(uid)?.status.clone()
    }

    pub(crate) fn phase(&self, uid: &str) -> Option<String> {
        self.status(uid)?.phase.clone()
    }

    /// How often this step is in the pod's story.
    pub(crate) fn told(&self, uid: &str, step: &str) -> u32 {
        let story = self.pods.explain().into_iter().find(|pod| pod.uid == uid);
        let steps = story.map(|pod| pod.steps).unwrap_or_default();
        steps.iter().filter(|past| past.what == step).map(|past| past.times).sum()
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
