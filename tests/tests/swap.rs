//! Swapping places: the Go kubelet and Rubelet take turns on one node with running pods of many
//! kinds. No container may restart, and no pod may stop being Ready under Rubelet.
//!
//! `ROUNDS=n` sets how often each takes over (default 2; `make swap-test` does 20).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::eventually;
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode,
};
use tests::observe::Observer;

const NAMESPACE: &str = "swap";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const DRIVER: &str = "swap.test";
const DEVICE: &str = "example.com/resource";
const STAYS: &str = "touch /tmp/up; trap 'exit 0' TERM; sleep 3600 & wait";

fn pod(name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    if !name.starts_with("static") {
        pod["spec"]["nodeName"] = json!("node1");
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    pod
}

fn container(extra: &Value) -> Value {
    let mut container = json!({ "name": "main", "image": IMAGE, "command": ["sh", "-c", STAYS] });
    for (key, value) in extra.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    container
}

fn one(extra: &Value) -> Value {
    json!({ "containers": [container(extra)] })
}

fn mounted(source: Value, command: &str) -> Value {
    let mut volume = source;
    volume["name"] = json!("v");
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let command = ["sh", "-c", command];
    let container = container(&json!({ "volumeMounts": mounts, "command": command }));
    json!({ "containers": [container], "volumes": [volume] })
}

/// All three kinds of probe, asked in this way.
fn probes(how: &Value) -> Value {
    let mut probe = how.clone();
    probe["periodSeconds"] = json!(1);
    // What an unready moment of the server would show is not the matter here.
    probe["timeoutSeconds"] = json!(20);
    json!({ "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe })
}

fn by_exec() -> Value {
    probes(&json!({ "exec": { "command": ["test", "-f", "/tmp/up"] } }))
}

fn agnhost(args: &[&str], how: &Value) -> Value {
    let mut extra = probes(how);
    (extra["image"], extra["command"], extra["args"]) = (json!(AGNHOST), json!(null), json!(args));
    one(&extra)
}

fn statics() -> Vec<Value> {
    vec![pod("static", one(&json!({}))), pod("static-probed", one(&by_exec()))]
}

/// A static pod whose manifest comes while Rubelet is in charge: the Go kubelet finds it running.
fn late() -> Value {
    pod("static-late", one(&by_exec()))
}

/// Whole CPUs are exclusive; half of one is kept back, so that the small pods fit beside.
fn options() -> KubeletOptions {
    KubeletOptions {
        own_devices: true,
        config: json!({ "cpuManagerPolicy": "static", "systemReserved": { "cpu": "500m" } }),
        ..KubeletOptions::default()
    }
}

/// Pods of many kinds, all of which stay.
fn pods() -> Vec<Value> {
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } });
    let amount = json!({ "cpu": "50m", "memory": "32Mi" });
    let whole = json!({ "cpu": "1", "memory": "32Mi" });
    let field = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    let claim = json!({ "persistentVolumeClaim": { "claimName": "files" } });
    let http = json!({ "httpGet": { "path": "/healthz", "port": 8080 } });
    let unready =
        json!({ "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 } });
    let once = format!("test -f /v/once || {{ touch /v/once; exit 3; }}; {STAYS}");
    let mut owned = pod("owned", one(&json!({})));
    owned["metadata"]["labels"] = json!({ "app": "owned", "pod-template-hash": "5d4f8c7b9" });
    owned["metadata"]["ownerReferences"] = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "name": "owned", "uid": "00000000-0000-4000-8000-000000000001", "controller": true }]);
    let mut done = pod("done", one(&json!({ "command": ["true"] })));
    done["spec"]["restartPolicy"] = json!("Never");
    vec![
        owned,
        done,
        pod("exec", one(&by_exec())),
        pod("http", agnhost(&["netexec", "--http-port=8080"], &http)),
        pod("tcp", agnhost(&["netexec"], &json!({ "tcpSocket": { "port": 8080 } }))),
        pod("grpc", agnhost(&["grpc-health-checking"], &json!({ "grpc": { "port": 5000 } }))),
        pod("unready", one(&unready)),
        pod("restarted", mounted(json!({ "emptyDir": {} }), &once)),
        pod(
            "sidecar",
            json!({
                "initContainers": [
                    { "name": "once", "image": IMAGE, "command": ["true"] },
                    lay_over(json!({ "name": "side", "image": IMAGE, "restartPolicy": "Always",
                        "command": ["sh", "-c", STAYS] }), &by_exec()),
                ],
                "containers": [container(&by_exec())],
            }),
        ),
        pod("exclusive", one(&json!({ "resources": { "limits": whole, "requests": whole } }))),
        pod("device", one(&json!({ "resources": { "limits": { DEVICE: "1" } } }))),
        pod("guaranteed", one(&json!({ "resources": { "limits": amount, "requests": amount } }))),
        pod("resized", one(&json!({ "resources": { "limits": whole, "requests": amount } }))),
        pod("scratch", mounted(json!({ "emptyDir": { "medium": "Memory" } }), STAYS)),
        pod("settings", mounted(json!({ "configMap": { "name": "settings" } }), STAYS)),
        pod("token", mounted(json!({ "projected": { "sources": [token] } }), STAYS)),
        pod("fields", mounted(json!({ "downwardAPI": { "items": [field] } }), STAYS)),
        pod("host", mounted(json!({ "hostPath": { "path": "/etc" } }), STAYS)),
        pod("claim", mounted(claim, STAYS)),
        pod("inline", mounted(json!({ "csi": { "driver": DRIVER } }), STAYS)),
    ]
}

fn lay_over(mut base: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

/// What a claim needs: its driver's object, the claim, and the volume that is bound to it.
fn make_storage(control: &ControlPlane) {
    let named = |kind: &str, spec: Value| {
        let metadata = json!({ "name": "files", "namespace": NAMESPACE });
        let mut object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata });
        object["spec"] = lay_over(
            json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "manual" }),
            &spec,
        );
        object
    };
    let amount = json!({ "storage": "16Mi" });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER },
        "spec": { "attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"] },
    });
    control.create(&class).unwrap();
    let claim = json!({ "volumeName": "files", "resources": { "requests": amount } });
    control.create(&named("PersistentVolumeClaim", claim)).unwrap();
    let uid = control.get(["pvc", "files", "-n", NAMESPACE]).unwrap()["metadata"]["uid"].clone();
    let volume = json!({
        "capacity": amount, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": { "name": "files", "namespace": NAMESPACE, "uid": uid },
        "csi": { "driver": DRIVER, "volumeHandle": "h-files" },
    });
    control.create(&named("PersistentVolume", volume)).unwrap();
    let bound = json!({ "phase": "Bound", "capacity": amount, "accessModes": ["ReadWriteOnce"] });
    let bound = json!({ "status": bound }).to_string();
    let args = ["patch", "pvc", "files", "-n", NAMESPACE, "--subresource=status", "-p", &bound];
    control.kubectl(args).unwrap();
}

/// Whether a pod is in the state in which it stays.
fn is_settled(name: &str, pod: &Value) -> bool {
    let main = &pod["status"]["containerStatuses"][0];
    match name {
        "done" => pod["status"]["phase"] == "Succeeded",
        "unready" => main["started"] == true,
        "restarted" => is_ready(pod) && main["restartCount"] == 1,
        _ => is_ready(pod),
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Ids of all containers of the swapped pods, by pod and name.
fn containers(node: &TestNode) -> BTreeMap<String, String> {
    let all = node.containers().unwrap();
    let named = all.iter().filter_map(|container| {
        let label = |key: &str| container["labels"][key].as_str().unwrap_or_default();
        let (pod, name) = (label("io.kubernetes.pod.name"), label("io.kubernetes.container.name"));
        let id = container["id"].as_str()?.to_owned();
        (!pod.starts_with("marker")).then(|| (format!("{pod}/{name}/{id}"), id))
    });
    named.collect()
}

/// What was given out: the CPUs on which the exclusive pod's process may run, and who has which
/// CPUs and devices by the state files.
fn given(node: &TestNode) -> Value {
    let inspect = |pod: &str| -> Value {
        let found = containers(node).into_iter().find(|(name, _)| name.starts_with(pod));
        let id = found.map(|(_, id)| id).unwrap_or_default();
        serde_json::from_str(&node.crictl(["inspect", &id]).unwrap()).unwrap()
    };
    let process = inspect("exclusive/")["info"]["pid"].as_i64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let state = |path: std::path::PathBuf| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let devices = state(node.devices_dir().join("kubelet_internal_checkpoint"));
    json!({
        "process": cpus.unwrap_or_default().trim(),
        "cpus": state(node.root_dir().join("cpu_manager_state"))["entries"],
        "devices": devices["Data"]["PodDeviceEntries"],
    })
}

fn mounts(node: &TestNode) -> Vec<String> {
    let root = node.root_dir();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The mount's number changes when something is unmounted and mounted again.
    let fields = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next().unwrap_or_default().to_owned();
        let point = fields.nth(3).unwrap_or_default().to_owned();
        (id, point)
    };
    let below = table.lines().map(fields).filter(|(_, point)| {
        std::path::Path::new(point).starts_with(&root) && !point.contains("marker")
    });
    below.map(|(id, point)| format!("{id} {point}")).collect()
}

/// What must be the same before and after: everything but the version that was seen.
fn shown(pod: &Value) -> Value {
    let mut status = pod["status"].clone();
    if let Some(fields) = status.as_object_mut() {
        // What the Go kubelet shows here differs from run to run on cgroup v1.
        fields.remove("resources");
    }
    status
}

struct Node {
    observer: Observer,
    node: TestNode,
    driver: CsiDriver,
    _runtime: tokio::runtime::Runtime,
    control: Arc<ControlPlane>,
    data: std::path::PathBuf,
    /// Whether the late static pod is there.
    late: bool,
    _plugin: Service,
}

impl Node {
    fn start() -> Node {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let named = |kind: &str, name: &str, namespace: Option<&str>| {
            let metadata = json!({ "name": name, "namespace": namespace });
            json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })
        };
        control.create(&named("Namespace", NAMESPACE, None)).unwrap();
        control.create(&named("ServiceAccount", "default", Some(NAMESPACE))).unwrap();
        let mut settings = named("ConfigMap", "settings", Some(NAMESPACE));
        settings["data"] = json!({ "a": "1" });
        control.create(&settings).unwrap();
        make_storage(&control);
        let observer = Observer::start(&control, NAMESPACE).unwrap();
        let node = TestNode::builder()
            .kubelet(KubeletKind::Go)
            .options(options())
            .image(AGNHOST.trim_start_matches("registry.k8s.io/"))
            .join(&control)
            .start()
            .unwrap();
        let data = std::env::temp_dir().join(format!("rubelet-swap-{}", std::process::id()));
        let mut config = CsiDriverConfig::new(DRIVER, &data);
        config.registry = Some(node.root_dir().join("plugins_registry"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let driver = runtime.block_on(async { CsiDriver::start(config) }).unwrap();
        eventually!(60, {
            let found = control.get(["csinode", "node1"]);
            found.is_ok_and(|node| node["spec"]["drivers"][0]["name"] == DRIVER)
        });
        let mut plugin = node.command(node.part("sample-device-plugin").unwrap()).unwrap();
        plugin.env("PLUGIN_SOCK_DIR", "/var/lib/kubelet/device-plugins");
        let plugin = node.start_beside("device-plugin", plugin).unwrap();
        eventually!(60, {
            let found = control.get(["node", "node1"]);
            found.is_ok_and(|node| node["status"]["allocatable"][DEVICE] == "2")
        });
        let mut node = Node {
            observer,
            node,
            driver,
            _runtime: runtime,
            control,
            data,
            late: false,
            _plugin: plugin,
        };
        statics().iter().for_each(|fixed| node.add_static(fixed));
        for pod in pods() {
            node.control.create(&pod).unwrap();
        }
        for name in node.names() {
            eventually!(120, node.observer.pod(&name).is_some_and(|pod| is_settled(&name, &pod)));
        }
        node.resize();
        node
    }

    fn add_static(&self, pod: &Value) {
        let file = format!("{}.json", pod["metadata"]["name"].as_str().unwrap());
        self.node.add_manifest(&file, &pod.to_string()).unwrap();
    }

    /// One more static pod, which the Go kubelet has not seen yet.
    fn add_late(&mut self) {
        self.late = true;
        self.add_static(&late());
        eventually!(60, self.observer.pod("static-late-node1").is_some_and(|pod| is_ready(&pod)));
    }

    /// One pod got other resources than it was created with (not a Guaranteed one: those have their
    /// CPUs from the static policy, which does not resize them).
    fn resize(&mut self) {
        let resources = json!({ "limits": { "cpu": "900m" }, "requests": { "cpu": "60m" } });
        let changed = json!({ "name": "main", "resources": resources });
        let patch = json!({ "spec": { "containers": [changed] } }).to_string();
        let args =
            ["patch", "pod", "resized", "-n", NAMESPACE, "--subresource=resize", "-p", &patch];
        self.control.kubectl(args).unwrap();
        eventually!(
            60,
            self.observer.pod("resized").is_some_and(|pod| {
                let main = &pod["status"]["containerStatuses"][0];
                main["resources"]["limits"]["cpu"] == "900m"
                    && pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
            })
        );
    }

    fn names(&self) -> Vec<String> {
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let fixed = statics().into_iter().chain(self.late.then(late));
        let fixed: Vec<_> = fixed.map(|pod| format!("{}-node1", name(&pod))).collect();
        pods().iter().map(name).chain(fixed).collect()
    }

    fn statuses(&self) -> BTreeMap<String, Value> {
        let status = |name: &String| self.observer.pod(name).map(|pod| shown(&pod));
        self.names().iter().filter_map(|name| Some((name.clone(), status(name)?))).collect()
    }

    /// Let `kind` take over, and prove that it works by a pod that comes and goes.
    fn hand_over(&mut self, kind: KubeletKind, round: usize) {
        self.node.stop_kubelet();
        let before = containers(&self.node);
        let mounted = mounts(&self.node);
        let gave = given(&self.node);
        let calls = self.driver.calls().len();
        let statuses = self.statuses();
        let seen: BTreeMap<String, usize> = self
            .names()
            .into_iter()
            .map(|name| (name.clone(), self.observer.steps(&name).len()))
            .collect();
        self.node.start_kubelet(kind).unwrap();
        let marker = format!("marker-{round}-{kind:?}").to_lowercase();
        self.control.create(&pod(&marker, one(&by_exec()))).unwrap();
        eventually!(60, self.observer.pod(&marker).is_some_and(|pod| is_ready(&pod)));
        self.control.kubectl(["delete", "pod", &marker, "-n", NAMESPACE, "--wait=false"]).unwrap();
        eventually!(60, self.observer.is_gone(&marker));

        assert_eq!(containers(&self.node), before, "round {round}: {kind:?} touched containers");
        assert_eq!(mounts(&self.node), mounted, "round {round}: {kind:?} touched mounts");
        assert_eq!(given(&self.node), gave, "round {round}: {kind:?} gave out otherwise");
        // Both ask the driver once more for what is there already, and it does nothing; nobody may
        // ask it to take anything away.
        let undone: Vec<String> = self.driver.calls().split_off(calls);
        let undone: Vec<&String> =
            undone.iter().filter(|call| call.starts_with("NodeUn")).collect();
        assert_eq!(undone, [] as [&String; 0], "round {round}: {kind:?} took a volume away");
        if kind == KubeletKind::Go {
            // It lets Ready fall for static, sidecar and probed pods when it starts.
            for name in self.names() {
                eventually!(
                    60,
                    self.observer.pod(&name).is_some_and(|pod| is_settled(&name, &pod))
                );
            }
            return;
        }
        for (name, already) in seen {
            let steps = self.observer.steps(&name);
            assert_eq!(
                steps.get(already..).unwrap_or_default(),
                [] as [Value; 0],
                "round {round}: the status of {name} moved under {kind:?}"
            );
        }
        assert_eq!(self.statuses(), statuses, "round {round}: {kind:?} changed a status");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.node.stop_kubelet();
        drop(std::fs::remove_dir_all(&self.data));
    }
}

#[test]
fn kubelets_take_turns_without_touching_a_container() {
    let rounds = std::env::var("ROUNDS").map_or(2, |rounds| rounds.parse().unwrap());
    let other = KubeletKind::from_env().unwrap();
    let mut node = Node::start();
    for round in 0..rounds {
        node.hand_over(other, round);
        if round == 0 {
            node.add_late();
        }
        node.hand_over(KubeletKind::Go, round);
    }
}
