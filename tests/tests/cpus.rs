//! Exclusive CPUs on the real machine: given, kept over a kill, handed from one kubelet to the other, released.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode};

const START: Duration = Duration::from_secs(60);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// CPU 0 is the system's, whole CPUs are exclusive, memory comes from NUMA node 0.
fn options() -> KubeletOptions {
    KubeletOptions {
        config: json!({
            "cpuManagerPolicy": "static",
            "cpuManagerReconcilePeriod": "2s",
            "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "reservedMemory": [{ "numaNode": 0, "limits": { "memory": "100Mi" } }],
            "topologyManagerPolicy": "best-effort",
            "fileCheckFrequency": "1s",
        }),
        ..KubeletOptions::default()
    }
}

/// A pod that stays; a whole `cpu` makes it Guaranteed.
fn pod(name: &str, cpu: Option<&str>) -> Value {
    let resources = match cpu {
        Some(cpu) => {
            let amounts = json!({ "cpu": cpu, "memory": "64Mi" });
            json!({ "requests": amounts, "limits": amounts })
        }
        None => json!({ "requests": { "memory": "1Mi" } }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": name,
                "image": IMAGE,
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
                "resources": resources,
            }],
        },
    })
}

/// The same from the API server.
fn create(control: &ControlPlane, name: &str, cpu: Option<&str>) {
    let mut pod = pod(name, cpu);
    pod["spec"]["nodeName"] = json!("node1");
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["spec"]["serviceAccountName"] = json!("default");
    control.create(&pod).unwrap();
}

/// A file of the container's cgroup, whichever hierarchy has it.
fn cgroup_file(node: &TestNode, container: &str, file: &str) -> Option<String> {
    fn below(dir: &Path, name: &str, depth: u8) -> Option<PathBuf> {
        let found = dir.join(name);
        if found.is_dir() {
            return Some(found);
        }
        let entries = std::fs::read_dir(dir).ok()?.flatten().filter(|_| depth > 0);
        entries.filter_map(|entry| below(&entry.path(), name, depth - 1)).next()
    }
    let base = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(base).ok()?.flatten().map(|entry| entry.path());
    hierarchies.chain([base.to_path_buf()]).find_map(|hierarchy| {
        let group = below(&hierarchy.join(node.slot().cgroup()), container, 3)?;
        std::fs::read_to_string(group.join(file)).ok().map(|text| text.trim().to_owned())
    })
}

fn cpus_of(node: &TestNode, container: &str) -> String {
    cgroup_file(node, container, "cpuset.cpus").unwrap_or_default()
}

fn state(node: &TestNode, name: &str) -> String {
    std::fs::read_to_string(node.root_dir().join(name)).unwrap_or_default()
}

fn status(control: &ControlPlane, name: &str) -> Value {
    control.get(["pod", name]).map(|pod| pod["status"].clone()).unwrap_or_default()
}

/// Why a resize waits: reason and message.
fn pending_resize(control: &ControlPlane, name: &str) -> Value {
    let status = status(control, name);
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let pending = conditions.filter(|condition| condition["type"] == "PodResizePending");
    pending.map(|condition| json!([condition["reason"], condition["message"]])).next_back().into()
}

fn other(kind: KubeletKind) -> KubeletKind {
    match kind {
        KubeletKind::Go => KubeletKind::Rubelet,
        KubeletKind::Rubelet => KubeletKind::Go,
    }
}

/// The machine must have two CPUs, as the project's test machines do.
fn all_cpus() -> String {
    std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned()
}

/// What the runtime was asked about CPUs, per container: creation, then updates.
fn asked(node: &TestNode) -> Vec<Value> {
    let mut names: std::collections::BTreeMap<String, Value> = std::collections::BTreeMap::new();
    let mut asked = Vec::new();
    for call in node.recorder().unwrap().calls() {
        let resources = |at: &Value| {
            json!({
                "cpus": at["cpuset_cpus"], "mems": at["cpuset_mems"], "quota": at["cpu_quota"],
                "shares": at["cpu_shares"],
            })
        };
        if call.method.ends_with("CreateContainer") {
            let config = &call.request["config"];
            let id = call.response["container_id"].as_str().unwrap_or_default().to_owned();
            names.insert(id, config["metadata"]["name"].clone());
            let resources = resources(&config["linux"]["resources"]);
            asked.push(json!(["create", config["metadata"]["name"], resources]));
        } else if call.method.ends_with("UpdateContainerResources") {
            let id = call.request["container_id"].as_str().unwrap_or_default();
            asked.push(json!(["update", names.get(id), resources(&call.request["linux"])]));
        } else if call.method.ends_with("RunPodSandbox") {
            let sandbox = &call.request["config"];
            let quota = &sandbox["linux"]["resources"]["cpu_quota"];
            asked.push(json!(["sandbox", sandbox["metadata"]["name"], quota]));
        }
    }
    asked
}

/// The first kubelet gives a CPU away, is killed, comes back and hands over to the second.
fn given_kept_handed_over_released(first: KubeletKind) {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let builder = TestNode::builder().options(options()).join(&control);
    let mut node = builder.kubelet(first).start().unwrap();
    create(&control, "shared", None);
    let shared = node.wait_running("shared", START).unwrap();
    assert_eq!(cpus_of(&node, &shared), all_cpus());

    create(&control, "own", Some("1"));
    let own = node.wait_running("own", START).unwrap();
    assert_eq!(cpus_of(&node, &own), "1");
    assert_eq!(cgroup_file(&node, &own, "cpuset.mems").as_deref(), Some("0"));
    if let Some(quota) = cgroup_file(&node, &own, "cpu.cfs_quota_us") {
        assert_eq!(quota, "-1", "nobody slows down who has a CPU of their own");
    }
    eventually!(30, !cpus_of(&node, &shared).split(',').any(|part| part.contains('1')));
    let (cpus, memory) = (state(&node, "cpu_manager_state"), state(&node, "memory_manager_state"));
    assert!(
        cpus.contains(r#""own":"1""#) && memory.contains(r#""numaAffinity":[0]"#),
        "{cpus} {memory}"
    );

    node.kill_kubelet();
    node.start_kubelet(first).unwrap();
    for (kind, more) in [(first, "more-1"), (other(first), "more-2")] {
        create(&control, more, Some("1"));
        eventually!(30, status(&control, more)["reason"] == "UnexpectedAdmissionError");
        assert_eq!(
            status(&control, more)["message"],
            "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: \
             requested=1, available=0, which is unexpected"
        );
        assert_eq!(node.wait_running("own", START).unwrap(), own);
        assert_eq!(node.wait_running("shared", START).unwrap(), shared);
        assert_eq!(
            (cpus_of(&node, &own).as_str(), state(&node, "cpu_manager_state")),
            ("1", cpus.clone())
        );
        assert_eq!(state(&node, "memory_manager_state"), memory);
        if kind == first {
            node.stop_kubelet();
            node.start_kubelet(other(first)).unwrap();
        }
    }

    let less = json!({ "cpu": "500m", "memory": "64Mi" });
    let resources = json!({ "requests": less, "limits": less });
    let patch = json!({ "spec": { "containers": [{ "name": "own", "resources": resources }] } });
    let patch = patch.to_string();
    control.kubectl(["patch", "pod", "own", "--subresource=resize", "-p", &patch]).unwrap();
    let refused = json!([
        "Infeasible",
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
    ]);
    eventually!(30, pending_resize(&control, "own") == refused);
    assert_eq!((cpus_of(&node, &own).as_str(), state(&node, "cpu_manager_state")), ("1", cpus));

    control.kubectl(["delete", "pod", "own", "--wait=false"]).unwrap();
    eventually!(90, !state(&node, "cpu_manager_state").contains("entries"));
    eventually!(30, cpus_of(&node, &shared) == all_cpus());
}

#[test]
fn exclusive_cpus_are_given_kept_handed_over_and_released() {
    given_kept_handed_over_released(KubeletKind::Rubelet);
}

#[test]
fn exclusive_cpus_of_the_go_kubelet_are_taken_over() {
    given_kept_handed_over_released(KubeletKind::Go);
}

#[test]
fn the_runtime_is_asked_for_the_same_cpus_as_by_the_go_kubelet() {
    let under = |kind| {
        let builder = TestNode::builder().options(options()).record().kubelet(kind);
        let node = builder.start().unwrap();
        node.add_manifest("shared.json", &pod("shared", None).to_string()).unwrap();
        let shared = node.wait_running("shared", START).unwrap();
        node.add_manifest("own.json", &pod("own", Some("1")).to_string()).unwrap();
        node.wait_running("own", START).unwrap();
        eventually!(30, !cpus_of(&node, &shared).split(',').any(|part| part.contains('1')));
        asked(&node)
    };
    let (mut go, mut ours) = (under(KubeletKind::Go), under(KubeletKind::Rubelet));
    // How often the shared pod was told on the way depends on the moment of the reconcile ticks.
    for list in [&mut go, &mut ours] {
        let last = list.iter().rposition(|call| call[0] == "update").unwrap();
        let kept = list[last].clone();
        list.retain(|call| call[0] != "update");
        list.push(kept);
    }
    assert_eq!(ours, go);
}

/// What a pod with resources of its own gets: its containers' CPUs and memory nodes, and both state files
/// without the pod's id and the sums over it.
fn given_to_a_pod(kind: KubeletKind) -> Value {
    let mut options = options();
    options.config["featureGates"] = json!({ "PodLevelResourceManagers": true });
    options.config["topologyManagerScope"] = json!("pod");
    let node = TestNode::builder().options(options).kubelet(kind).start().unwrap();
    let mut whole = pod("first", None);
    let amounts = json!({ "cpu": "1", "memory": "64Mi" });
    whole["spec"]["resources"] = json!({ "requests": amounts, "limits": amounts });
    let container = &mut whole["spec"]["containers"][0];
    container["resources"] = json!({});
    let mut second = container.clone();
    second["name"] = json!("second");
    whole["spec"]["containers"].as_array_mut().unwrap().push(second);
    node.add_manifest("whole.json", &whole.to_string()).unwrap();
    let given = ["first", "second"].map(|name| {
        let id = node.wait_running(name, START).unwrap();
        (cpus_of(&node, &id), cgroup_file(&node, &id, "cpuset.mems"))
    });
    let files = ["cpu_manager_state", "memory_manager_state"].map(|name| {
        let text = state(&node, name);
        let whole: Value = serde_json::from_str(&text).unwrap();
        let uid = whole["podEntries"].as_object().and_then(|all| all.keys().next());
        let text = text.replace(uid.map_or("none", |uid| uid.as_str()), "uid");
        let mut shown: Value = serde_json::from_str(&text).unwrap();
        shown["checksum"] = Value::Null;
        shown
    });
    json!({ "given": given, "files": files })
}

#[test]
fn a_pod_with_resources_of_its_own_gets_what_the_go_kubelet_gives() {
    let (go, ours) = (given_to_a_pod(KubeletKind::Go), given_to_a_pod(KubeletKind::Rubelet));
    assert_eq!(ours, go);
    assert_eq!(ours["given"], json!([["1", "0"], ["1", "0"]]));
    assert!(ours["files"][0]["podEntries"]["uid"].is_object(), "{ours}");
}

/// The log of a kubelet that must not start.
fn refusal(node: &mut TestNode, kind: KubeletKind) -> String {
    node.launch_kubelet(kind).unwrap();
    eventually!(60, !node.kubelet().unwrap().is_running());
    let log = node.kubelet().unwrap().log().to_path_buf();
    node.kill_kubelet();
    std::fs::read_to_string(log).unwrap()
}

#[test]
fn state_that_cannot_be_used_is_refused_with_the_way_out_as_by_the_go_kubelet() {
    let mut node = TestNode::builder().options(options()).start().unwrap();
    let root = node.root_dir();
    std::fs::create_dir_all(&root).unwrap();
    let cases = [
        (
            "cpu_manager_state",
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
            r#"configured policy \"static\" differs from state checkpoint policy \"none\""#,
        ),
        (
            "cpu_manager_state",
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"1"}},"checksum":7}"#,
            "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries of type string",
        ),
        ("cpu_manager_state", "gone wrong", "invalid character 'g' looking for beginning of value"),
        (
            "memory_manager_state",
            r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#,
            r#"[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\""#,
        ),
        (
            "memory_manager_state",
            r#"{"policyName":"Static","machineState":{},"checksum":7}"#,
            "checkpoint is corrupted",
        ),
    ];
    for (file, text, cause) in cases {
        let owner = if file.starts_with("cpu") { "CPU" } else { "memory" };
        let kind_of = if file.starts_with("cpu") { "cpu" } else { "memory" };
        for kind in [KubeletKind::Go, KubeletKind::Rubelet] {
            for name in ["cpu_manager_state", "memory_manager_state"] {
                let _ = std::fs::remove_file(root.join(name));
            }
            std::fs::write(root.join(file), text).unwrap();
            let log = refusal(&mut node, kind);
            let path = root.join(file).display().to_string();
            let expected = format!(
                "start {kind_of} manager error: could not restore state from checkpoint: {cause}, please \
                 drain this node and delete the {owner} manager checkpoint file \\\"{path}\\\" before \
                 restarting Kubelet"
            );
            assert!(log.contains(&expected), "{kind:?} {file} {text}\n{expected}\n{log}");
            assert_eq!(
                std::fs::read_to_string(root.join(file)).unwrap(),
                text,
                "it stays as evidence"
            );
        }
    }
}
