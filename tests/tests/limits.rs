//! What pods may use, as the kernel has it: the cgroup tree next to the Go kubelet's, a throttled and
//! an out-of-memory container, a live resize, and what a start is refused for.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
    eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// Files whose content says what a cgroup may use.
const FILES: [(&str, &str); 9] = [
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("memory", "memory.limit_in_bytes"),
    ("pids", "pids.max"),
    ("cpuset", "cpuset.cpus"),
    ("cpuset", "cpuset.mems"),
    ("hugetlb", "hugetlb.2MB.limit_in_bytes"),
    ("hugetlb", "hugetlb.1GB.limit_in_bytes"),
];
/// For the system and for Kubernetes.
const RESERVED: [&str; 2] = ["system", "kube"];
const FILES_V2: [&str; 6] =
    ["cpu.weight", "cpu.max", "memory.max", "pids.max", "cpuset.cpus", "hugetlb.2MB.max"];

fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").is_file()
}

/// The folder of a cgroup in the hierarchy of a controller.
fn folder(controller: &str, cgroup: &str) -> PathBuf {
    let base = if is_v2() {
        PathBuf::from("/sys/fs/cgroup")
    } else {
        Path::new("/sys/fs/cgroup").join(controller)
    };
    base.join(cgroup)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Every value of a cgroup that can be read.
fn values(cgroup: &str) -> BTreeMap<String, String> {
    let files: Vec<(&str, &str)> =
        if is_v2() { FILES_V2.iter().map(|file| ("", *file)).collect() } else { FILES.to_vec() };
    let read = |(controller, file): (&str, &str)| {
        Some((file.to_owned(), read(&folder(controller, cgroup).join(file))?))
    };
    files.into_iter().filter_map(read).collect()
}

/// All cgroups below `kubepods` by path, containers by their names.
fn tree(node: &TestNode) -> BTreeMap<String, BTreeMap<String, String>> {
    let root = node.slot().cgroup();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for container in node.containers().unwrap() {
        let name = container["metadata"]["name"].as_str().unwrap().to_owned();
        names.insert(container["id"].as_str().unwrap().to_owned(), name);
    }
    for sandbox in node.sandboxes().unwrap() {
        names.insert(sandbox["id"].as_str().unwrap().to_owned(), "sandbox".to_owned());
        // The UID of a static pod depends on where its manifest is.
        let pod = &sandbox["metadata"];
        let uid = format!("pod{}", pod["uid"].as_str().unwrap());
        names.insert(uid, pod["name"].as_str().unwrap().to_owned());
    }
    let reserved = RESERVED.map(|name| (name.to_owned(), values(&format!("{root}/{name}"))));
    let mut found = BTreeMap::from(reserved);
    let mut left = vec![("kubepods".to_owned(), "kubepods".to_owned())];
    while let Some((path, shown)) = left.pop() {
        found.insert(shown.clone(), values(&format!("{root}/{path}")));
        let below = std::fs::read_dir(folder("memory", &format!("{root}/{path}"))).unwrap();
        for entry in below.flatten().filter(|e| e.path().is_dir()) {
            let part = entry.file_name().to_string_lossy().into_owned();
            let name = names.get(&part).unwrap_or(&part);
            left.push((format!("{path}/{part}"), format!("{shown}/{name}")));
        }
    }
    found
}

fn static_pod(name: &str, containers: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": containers}})
    .to_string()
}

fn container(name: &str, resources: Value) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sleep", "3600"], "resources": resources})
}

/// Cgroups of daemons, which a kubelet limits but does not make.
fn make_reserved(node: &mut TestNode) {
    for folder in node.slot().cgroup_folders() {
        for name in RESERVED {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
    }
    let root = node.slot().cgroup();
    let [system, kube] = RESERVED.map(|name| format!("/{root}/{name}"));
    node.configure(&json!({"systemReservedCgroup": system, "kubeReservedCgroup": kube}));
}

/// The tree that a kubelet makes of three pods of the three classes.
fn tree_of(kind: KubeletKind) -> BTreeMap<String, BTreeMap<String, String>> {
    let config = json!({
        "podPidsLimit": 500,
        "systemReserved": {"memory": "300Mi", "cpu": "100m", "pid": "1000"},
        "kubeReserved": {"memory": "200Mi", "cpu": "70m"},
        "enforceNodeAllocatable": ["pods", "system-reserved", "kube-reserved-compressible"],
    });
    let options = KubeletOptions { config, ..KubeletOptions::default() };
    let mut node = TestNode::builder().options(options).start().unwrap();
    make_reserved(&mut node);
    let both = json!({"cpu": "150m", "memory": "48Mi"});
    let pods = [
        ("guaranteed", json!([container("g", json!({"limits": both, "requests": both}))])),
        (
            "burstable",
            json!([
                container(
                    "b1",
                    json!({"requests": {"cpu": "70m", "memory": "20Mi"},
                                       "limits": {"memory": "64Mi"}})
                ),
                container("b2", json!({"requests": {"cpu": "30m"}, "limits": {"cpu": "200m"}})),
            ]),
        ),
        ("besteffort", json!([container("e", json!({}))])),
    ];
    for (name, containers) in &pods {
        node.add_manifest(&format!("{name}.json"), &static_pod(name, containers)).unwrap();
    }
    node.start_kubelet(kind).unwrap();
    for name in ["g", "b1", "b2", "e"] {
        node.wait_running(name, PATIENCE).unwrap();
    }
    // Node limits and the sum of requests are written beside the pods' start.
    let shares = if is_v2() { ("cpu.weight", "4") } else { ("cpu.shares", "102") };
    let settled = || {
        let tree = tree(&node);
        (tree["kubepods/burstable"].get(shares.0)? == shares.1).then_some(tree)
    };
    let tree = eventually_some(PATIENCE, "burstable pods are summed up", settled).unwrap();
    node.stop_kubelet();
    tree
}

#[test]
fn the_cgroup_tree_is_the_go_kubelets() {
    let go = std::thread::spawn(|| tree_of(KubeletKind::Go));
    let ours = tree_of(KubeletKind::Rubelet);
    let go = go.join().unwrap();
    let names: Vec<&String> = go.keys().collect();
    assert!(names.len() >= 15, "three levels, three pods, seven containers, two more: {names:?}");
    if !is_v2() {
        let (system, kube) = (&go["system"], &go["kube"]);
        assert_eq!((system["cpu.shares"].as_str(), kube["cpu.shares"].as_str()), ("102", "71"));
        assert_eq!(system["memory.limit_in_bytes"], "314572800");
    }
    for (path, values) in &go {
        assert_eq!(ours.get(path), Some(values), "{path}");
    }
    assert_eq!(ours.keys().collect::<Vec<_>>(), names);
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec});
    pod["spec"]["nodeName"] = json!("node1");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod
}

/// The cgroup of a pod's container.
fn cgroup_of(node: &TestNode, pod: &Value, container: &str) -> (String, String) {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let level = match pod["status"]["qosClass"].as_str().unwrap() {
        "Burstable" => "/burstable",
        "BestEffort" => "/besteffort",
        _ => "",
    };
    let id = node.wait_running(container, PATIENCE).unwrap();
    let own = format!("{}/kubepods{level}/pod{uid}", node.slot().cgroup());
    (own.clone(), format!("{own}/{id}"))
}

#[test]
fn limits_hold_and_follow_a_resize() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let mut node = TestNode::builder().kubelet(kind).join(&control).start().unwrap();
    let limits = json!({"limits": {"cpu": "100m", "memory": "64Mi"},
                        "requests": {"cpu": "50m", "memory": "32Mi"}});
    let busy = json!({"containers": [{"name": "busy", "image": IMAGE, "resources": limits,
        "command": ["sh", "-c", "while :; do :; done"]}]});
    let hungry = json!({"restartPolicy": "Never", "containers": [{"name": "hungry", "image": IMAGE,
        "resources": {"limits": {"memory": "24Mi"}},
        "command": ["sh", "-c", "tail /dev/zero"]}]});
    for (name, spec) in [("busy", &busy), ("hungry", &hungry)] {
        control.create(&pod(name, spec)).unwrap();
    }
    let state = || {
        let pod = control.get(["pod", "hungry"]).ok()?;
        let ended = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        (pod["status"]["phase"] == "Failed").then_some(ended)
    };
    let ended = eventually_some(PATIENCE, "the hungry pod fails", state).unwrap();
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("OOMKilled"), &json!(137)));

    let running = || {
        let pod = control.get(["pod", "busy"]).ok()?;
        (pod["status"]["phase"] == "Running").then_some(pod)
    };
    let running = eventually_some(PATIENCE, "the busy pod runs", running).unwrap();
    let (of_pod, of_container) = cgroup_of(&node, &running, "busy");
    let throttled = || {
        let text = read(&folder("cpu", &of_container).join("cpu.stat"))?;
        let line = text.lines().find_map(|l| l.strip_prefix("nr_throttled "))?;
        (line.parse::<u64>().ok()? > 0).then_some(())
    };
    eventually_some(PATIENCE, "the busy container is throttled", throttled).unwrap();

    let patch = json!({"spec": {"containers": [{"name": "busy", "resources": {
        "limits": {"cpu": "200m", "memory": "96Mi"}, "requests": {"cpu": "80m", "memory": "40Mi"}}}]}});
    control
        .kubectl(["patch", "pod", "busy", "--subresource", "resize", "-p", &patch.to_string()])
        .unwrap();
    let wanted: &[(&str, &str, &str)] = if is_v2() {
        &[("", "cpu.max", "20000 100000"), ("", "memory.max", "100663296")]
    } else {
        &[
            ("cpu", "cpu.cfs_quota_us", "20000"),
            ("cpu", "cpu.shares", "81"),
            ("memory", "memory.limit_in_bytes", "100663296"),
        ]
    };
    for (controller, file, value) in wanted {
        for cgroup in [&of_pod, &of_container] {
            let path = folder(controller, cgroup).join(file);
            let what = format!("{} is {value}", path.display());
            eventually(PATIENCE, &what, || read(&path).as_deref() == Some(value)).unwrap();
        }
    }
    let applied = || {
        let pod = control.get(["pod", "busy"]).ok()?;
        let status = &pod["status"]["containerStatuses"][0];
        let same = status["resources"]["limits"] == json!({"cpu": "200m", "memory": "96Mi"});
        (same && status["restartCount"] == 0).then_some(())
    };
    eventually_some(PATIENCE, "the status has the new limits", applied).unwrap();
    node.stop_kubelet();
}
