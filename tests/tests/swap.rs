//! Swapping places: the Go kubelet and Rubelet take turns on one node with running pods of many
//! kinds. No container may restart, and no pod may stop being Ready under Rubelet.
//!
//! `ROUNDS=n` sets how often each takes over (default 1; `make swap-test` does 20).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use testkit::eventually;
use testkit::real::{ControlPlane, ControlPlaneOptions, KubeletKind, TestNode};
use tests::observe::Observer;

const NAMESPACE: &str = "swap";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const STAYS: &str = "touch /tmp/up; trap 'exit 0' TERM; sleep 3600 & wait";

fn pod(name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    if name != "static" {
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

/// Pods of many kinds, all of which stay.
fn pods() -> Vec<Value> {
    let probe = json!({ "exec": { "command": ["test", "-f", "/tmp/up"] }, "periodSeconds": 1 });
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let mounted = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        json!({ "containers": [container(&json!({ "volumeMounts": mounts }))], "volumes": [volume] })
    };
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } });
    let amount = json!({ "cpu": "50m", "memory": "32Mi" });
    vec![
        pod("plain", json!({ "containers": [container(&json!({}))] })),
        pod(
            "probed",
            json!({ "containers": [container(&json!({
            "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe,
        }))] }),
        ),
        pod(
            "sidecar",
            json!({
                "initContainers": [
                    { "name": "once", "image": IMAGE, "command": ["true"] },
                    { "name": "side", "image": IMAGE, "command": ["sh", "-c", STAYS],
                      "restartPolicy": "Always", "readinessProbe": probe },
                ],
                "containers": [container(&json!({}))],
            }),
        ),
        pod(
            "guaranteed",
            json!({ "containers": [container(&json!({
            "resources": { "limits": amount, "requests": amount },
        }))] }),
        ),
        pod("scratch", mounted(json!({ "emptyDir": { "medium": "Memory" } }))),
        pod("settings", mounted(json!({ "configMap": { "name": "settings" } }))),
        pod("token", mounted(json!({ "projected": { "sources": [token] } }))),
    ]
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

struct Node {
    observer: Observer,
    node: TestNode,
    control: Arc<ControlPlane>,
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
        let observer = Observer::start(&control, NAMESPACE).unwrap();
        let mut node = TestNode::builder().kubelet(KubeletKind::Go).join(&control).start().unwrap();
        let fixed = pod("static", json!({ "containers": [container(&json!({}))] }));
        node.add_manifest("static.json", &fixed.to_string()).unwrap();
        for pod in pods() {
            control.create(&pod).unwrap();
        }
        let names = ["static-node1", "plain", "probed", "sidecar", "guaranteed", "scratch"];
        for name in names.iter().chain(&["settings", "token"]) {
            eventually!(90, observer.pod(name).is_some_and(|pod| is_ready(&pod)));
        }
        assert!(node.kubelet().is_some());
        Node { observer, node, control }
    }

    fn names(&self) -> Vec<String> {
        let own = pods()
            .into_iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned));
        own.chain(["static-node1".to_owned()]).collect()
    }

    /// Let `kind` take over, and prove that it works by a pod that comes and goes.
    fn hand_over(&mut self, kind: KubeletKind, round: usize) {
        let before = containers(&self.node);
        let mounted = mounts(&self.node);
        let seen: BTreeMap<String, usize> = self
            .names()
            .into_iter()
            .map(|name| (name.clone(), self.observer.steps(&name).len()))
            .collect();
        self.node.stop_kubelet();
        self.node.start_kubelet(kind).unwrap();
        let marker = format!("marker-{round}-{kind:?}").to_lowercase();
        self.control
            .create(&pod(&marker, json!({ "containers": [container(&json!({}))] })))
            .unwrap();
        eventually!(60, self.observer.pod(&marker).is_some_and(|pod| is_ready(&pod)));
        self.control.kubectl(["delete", "pod", &marker, "-n", NAMESPACE, "--wait=false"]).unwrap();
        eventually!(60, self.observer.is_gone(&marker));

        assert_eq!(containers(&self.node), before, "round {round}: {kind:?} touched containers");
        assert_eq!(mounts(&self.node), mounted, "round {round}: {kind:?} touched mounts");
        if kind == KubeletKind::Go {
            // It lets Ready fall for static, sidecar and probed pods when it starts.
            return;
        }
        for (name, already) in seen {
            for step in self.observer.steps(&name).iter().skip(already) {
                assert_eq!(
                    step["conditions"]["Ready"],
                    json!(["True", ""]),
                    "round {round}: {name} was not Ready under {kind:?}: {step}"
                );
            }
        }
    }
}

#[test]
fn kubelets_take_turns_without_touching_a_container() {
    let rounds = std::env::var("ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let other = KubeletKind::from_env().unwrap();
    let mut node = Node::start();
    for round in 0..rounds {
        node.hand_over(other, round);
        node.hand_over(KubeletKind::Go, round);
    }
}
