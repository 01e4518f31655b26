//! The Go kubelet and ours side by side: the same pods on two nodes of one cluster, each with a
//! runtime of its own, so that both can be asked the same.
//!
//! What must differ is written alike on both sides: nodes are `node1` and `node2`, namespaces
//! `aa1` and `aa2`; [`PairedNode::own`] puts the right one in, [`PairedNode::common`] takes it out again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
};

use crate::ask::Ask;
use crate::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(120);
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// Writes what log readers have trouble with: both streams, long lines, bytes that are no text,
/// carriage returns, empty lines and an end without one. The runtime copies each stream by itself, so
/// that only a pause puts one behind the other.
const TALK: &str = r"for i in $(seq 60); do echo out $i; done; sleep 1
    for i in $(seq 60); do echo err $i >&2; done; sleep 1
    head -c 40000 /dev/zero | tr '\0' x; echo; printf 'a\r\n\n\001\377\n'
    head -c 16384 /dev/zero | tr '\0' y; echo; sleep 1; echo last >&2; sleep 1; printf 'no end'
    sleep 36000";

/// Containers that run, by pod.
const RUNNING: [(&str, &str); 11] = [
    ("once", "c"),
    ("talk", "c"),
    ("leave", "c"),
    ("run", "c"),
    ("run", "quiet"),
    ("term", "c"),
    ("init", "c"),
    ("init", "side"),
    ("eph", "c"),
    ("eph", "long"),
    ("still", "c"),
];

/// Both kubelets and their cluster.
#[derive(Debug)]
pub struct NodePair {
    /// The Go kubelet.
    pub go: PairedNode,
    /// Ours.
    pub ours: PairedNode,
    /// Their cluster.
    pub control: Arc<ControlPlane>,
}

/// One of the two.
#[derive(Debug)]
pub struct PairedNode {
    /// Its node.
    pub node: TestNode,
    /// `1` or `2`.
    digit: char,
    /// The port of its read-only API.
    pub read_only: u16,
    /// UIDs of its pods by name, and ids of its containers by pod and container.
    ids: BTreeMap<String, String>,
}

impl NodePair {
    /// Start everything; `config` is laid over the configuration of both kubelets.
    pub fn start(config: &Value) -> anyhow::Result<NodePair> {
        let mut node_pair = NodePair::without_pods(config)?;
        for twin in [&node_pair.go, &node_pair.ours] {
            twin.node.add_manifest("still.json", &still().to_string())?;
            for pod in pods(twin.digit) {
                node_pair.control.create(&pod)?;
            }
            debug(&node_pair.control, twin.digit)?;
        }
        node_pair.settle()?;
        Ok(node_pair)
    }

    /// Start both kubelets and their cluster; `config` is laid over the configuration of both.
    pub fn without_pods(config: &Value) -> anyhow::Result<NodePair> {
        let options = ControlPlaneOptions {
            nodes: vec!["node1".to_owned(), "node2".to_owned()],
            users: ["nobody", "reader", "streamer"].map(str::to_owned).to_vec(),
            ..ControlPlaneOptions::default()
        };
        let control = Arc::new(ControlPlane::start(&options)?);
        grant(&control)?;
        let start = |kind, digit: char| -> anyhow::Result<PairedNode> {
            let mut merged = control.guarded();
            merged["address"] = "127.0.0.1".into();
            merged["authentication"]["anonymous"]["enabled"] = true.into();
            for (key, value) in config.as_object().into_iter().flatten() {
                merged[key] = value.clone();
            }
            let options = KubeletOptions {
                node: format!("node{digit}"),
                config: merged,
                ..KubeletOptions::default()
            };
            let mut node = TestNode::builder().options(options).join(&control).start()?;
            let read_only = node.slot().free_port()?;
            node.slot().release_ports();
            node.configure(&json!({"readOnlyPort": read_only}));
            // cAdvisor looks for containerd at its usual place unless it is told otherwise.
            let socket = node.runtime().socket().display().to_string();
            node.add_argument(&format!("--containerd={socket}"));
            node.add_argument("--containerd-namespace=k8s.io");
            node.start_kubelet(kind)?;
            control.kubectl(["create", "namespace", &format!("aa{digit}")])?;
            Ok(PairedNode { node, digit, read_only, ids: BTreeMap::new() })
        };
        let go = start(KubeletKind::Go, '1')?;
        let ours = start(KubeletKind::Rubelet, '2')?;
        Ok(NodePair { go, ours, control })
    }

    /// Start both kubelets again with this laid over their configuration.
    pub fn restart(&mut self, overlay: &Value) -> anyhow::Result<()> {
        for (twin, kind) in
            [(&mut self.go, KubeletKind::Go), (&mut self.ours, KubeletKind::Rubelet)]
        {
            twin.node.stop_kubelet();
            twin.node.configure(overlay);
            twin.node.start_kubelet(kind)?;
        }
        self.settle()
    }

    /// Wait until every pod of both nodes is in its last state, and learn the ids.
    fn settle(&mut self) -> anyhow::Result<()> {
        let control = Arc::clone(&self.control);
        for twin in [&mut self.go, &mut self.ours] {
            let space = format!("aa{}", twin.digit);
            let status = |name: &str| control.get(["pod", "-n", &space, name]).ok();
            let state = |name: &str, index: usize, kind: &str| {
                status(name).is_some_and(|pod| {
                    pod["status"]["containerStatuses"][index]["state"][kind].is_object()
                })
            };
            let reason = |name: &str, wanted: &str| {
                status(name).is_some_and(|pod| {
                    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == wanted
                })
            };
            for name in ["run", "term", "init", "eph", "talk", "leave"] {
                eventually(PATIENCE, &format!("{name} runs"), || state(name, 0, "running"))?;
            }
            eventually(PATIENCE, "once runs again", || {
                let known = status("once").unwrap_or_default();
                let known = &known["status"]["containerStatuses"][0];
                known["state"]["running"].is_object() && known["restartCount"] == 1
            })?;
            for name in ["done", "start"] {
                eventually(PATIENCE, &format!("{name} ended"), || state(name, 0, "terminated"))?;
            }
            eventually(PATIENCE, "leave was deleted", || {
                let deleted = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
                status("leave").is_some_and(|pod| deleted(&pod)) || {
                    let wanted = ["delete", "pod", "leave", "-n", &space, "--wait=false"];
                    control.kubectl(wanted).is_err()
                }
            })?;
            eventually(PATIENCE, "deny failed", || {
                status("deny").is_some_and(|pod| pod["status"]["phase"] == "Failed")
            })?;
            eventually(PATIENCE, "hold waits", || reason("hold", "PodInitializing"))?;
            eventually(PATIENCE, "conf waits", || reason("conf", "CreateContainerConfigError"))?;
            eventually(PATIENCE, "both ephemeral containers are known", || {
                let state = |pod: &Value, name: &str, kind: &str| {
                    let list = pod["status"]["ephemeralContainerStatuses"].as_array();
                    let mut list = list.into_iter().flatten();
                    list.any(|one| one["name"] == name && one["state"][kind].is_object())
                };
                status("eph").is_some_and(|pod| {
                    state(&pod, "long", "running") && state(&pod, "short", "terminated")
                })
            })?;
            eventually(PATIENCE, "again is backed off", || reason("again", "CrashLoopBackOff"))?;
            eventually(PATIENCE, "pull is backed off", || reason("pull", "ImagePullBackOff"))?;
            let still = format!("still-node{}", twin.digit);
            eventually(PATIENCE, "the static pod runs", || {
                control
                    .get(["pod", "-n", "kube-system", &still])
                    .is_ok_and(|pod| pod["status"]["phase"] == "Running")
            })?;
            twin.learn(&control)?;
            eventually(PATIENCE, "usage of every container is known", || {
                twin.is_measured().unwrap_or(false)
            })?;
        }
        Ok(())
    }
}

impl PairedNode {
    /// The port of its health checks.
    #[must_use]
    pub fn health(&self) -> u16 {
        self.node.health_port()
    }

    /// The port of its HTTPS API.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.node.api_port()
    }

    /// A text about the common names with this twin's own: `aa1`, `node1`, and `UID(name)`.
    #[must_use]
    pub fn own(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, id) in &self.ids {
            text = text.replace(&format!("<{name}>"), id);
        }
        let digit = self.digit.to_string();
        text.replace("aa1", &format!("aa{digit}"))
            .replace("%61a1", &format!("%61a{digit}"))
            .replace("node1", &format!("node{digit}"))
    }

    /// The reverse of [`PairedNode::own`].
    #[must_use]
    pub fn common(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, id) in &self.ids {
            text = text.replace(id.as_str(), &format!("<{name}>"));
        }
        let digit = self.digit.to_string();
        text.replace(&format!("aa{digit}"), "aa1").replace(&format!("node{digit}"), "node1")
    }

    /// A page about the kubelet itself, with a word for each place and port that is this twin's own.
    #[must_use]
    pub fn placeless(&self, text: &str) -> String {
        let slot = self.node.slot();
        let mut text = self.common(text).replace(&slot.dir().display().to_string(), "DIR");
        for port in [self.port(), self.health(), self.read_only] {
            text = text.replace(&port.to_string(), "PORT");
        }
        text.replace(slot.cgroup().trim_matches('/'), "CGROUP")
    }

    /// Whether every running container is on the statistics pages with all that is measured of it:
    /// upstream finds a new cgroup within a minute, and until then has only the runtime's word.
    fn is_measured(&self) -> anyhow::Result<bool> {
        let wire = Wire::plain()?;
        let page = |path: &str| -> anyhow::Result<String> {
            Ok(wire.send(self.port(), &Ask::new("GET", path).bytes(), false)?.text())
        };
        let cgroups = page("/metrics/cadvisor")?;
        let summary: Value = serde_json::from_str(&page("/stats/summary")?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let measured = |name: &str, container: &str| {
            let pod = pods.iter().find(|pod| {
                let full = pod["podRef"]["name"].as_str().unwrap_or_default();
                full.split("-node").next() == Some(name)
            });
            let containers = pod.and_then(|pod| pod["containers"].as_array());
            let found = containers
                .and_then(|list| list.iter().find(|one| one["name"] == container))
                .is_some_and(|one| one["cpu"]["psi"].is_object() && one["logs"].is_object());
            let id = self.ids.get(&format!("cid-{name}-{container}"));
            found && id.is_some_and(|id| cgroups.contains(&format!("name=\"{id}\"")))
        };
        let volume = |pod: &Value| pod["podRef"]["name"] != "run" || pod["volume"].is_array();
        Ok(RUNNING.iter().all(|(name, container)| measured(name, container))
            && pods.iter().all(volume))
    }

    /// Learn the ids of pods and containers anew; some change with each restart.
    pub fn learn(&mut self, control: &ControlPlane) -> anyhow::Result<()> {
        self.ids.clear();
        for space in [format!("aa{}", self.digit), "kube-system".to_owned()] {
            let list = control.get(["pod", "-n", &space])?;
            for pod in list["items"].as_array().into_iter().flatten() {
                if pod["spec"]["nodeName"] != format!("node{}", self.digit).as_str() {
                    continue;
                }
                let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
                let name = name.split("-node").next().unwrap_or(name);
                let uid = pod["metadata"]["uid"].as_str().context("a pod without a UID")?;
                self.ids.insert(format!("uid-{name}"), uid.to_owned());
                let own = &pod["metadata"]["annotations"]["kubernetes.io/config.hash"];
                if let Some(own) = own.as_str() {
                    self.ids.insert(format!("own-{name}"), own.to_owned());
                }
                let statuses =
                    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
                for status in statuses.iter().flat_map(|s| pod["status"][s].as_array()).flatten() {
                    let container = status["name"].as_str().unwrap_or_default();
                    if let Some(id) = status["containerID"].as_str() {
                        let id = id.trim_start_matches("containerd://").to_owned();
                        self.ids.insert(format!("cid-{name}-{container}"), id);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Adds two ephemeral containers to the pod `eph`: one that runs, one that ends.
fn debug(control: &ControlPlane, digit: char) -> anyhow::Result<()> {
    let container = |name: &str, script: &str| json!({"name": name, "image": BUSYBOX, "command": ["sh", "-c", script]});
    let patch = json!({"spec": {"ephemeralContainers": [
        container("long", "echo long; sleep 36000"), container("short", "echo short; exit 4")]}});
    let (space, patch) = (format!("aa{digit}"), patch.to_string());
    control.kubectl([
        "patch",
        "pod",
        "eph",
        "-n",
        &space,
        "--subresource=ephemeralcontainers",
        "--patch",
        &patch,
    ])?;
    Ok(())
}

/// Who may do what: `reader` reads everything but the proxy, `streamer` may use the proxy.
fn grant(control: &ControlPlane) -> anyhow::Result<()> {
    let fine =
        "nodes/pods,nodes/metrics,nodes/stats,nodes/log,nodes/healthz,nodes/configz,nodes/statusz";
    for (name, verbs, resources) in
        [("reader", "get", fine), ("streamer", "get,create", "nodes/proxy")]
    {
        let (verbs, resources) = (format!("--verb={verbs}"), format!("--resource={resources}"));
        control.kubectl(["create", "clusterrole", name, &verbs, &resources])?;
        let (role, user) = (format!("--clusterrole={name}"), format!("--user={name}"));
        control.kubectl(["create", "clusterrolebinding", name, &role, &user])?;
    }
    Ok(())
}

fn still() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "still", "namespace": "kube-system"},
        "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", "echo still; sleep 36000"]}]}})
}

fn pods(digit: char) -> Vec<Value> {
    let shell = |script: &str| json!(["sh", "-c", script]);
    let pod = |name: &str, mut spec: Value| {
        spec["nodeName"] = format!("node{digit}").into();
        spec["automountServiceAccountToken"] = false.into();
        if spec["terminationGracePeriodSeconds"].is_null() {
            spec["terminationGracePeriodSeconds"] = 1.into();
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array_mut().into_iter().flatten() {
                if container["image"].is_null() {
                    container["image"] = BUSYBOX.into();
                }
            }
        }
        let space = format!("aa{digit}");
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": space}, "spec": spec})
    };
    vec![
        pod(
            "run",
            json!({"containers": [
                {"name": "c", "command": shell("echo one; sleep 1; echo two >&2; sleep 1; echo three; httpd -f -p 8080"),
                    "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}},
                    "livenessProbe": {"exec": {"command": ["true"]}},
                    "readinessProbe": {"httpGet": {"port": 8080, "path": "/bin/true"}},
                    "startupProbe": {"tcpSocket": {"port": 8080}}},
                {"name": "quiet", "command": shell("sleep 36000"),
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        pod(
            "term",
            json!({"containers": [
                {"name": "c", "command": shell("cat"), "stdin": true, "tty": true}]}),
        ),
        pod(
            "init",
            json!({"initContainers": [
                {"name": "first", "command": shell("echo first; exit 0")},
                {"name": "side", "command": shell("sleep 36000"), "restartPolicy": "Always"}],
                "containers": [{"name": "c", "command": shell("sleep 36000")}]}),
        ),
        pod("eph", json!({"containers": [{"name": "c", "command": shell("sleep 36000")}]})),
        pod(
            "done",
            json!({"restartPolicy": "Never", "containers": [
                {"name": "c", "command": shell("echo over; exit 0")}]}),
        ),
        pod(
            "again",
            json!({"containers": [{"name": "c", "command": shell("echo again; exit 3")}]}),
        ),
        pod(
            "pull",
            json!({"containers": [
                {"name": "c", "image": "registry.k8s.io/no-such-image:1"}]}),
        ),
        pod(
            "once",
            json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "command": shell("if [ -f /v/x ]; then echo second; sleep 36000; fi; touch /v/x; echo first; sleep 1; echo late >&2; exit 7")}],
                "volumes": [{"name": "v", "emptyDir": {}}]}),
        ),
        pod("talk", json!({"containers": [{"name": "c", "command": shell(TALK)}]})),
        pod(
            "leave",
            json!({"terminationGracePeriodSeconds": 3600, "containers": [
                {"name": "c", "command": shell("trap '' TERM; echo stays; while true; do sleep 5; done")}]}),
        ),
        pod(
            "hold",
            json!({"initContainers": [{"name": "first", "command": shell("echo holds; sleep 36000")}],
                "containers": [{"name": "c", "command": shell("sleep 36000")}]}),
        ),
        pod(
            "start",
            json!({"restartPolicy": "Never", "containers": [
                {"name": "c", "command": ["/no/such/program"]}]}),
        ),
        pod(
            "conf",
            json!({"containers": [{"name": "c", "command": shell("sleep 36000"),
                "envFrom": [{"configMapRef": {"name": "none"}}]}]}),
        ),
        pod(
            "deny",
            json!({"nodeSelector": {"no": "such"}, "containers": [
                {"name": "c", "command": shell("sleep 36000")}]}),
        ),
    ]
}
