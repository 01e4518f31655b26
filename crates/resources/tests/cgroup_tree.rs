//! The cgroup tree on the machine's own hierarchies, below a root of the test's own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use engine::cgroup::{CgroupName, Driver, Limits, MemoryProtection, PodLimitPolicy, QosPolicy};
use ports::{OnExit, PodCgroups, PodEntry, PodLife, PodSource, PodsSnapshot, Tasks};
use resources::cgroups::{CgroupDriver, CgroupTree, CgroupTreeConfig};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use sys::cgroup::Cgroups;
use tokio::sync::watch;

/// A root cgroup that is removed when dropped.
struct Root {
    host: Arc<Cgroups>,
    name: String,
}

impl Root {
    fn new(test: &str) -> Self {
        let host = Arc::new(Cgroups::detect(Path::new("/sys"), Path::new("/proc")).unwrap());
        let name = format!("rubelet-{test}-{}", std::process::id());
        host.create(&name).unwrap();
        Self { host, name }
    }

    async fn tree(&self) -> CgroupTree {
        let driver = CgroupDriver::new(Driver::Cgroupfs, Arc::clone(&self.host), Vec::new());
        let config = CgroupTreeConfig {
            root: CgroupName::root().child(&self.name),
            policy: PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: 77 },
            kubepods: Limits { memory_bytes: Some(1 << 30), ..Limits::default() },
            qos: QosPolicy { reserved: None, protection: MemoryProtection::Off },
            pod_level_resources: true,
            lifts_quota: None,
            protected: None,
        };
        CgroupTree::set_up(driver, config).await.unwrap()
    }

    /// Reads a control file by its version 1 and version 2 path.
    fn read(&self, cgroup: &str, v1: (&str, &str), v2: &str) -> String {
        let path = format!("{}/{cgroup}", self.name);
        if self.host.is_v2() {
            self.host.read("", &path, v2).unwrap()
        } else {
            self.host.read(v1.0, &path, v1.1).unwrap()
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.host.remove(&self.name).unwrap();
    }
}

/// Waits until a condition holds.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("it did not come about");
}

/// The published pods snapshot, and the task of the QoS levels that follows it.
struct Node {
    pods: watch::Sender<PodsSnapshot>,
    tasks: Tasks,
}

impl Node {
    fn follow(tree: &CgroupTree) -> Self {
        let (pods, seen) = watch::channel(PodsSnapshot::default());
        let tasks = Tasks::new();
        tasks.spawn("qos-cgroups", OnExit::Fine, tree.clone().run(seen, tasks.token()));
        Self { pods, tasks }
    }

    fn publish(&self, pods: &[&Pod], sources_ready: bool) {
        let entry = |pod: &&Pod| {
            let uid = pod.uid();
            let entry = PodEntry {
                pod: Arc::new((*pod).clone()),
                given: None,
                source: PodSource::Api,
                mirror: None,
                life: PodLife::Syncing,
                status: None,
                evicted: false,
            };
            (uid, entry)
        };
        let pods = Arc::new(pods.iter().map(entry).collect());
        self.pods.send_replace(PodsSnapshot { pods, sources_ready });
    }

    async fn end(self) {
        self.tasks.shutdown().await;
    }
}

fn pod(uid: &str, resources: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "n", "uid": uid},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }))
    .unwrap()
}

#[tokio::test]
async fn pods_of_all_classes_get_their_place_and_their_numbers() {
    let root = Root::new("qos");
    let tree = root.tree().await;
    let guaranteed = pod(
        "g",
        serde_json::json!({"limits": {"cpu": "500m", "memory": "64Mi"},
        "requests": {"cpu": "500m", "memory": "64Mi"}}),
    );
    let burstable = pod("b", serde_json::json!({"requests": {"cpu": "250m"}}));
    let best_effort = pod("e", serde_json::json!({}));
    let node = Node::follow(&tree);
    for pod in [&guaranteed, &burstable, &best_effort] {
        assert!(!tree.exists(pod).await);
        tree.ensure(pod).await.unwrap();
        assert!(tree.exists(pod).await);
    }
    assert_eq!(tree.parent(&burstable), format!("/{}/kubepods/burstable/podb", root.name));

    let shares = ("cpu", "cpu.shares");
    let memory = ("memory", "memory.limit_in_bytes");
    let quota = ("cpu", "cpu.cfs_quota_us");
    let v2 = root.host.is_v2();
    let pick = |v1: &str, v2_value: &str| if v2 { v2_value.to_owned() } else { v1.to_owned() };
    assert_eq!(root.read("kubepods/podg", shares, "cpu.weight"), pick("512", "20"));
    assert_eq!(root.read("kubepods/podg", quota, "cpu.max"), pick("50000", "50000 100000"));
    assert_eq!(root.read("kubepods/podg", memory, "memory.max"), "67108864");
    assert_eq!(root.read("kubepods/podg", ("pids", "pids.max"), "pids.max"), "77");
    assert_eq!(root.read("kubepods/burstable/podb", shares, "cpu.weight"), pick("256", "10"));
    node.publish(&[&guaranteed, &burstable, &best_effort], true);
    let level = || root.read("kubepods/burstable", shares, "cpu.weight");
    until(|| level() == pick("256", "10")).await;
    assert_eq!(root.read("kubepods/besteffort/pode", shares, "cpu.weight"), pick("2", "1"));
    assert_eq!(root.read("kubepods", memory, "memory.max"), "1073741824");

    let mut found: Vec<String> = tree.all().await.iter().map(ToString::to_string).collect();
    found.sort();
    assert_eq!(found, ["b", "e", "g"]);
    for uid in ["b", "e", "g"] {
        tree.remove(&PodUid::from(uid)).await.unwrap();
    }
    assert!(tree.all().await.is_empty());
    node.publish(&[], true);
    until(|| level() == pick("2", "1")).await;
    node.end().await;
}

#[tokio::test]
async fn levels_keep_their_values_over_a_restart() {
    let root = Root::new("restart");
    let pods =
        ["a", "b", "c"].map(|uid| pod(uid, serde_json::json!({"requests": {"cpu": "500m"}})));
    let all: Vec<&Pod> = pods.iter().collect();
    let level = || root.read("kubepods/burstable", ("cpu", "cpu.shares"), "cpu.weight");
    let pick = |v1: &str, v2: &str| if root.host.is_v2() { v2.to_owned() } else { v1.to_owned() };
    let tree = root.tree().await;
    let node = Node::follow(&tree);
    for pod in &pods {
        tree.ensure(pod).await.unwrap();
    }
    node.publish(&all, true);
    until(|| level() == pick("1536", "59")).await;
    node.end().await;

    // After a restart no cgroup is made: all exist. Pods become known one source after the other.
    let tree = root.tree().await;
    assert_eq!(level(), pick("1536", "59"), "set up");
    let node = Node::follow(&tree);
    let grown = pod("d", serde_json::json!({"requests": {"cpu": "2"}}));
    node.publish(&all[..1], false);
    node.publish(&[&grown], false);
    until(|| level() == pick("2048", "79")).await;
    node.publish(&all[..1], false);
    node.publish(&[&all[..], &[&grown]].concat(), true);
    until(|| level() == pick("3584", "137")).await;
    node.publish(&all, true);
    until(|| level() == pick("1536", "59")).await;
    for uid in ["a", "b", "c"] {
        tree.remove(&PodUid::from(uid)).await.unwrap();
    }
    node.end().await;
}

/// As an agent leaves it that is killed between the folder and its limits.
#[tokio::test]
async fn a_pod_s_cgroup_that_was_left_half_made_gets_its_limits() {
    let root = Root::new("half");
    let tree = root.tree().await;
    let burstable = pod("b", serde_json::json!({"requests": {"cpu": "250m"}}));
    root.host.create(&format!("{}/kubepods/burstable/podb", root.name)).unwrap();
    assert!(tree.exists(&burstable).await);
    tree.ensure(&burstable).await.unwrap();
    let value = root.read("kubepods/burstable/podb", ("cpu", "cpu.shares"), "cpu.weight");
    assert_eq!(value, if root.host.is_v2() { "10" } else { "256" });
}

#[tokio::test]
async fn a_resize_changes_the_limits_of_a_living_pod() {
    let root = Root::new("resize");
    let tree = root.tree().await;
    let before = pod("r", serde_json::json!({"limits": {"cpu": "100m", "memory": "32Mi"}}));
    let after = pod("r", serde_json::json!({"limits": {"cpu": "200m", "memory": "48Mi"}}));
    tree.ensure(&before).await.unwrap();
    tree.resize(&after).await.unwrap();
    let memory = ("memory", "memory.limit_in_bytes");
    let level = if tree.parent(&after).contains("burstable") { "burstable/" } else { "" };
    assert_eq!(root.read(&format!("kubepods/{level}podr"), memory, "memory.max"), "50331648");
    tree.remove(&PodUid::from("r")).await.unwrap();
}

#[tokio::test]
async fn removal_ends_what_still_runs_in_the_pod() {
    let root = Root::new("kill");
    let tree = root.tree().await;
    let pod = pod("k", serde_json::json!({}));
    tree.ensure(&pod).await.unwrap();
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let path = format!("{}/kubepods/besteffort/podk", root.name);
    root.host.write("pids", &path, "cgroup.procs", &child.id().to_string()).unwrap();
    // A container with write access can give its cgroups any name.
    let folder = root.host.dir("pids", &path).unwrap();
    std::fs::create_dir(folder.join(OsStr::from_bytes(b"\xff\xfe"))).unwrap();
    tree.remove(&PodUid::from("k")).await.unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!tree.exists(&pod).await);
    // A second removal finds nothing and succeeds.
    tree.remove(&PodUid::from("k")).await.unwrap();
}

#[tokio::test]
async fn what_is_left_of_a_pod_that_is_gone_gets_the_smallest_share() {
    let root = Root::new("starve");
    let tree = root.tree().await;
    tree.ensure(&pod("s", serde_json::json!({"requests": {"cpu": "1"}}))).await.unwrap();
    let shares = |root: &Root| {
        root.read("kubepods/burstable/pods", ("cpu", "cpu.shares"), "cpu.weight").trim().to_owned()
    };
    assert_eq!(shares(&root), if root.host.is_v2() { "39" } else { "1024" });
    tree.starve(&PodUid::from("s")).await.unwrap();
    assert_eq!(shares(&root), if root.host.is_v2() { "1" } else { "2" });
    tree.starve(&PodUid::from("nobody")).await.unwrap();
    tree.remove(&PodUid::from("s")).await.unwrap();
}

#[tokio::test]
async fn a_root_that_is_not_there_is_refused_by_name() {
    let host = Arc::new(Cgroups::detect(Path::new("/sys"), Path::new("/proc")).unwrap());
    let fault = if host.is_v2() {
        "could not read controllers for cgroup [\"rubelet-absent\"]: open /sys/fs/cgroup/"
    } else {
        "cgroup [\"rubelet-absent\"] has some missing paths: "
    };
    let driver = CgroupDriver::new(Driver::Cgroupfs, host, Vec::new());
    let config = CgroupTreeConfig {
        root: CgroupName::root().child("rubelet-absent"),
        policy: PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: -1 },
        kubepods: Limits::default(),
        qos: QosPolicy { reserved: None, protection: MemoryProtection::Off },
        pod_level_resources: true,
        lifts_quota: None,
        protected: None,
    };
    let error = CgroupTree::set_up(driver, config).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("invalid configuration: {fault}")), "{error}");
}

/// Version 2 simulated with plain files, so that it also runs on machines with version 1.
#[tokio::test]
async fn a_pod_s_memory_request_is_protected_in_its_cgroup() {
    let root = std::env::temp_dir().join(format!("rubelet-protect-{}", std::process::id()));
    sys::fs::create_dir_all(&root, 0o755).unwrap();
    let host = Arc::new(Cgroups::V2 { root: root.clone() });
    let config = CgroupTreeConfig {
        root: CgroupName::root(),
        policy: PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: -1 },
        kubepods: Limits::default(),
        qos: QosPolicy { reserved: None, protection: MemoryProtection::Tiered },
        pod_level_resources: true,
        lifts_quota: None,
        protected: None,
    };
    let driver = CgroupDriver::new(Driver::Cgroupfs, Arc::clone(&host), Vec::new());
    let tree = CgroupTree::set_up(driver, config).await.unwrap();
    let memory = serde_json::json!({"cpu": "1", "memory": "1Mi"});
    let guaranteed = pod("g", serde_json::json!({"requests": memory, "limits": memory}));
    let burstable = pod("b", serde_json::json!({"requests": memory}));
    let best_effort = pod("e", serde_json::json!({}));
    let pods = [&guaranteed, &burstable, &best_effort];
    let node = Node::follow(&tree);
    for pod in pods {
        tree.ensure(pod).await.unwrap();
    }
    node.publish(&pods, true);
    let read = |path: &str, file| host.read("", &format!("kubepods/{path}"), file).ok();
    assert_eq!(read("podg", "memory.min").as_deref(), Some("1048576"));
    assert_eq!(read("burstable/podb", "memory.low").as_deref(), Some("1048576"));
    until(|| read("burstable", "memory.low").as_deref() == Some("1048576")).await;
    until(|| read("", "memory.min").as_deref() == Some("2097152")).await;
    node.end().await;
    for file in ["memory.min", "memory.low"] {
        assert_eq!(read("besteffort/pode", file), None);
    }
    let gone = std::process::Command::new("rm").arg("-rf").arg(&root).status();
    assert!(gone.unwrap().success());
}
