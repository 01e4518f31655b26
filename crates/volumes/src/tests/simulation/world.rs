//! The node's pods: they are created, wait for their volumes, run, stop and are deleted, across any number of
//! restarts of the node. The simulation knows which containers run; the node must find out after each restart.

use super::cluster::{ATTACHING, Cluster};
use super::driver::SimulatedDriver;
use super::machine::Machine;
use crate::csi::drivers::{Registered, Version};
use crate::pool::Pool;
use crate::tests::fixture::{FakeObjects, RecordedEvents, clean, pod};
use crate::tests::storage::FakeStorage;
use crate::{VolumeMetrics, VolumesConfig, VolumesDeps, VolumesHandle};
use api::core::v1::{Node, Pod};
use api::ids::PodUid;
use ports::{
    Events, NodeView, Objects, PodEntry, PodLife, PodSource, PodsSnapshot, Roots, StorageApi,
    SubPathRequest, SystemClock, Tasks, Volumes,
};
use proto::csi_v1::node_server::NodeServer;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

const DRIVER: &str = "simulated.test";
/// Pods at one time.
const CROWD: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60 * 60);

/// How a run of the node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All pods have been created and deleted, and nothing is left to do.
    Done,
    /// It was killed.
    Died,
}

/// Where a pod is, as the API server and the runtime know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Wanted,
    Running,
    Stopping,
    Stopped,
}

#[derive(Debug)]
pub(super) struct SimPod {
    pub(super) pod: Arc<Pod>,
    pub(super) stage: Stage,
}

pub(super) type Pods = Arc<Mutex<BTreeMap<String, SimPod>>>;

pub(super) struct World {
    root: PathBuf,
    pub(super) machine: Machine,
    objects: Arc<FakeObjects>,
    storage: Arc<FakeStorage>,
    events: Arc<RecordedEvents>,
    pods: Pods,
    cluster: Cluster,
    made: u64,
}

impl World {
    pub(super) fn new(name: &str, seed: u64, faults: u64) -> Self {
        // In memory: a simulated disk need not wait for a real one.
        let shm = PathBuf::from("/dev/shm");
        let top = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let root = top.join(format!("rubelet-sim-{name}-{}", std::process::id()));
        clean(&root);
        std::fs::create_dir_all(root.join("local")).unwrap();
        let objects = Arc::new(FakeObjects::new());
        objects.set_secret("s", &[("k", "v"), ("l", "w")]);
        objects.set_map("c", &[("k", "v")]);
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "node", "uid": "node-uid"},
            "status": {"allocatable": {"memory": "64Mi", "cpu": "2"}}
        }))
        .unwrap();
        *objects.node.lock().unwrap() = Arc::new(node);
        for shared in 0..4 {
            let spec =
                json!({"csi": {"driver": DRIVER, "volumeHandle": format!("shared{shared}")}});
            objects.bind_claim(&format!("shared{shared}"), spec);
        }
        for held in 0..2 {
            let name = format!("attached-shared{held}");
            objects.bind_claim(&name, json!({"csi": {"driver": ATTACHING, "volumeHandle": name}}));
        }
        objects.bind_claim("local", json!({"local": {"path": root.join("local")}}));
        let storage = Arc::new(FakeStorage::new(Arc::clone(&objects)));
        storage.set_driver(
            DRIVER,
            json!({"attachRequired": false, "fsGroupPolicy": "None",
                "volumeLifecycleModes": ["Persistent", "Ephemeral"]}),
        );
        storage.set_driver(ATTACHING, json!({"attachRequired": true, "fsGroupPolicy": "None"}));
        let (machine, pods) = (Machine::new(&root, seed, faults), Pods::default());
        let cluster = Cluster {
            machine: machine.clone(),
            objects: Arc::clone(&objects),
            storage: Arc::clone(&storage),
            pods: Arc::clone(&pods),
        };
        let events = Arc::default();
        Self { machine, root, objects, storage, events, pods, cluster, made: 0 }
    }

    /// A pod with one volume of every kind.
    pub(super) fn add_pod_with_everything(&mut self) {
        self.add_pod(|_| true);
    }

    fn add_pod(&mut self, mut wants: impl FnMut(&str) -> bool) {
        let number = self.made;
        self.made += 1;
        let own = |kind: &str| format!("{kind}{number}");
        let csi = |name: &str| json!({"csi": {"driver": DRIVER, "volumeHandle": name}});
        let mut volumes = vec![json!({"name": "disk", "emptyDir": {}})];
        let projected = json!([
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
        ]);
        let kinds = [
            json!({"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}}),
            json!({"name": "secret", "secret": {"secretName": "s", "defaultMode": 420}}),
            json!({"name": "map", "configMap": {"name": "c", "defaultMode": 420}}),
            json!({"name": "projected", "projected": {"sources": projected, "defaultMode": 420}}),
            json!({"name": "local", "persistentVolumeClaim": {"claimName": "local"}}),
            json!({"name": "shared", "persistentVolumeClaim":
                {"claimName": format!("shared{}", number % 4)}}),
            json!({"name": "own", "persistentVolumeClaim": {"claimName": own("own")}}),
            json!({"name": "inline", "csi": {"driver": DRIVER}}),
            json!({"name": "attached", "persistentVolumeClaim": {"claimName": own("attached")}}),
            json!({"name": "held", "persistentVolumeClaim":
                {"claimName": format!("attached-shared{}", number % 2)}}),
        ];
        volumes.extend(kinds.into_iter().filter(|v| wants(v["name"].as_str().unwrap())));
        self.objects.bind_claim(&own("own"), csi(&own("own")));
        let handle = own("attached");
        let attached = json!({"csi": {"driver": ATTACHING, "volumeHandle": handle}});
        self.objects.bind_claim(&handle, attached);
        let mut made = (*pod(&format!("pod{number}"), json!(volumes))).clone();
        if wants("device") {
            let mut spec = csi(&own("device"));
            spec["volumeMode"] = json!("Block");
            self.objects.bind_claim(&own("device"), spec);
            let body = made.spec.as_mut().unwrap();
            let volume =
                json!({"name": "device", "persistentVolumeClaim": {"claimName": own("device")}});
            body.volumes.as_mut().unwrap().push(serde_json::from_value(volume).unwrap());
            let device = json!([{"name": "device", "devicePath": "/dev/x"}]);
            body.containers[0].volume_devices = Some(serde_json::from_value(device).unwrap());
        }
        let entry = SimPod { pod: Arc::new(made), stage: Stage::Wanted };
        self.pods.lock().unwrap().insert(format!("pod{number}"), entry);
    }

    /// While the node is down, some pods without running containers are deleted, some claims are expanded, volumes
    /// are attached and detached, and temporary files are renamed as if another process had made them.
    pub(super) fn meanwhile(&mut self) {
        self.cluster.control();
        let known: Vec<String> = self.pods.lock().unwrap().keys().cloned().collect();
        for claim in known.iter().flat_map(|uid| growing_claims(uid)) {
            if self.machine.below(8) == 0 && !self.cluster.is_growing(&claim) {
                self.cluster.grow(&claim);
            }
        }
        let mut pods = self.pods.lock().unwrap();
        let gone: Vec<String> = (pods.iter())
            .filter(|(_, p)| matches!(p.stage, Stage::Wanted | Stage::Stopped))
            .filter(|_| self.machine.below(2) == 0)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.machine.state().note("taken away", Path::new(&uid));
            pods.remove(&uid);
        }
        drop(pods);
        self.cluster.control();
        let mark = format!(".{}.tmp", std::process::id());
        for path in files(&self.root.join("kubelet")) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if let Some(start) = name.strip_suffix(&mark) {
                std::fs::rename(&path, path.with_file_name(format!("{start}.1.tmp"))).unwrap();
            }
        }
    }

    /// Runs the node until `pods` pods are done, or it crashes after `fuse` changes.
    pub(super) fn live(&mut self, fuse: Option<u64>, pods: u64) -> End {
        let death = self.machine.boot(fuse);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let end = runtime.block_on(async {
            tokio::select! {
                biased;
                () = death.cancelled() => End::Died,
                result = tokio::time::timeout(PATIENCE * 24, self.drive(pods)) => {
                    result.unwrap_or_else(|_| panic!("never done:\n{}", self.machine.trail()));
                    End::Done
                }
            }
        });
        let wrongs = self.machine.state().wrongs.clone();
        assert!(wrongs.is_empty(), "{wrongs:?}, after\n{}", self.machine.trail());
        end
    }

    async fn drive(&mut self, pods: u64) {
        let mut life = self.start().await;
        let mut workers = JoinSet::new();
        let known: Vec<String> = self.pods.lock().unwrap().keys().cloned().collect();
        for uid in known {
            workers.spawn(life.clone().work(uid));
        }
        loop {
            while self.made < pods && self.pods.lock().unwrap().len() < CROWD {
                let machine = self.machine.clone();
                self.add_pod(|_| machine.below(3) == 0);
                let uid = format!("pod{}", self.made - 1);
                life.show(&uid);
                workers.spawn(life.clone().work(uid));
            }
            match workers.join_next().await {
                Some(ended) => ended.unwrap(),
                None => break,
            }
        }
        // Folders of pods are removed with a delay; so are volumes whose driver failed.
        let settled = async {
            while let Some(left) = self.leftover() {
                life.note_left(left);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, settled).await.is_err() {
            panic!("left: {:?}, after\n{}", self.leftover(), self.machine.trail());
        }
    }

    async fn start(&self) -> Life {
        let socket = self.root.join("csi.sock");
        let listening = sockets::Listening::bind(&socket).unwrap();
        let tasks = Tasks::new();
        let routes = tonic::service::Routes::new(NodeServer::new(SimulatedDriver {
            machine: self.machine.clone(),
        }));
        tasks.spawn("driver", ports::OnExit::Fine, {
            let token = tasks.token();
            async move { listening.serve(routes, token).await.unwrap() }
        });
        let (pods, snapshots) = watch::channel(PodsSnapshot::default());
        let node = Some(Arc::clone(&self.objects.node.lock().unwrap()));
        let (node, views) = watch::channel(Arc::new(NodeView { node, ..NodeView::default() }));
        let deps = VolumesDeps {
            pods: snapshots,
            objects: Arc::clone(&self.objects) as Arc<dyn Objects>,
            storage: Some(Arc::clone(&self.storage) as Arc<dyn StorageApi>),
            events: Arc::clone(&self.events) as Arc<dyn Events>,
            node: views,
            clock: Arc::new(SystemClock),
            metrics: VolumeMetrics::new(&telemetry::metrics::Registry::new()),
            tasks: tasks.clone(),
        };
        let roots = Roots { kubelet: self.root.join("kubelet"), ..Roots::default() };
        let config = VolumesConfig::new(roots, "node");
        let handle = crate::handle::start_with(config, deps, Pool::on(self.machine.clone()));
        let (env, machine) = (Arc::clone(&handle.env), self.machine.clone());
        tasks.spawn("registration", ports::OnExit::Fine, async move {
            machine.pause(Duration::from_secs(2)).await;
            let version = Version::highest(&["1.0.0".to_owned()]).unwrap();
            for driver in [DRIVER, ATTACHING] {
                let endpoint = socket.clone();
                env.csi.set(driver, Registered { endpoint, version: version.clone() });
            }
        });
        let (cluster, seen) = (self.cluster.clone(), handle.clone());
        tasks.spawn("cluster", ports::OnExit::Fine, async move {
            loop {
                cluster.machine.pause(Duration::from_secs(2)).await;
                if cluster.machine.state().is_dead() {
                    return;
                }
                match cluster.machine.below(2) {
                    0 => cluster.report(seen.facts().in_use.clone()),
                    _ => cluster.control(),
                }
                let view = NodeView { node: Some(cluster.node()), ..NodeView::default() };
                node.send_replace(Arc::new(view));
            }
        });
        self.machine.pause(Duration::from_secs(2)).await;
        let life = Life {
            machine: self.machine.clone(),
            handle,
            known: Arc::clone(&self.pods),
            pods: Arc::new(pods),
            cluster: self.cluster.clone(),
            root: self.root.clone(),
            left: None,
        };
        life.publish();
        life
    }

    /// Something that should be gone once no pod is left.
    fn leftover(&self) -> Option<String> {
        let table = sys::mountinfo::read(Path::new("/proc")).unwrap();
        if let Some(mount) = sys::mountinfo::at_or_below(&table, &self.root).first() {
            return Some(format!("mount {}", mount.mount_point.display()));
        }
        let state = self.machine.state();
        if let Some((volume, path)) = state.storage.staged.first_key_value() {
            return Some(format!("{volume} staged at {}", path.display()));
        }
        if let Some((path, volume)) = state.storage.published.first_key_value() {
            return Some(format!("{volume} published at {}", path.display()));
        }
        if let Some(volume) = state.storage.attached.first() {
            return Some(format!("{volume} attached"));
        }
        let kubelet = self.root.join("kubelet");
        let csi = kubelet.join("plugins/kubernetes.io/csi");
        let devices = csi.join("volumeDevices");
        for folder in [
            kubelet.join("pods"),
            csi.join(DRIVER),
            csi.join(ATTACHING),
            devices.join("staging"),
            devices.join("publish"),
        ] {
            if let Some(name) = sys::fs::list_dir(&folder).unwrap_or_default().first() {
                return Some(format!("{}", folder.join(name).display()));
            }
        }
        let kept = ["staging", "publish"];
        let devices_left = sys::fs::list_dir(&devices).unwrap_or_default();
        devices_left.iter().find(|name| !kept.contains(&name.as_str())).cloned()
    }

    /// After the last run nothing may be left on disk, mounted or in the driver.
    pub(super) fn check_clean(&self, run: &str) {
        assert_eq!(self.leftover(), None, "{run}:\n{}", self.machine.trail());
        for name in sys::fs::list_dir("/sys/block").unwrap() {
            let backing = Path::new("/sys/block").join(&name).join("loop/backing_file");
            let file = std::fs::read_to_string(backing).unwrap_or_default();
            assert!(!file.starts_with(self.root.to_str().unwrap()), "{run}: {name} is {file}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        clean(&self.root);
    }
}

/// Writes what a container may leave in its volume: names that are not UTF-8 or look like the kubelet's, links to
/// anywhere, and nested folders.
fn write_odd_files(folder: &Path, depth: usize) {
    for name in [b"\xff\xfe".as_slice(), b".rubelet-deep-0", b"..data"] {
        let name = OsStr::from_bytes(name);
        let mut deep = folder.join(name);
        deep.extend(std::iter::repeat_n(name, depth));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("x\n"), "x").unwrap();
        let link = deep.join(OsStr::from_bytes(b"l\xc3"));
        // The container may have left it before a crash already.
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink("/", link).unwrap();
        }
    }
}

/// The pod's claims that may be expanded.
fn growing_claims(uid: &str) -> [String; 2] {
    let number = uid.trim_start_matches("pod");
    ["own", "attached"].map(|kind| format!("{kind}{number}"))
}

fn has_claim(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let mut claims = volumes.filter_map(|v| v.persistent_volume_claim.as_ref());
    claims.any(|c| c.claim_name == claim)
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// One run of the node with the workers of its pods.
#[derive(Clone)]
struct Life {
    machine: Machine,
    handle: VolumesHandle,
    known: Pods,
    pods: Arc<watch::Sender<PodsSnapshot>>,
    cluster: Cluster,
    root: PathBuf,
    left: Option<String>,
}

impl Life {
    fn note_left(&mut self, left: String) {
        if self.left.as_ref() != Some(&left) {
            self.machine.state().note("waiting for", Path::new(&left));
            self.left = Some(left);
        }
    }

    /// Publishes a pods snapshot to the subsystem.
    fn publish(&self) {
        let known = self.known.lock().unwrap();
        let entries = known.iter().map(|(uid, sim)| {
            let life = match sim.stage {
                Stage::Wanted | Stage::Running => PodLife::Syncing,
                Stage::Stopping => PodLife::Terminating,
                Stage::Stopped => PodLife::Terminated,
            };
            let entry = PodEntry {
                pod: Arc::clone(&sim.pod),
                given: Some(Arc::clone(&sim.pod)),
                source: PodSource::Api,
                mirror: None,
                life,
                status: None,
                evicted: false,
            };
            (PodUid::from(uid.as_str()), entry)
        });
        let pods = Arc::new(entries.collect());
        self.pods.send_replace(PodsSnapshot { pods, sources_ready: true });
    }

    fn show(&self, uid: &str) {
        self.machine.state().note("new", Path::new(uid));
        self.publish();
    }

    fn enter(&self, uid: &str, stage: Stage) {
        self.machine.state().note(&format!("{stage:?}"), Path::new(uid));
        self.known.lock().unwrap().get_mut(uid).unwrap().stage = stage;
        self.publish();
    }

    /// The pod's worker, from wherever the pod is to its end.
    async fn work(self, uid: String) {
        loop {
            let (pod, stage) = {
                let known = self.known.lock().unwrap();
                let sim = &known[&uid];
                (Arc::clone(&sim.pod), sim.stage)
            };
            match stage {
                Stage::Wanted => self.begin(&uid, &pod).await,
                Stage::Running => self.run(&uid, &pod).await,
                Stage::Stopping => {
                    self.machine.pause(Duration::from_secs(5)).await;
                    self.machine.state().running.remove(&uid);
                    self.enter(&uid, Stage::Stopped);
                }
                Stage::Stopped => {
                    if self.handle.wait_released(&pod).await.is_ok() {
                        self.machine.state().note("released", Path::new(&uid));
                        self.known.lock().unwrap().remove(&uid);
                        self.publish();
                        return;
                    }
                }
            }
        }
    }

    /// Waits for the volumes and starts the containers; sometimes the pod is deleted before.
    async fn begin(&self, uid: &str, pod: &Arc<Pod>) {
        let hurry = self.machine.below(6) == 0;
        let patience = match hurry {
            true => Duration::from_millis(self.machine.below(40)),
            false => PATIENCE,
        };
        match tokio::time::timeout(patience, self.handle.wait_ready(pod)).await {
            Ok(Ok(mounts)) => {
                for name in mounts.keys() {
                    let path = &mounts[name].host_path;
                    assert!(
                        path.exists(),
                        "{} is not there:\n{}",
                        path.display(),
                        self.machine.trail()
                    );
                }
                std::fs::write(self.marker(uid), uid).unwrap();
                write_odd_files(
                    &mounts["disk"].host_path,
                    if self.machine.below(8) == 0 { 70 } else { 2 },
                );
                self.machine.state().running.insert(uid.to_owned());
                self.enter(uid, Stage::Running);
            }
            Ok(Err(_)) => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(_) => self.enter(uid, Stage::Stopped),
        }
    }

    /// Syncs a few times, then stops.
    async fn run(&self, uid: &str, pod: &Arc<Pod>) {
        for _ in 0..=self.machine.below(3) {
            if let Ok(mounts) = self.handle.wait_ready(pod).await {
                let request = SubPathRequest {
                    pod_uid: uid.into(),
                    volume_name: "disk".into(),
                    volume_path: mounts["disk"].host_path.clone(),
                    sub_path: "sub/path".into(),
                    container_name: "c".into(),
                    mount_index: 0,
                };
                match self.handle.bind_sub_path(&request).await {
                    Ok(bound) => assert!(sys::mount::is_mount_point(&bound).unwrap()),
                    // The disk may fail; the worker tries again.
                    Err(_) => assert!(self.machine.state().disk_faults > 0),
                }
                self.see_growth(uid, pod).await;
            }
            let kept = std::fs::read_to_string(self.marker(uid)).unwrap_or_default();
            assert_eq!(kept, uid, "data lost:\n{}", self.machine.trail());
            self.machine.pause(Duration::from_secs(20)).await;
        }
        self.enter(uid, Stage::Stopping);
    }

    /// Sometimes expands a claim of the running pod and waits until the node has expanded the volume.
    async fn see_growth(&self, uid: &str, pod: &Arc<Pod>) {
        for claim in growing_claims(uid).into_iter().filter(|claim| has_claim(pod, claim)) {
            if !self.cluster.is_growing(&claim) && self.machine.below(3) == 0 {
                self.cluster.grow(&claim);
            }
            let growth = async {
                while self.cluster.is_growing(&claim) && !self.cluster.has_grown(&claim) {
                    // A failure becomes an event; a running pod keeps its mounts.
                    let _ = self.handle.wait_ready(pod).await;
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            };
            let grown = tokio::time::timeout(PATIENCE, growth).await;
            assert!(grown.is_ok(), "{claim} never grows:\n{}", self.machine.trail());
        }
    }

    fn marker(&self, uid: &str) -> PathBuf {
        self.root.join("kubelet/pods").join(uid).join("volumes/kubernetes.io~empty-dir/disk/marker")
    }
}
