//! A whole cluster: etcd, API server, controller manager, scheduler, and nodes with one kubelet each.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some,
};

/// How long a step may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A busybox image that every node has.
pub const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// A pause image that every node has.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    // In the order in which they must go.
    nodes: Vec<TestNode>,
    control: Arc<ControlPlane>,
}

impl Cluster {
    /// Start the control plane and `count` nodes, `node1` and so on, each with a kubelet of this kind.
    pub fn start(kind: KubeletKind, count: usize) -> anyhow::Result<Cluster> {
        let names: Vec<String> = (1..=count).map(|index| format!("node{index}")).collect();
        let control = ControlPlane::start(&ControlPlaneOptions {
            nodes: names.clone(),
            disabled_admission: Vec::new(),
            controller_manager: true,
            scheduler: true,
            ..ControlPlaneOptions::default()
        })?;
        let control = Arc::new(control);
        let start_node = |node: String| {
            let options = KubeletOptions {
                node,
                config: json!({ "clusterDNS": ["10.0.0.10"], "clusterDomain": "cluster.local" }),
                ..KubeletOptions::default()
            };
            TestNode::builder().kubelet(kind).options(options).join(&control).start()
        };
        let nodes: Vec<anyhow::Result<TestNode>> = std::thread::scope(|scope| {
            let starting: Vec<_> =
                names.into_iter().map(|name| scope.spawn(|| start_node(name))).collect();
            starting
                .into_iter()
                .map(|node| node.join().unwrap_or_else(|_| anyhow::bail!("starting a node")))
                .collect()
        });
        Ok(Cluster { nodes: nodes.into_iter().collect::<anyhow::Result<_>>()?, control })
    }

    /// The control plane.
    #[must_use]
    pub fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[TestNode] {
        &self.nodes
    }

    /// The first node.
    pub fn node(&self) -> anyhow::Result<&TestNode> {
        self.nodes.first().context("a cluster without nodes")
    }

    /// A namespace of one's own, ready for pods.
    pub fn namespace(&self, name: &str) -> anyhow::Result<Space<'_>> {
        self.control.kubectl(["create", "namespace", name])?;
        let space = Space { control: &self.control, name: name.to_owned() };
        space.wait("service account default", || space.get(&["serviceaccount", "default"]).ok())?;
        Ok(space)
    }
}

/// One namespace of a control plane.
#[derive(Debug, Clone)]
pub struct Space<'a> {
    control: &'a ControlPlane,
    name: String,
}

impl<'a> Space<'a> {
    /// The namespace `default`.
    #[must_use]
    pub fn default_of(control: &'a ControlPlane) -> Space<'a> {
        Space { control, name: "default".to_owned() }
    }

    /// Run kubectl in the namespace.
    pub fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let place = ["--namespace", self.name.as_str()];
        self.control.kubectl(place.into_iter().chain(args.iter().copied()))
    }

    /// An object as JSON.
    pub fn get(&self, args: &[&str]) -> anyhow::Result<Value> {
        let args = ["--namespace", self.name.as_str()].into_iter().chain(args.iter().copied());
        self.control.get(args)
    }

    /// Create an object in the namespace.
    pub fn create(&self, mut object: Value) -> anyhow::Result<()> {
        object["metadata"]["namespace"] = self.name.clone().into();
        self.control.create(&object)
    }

    /// Create a pod of the shortest form, with `spec` laid over it.
    pub fn create_pod(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "terminationGracePeriodSeconds": 1 },
        });
        if let (Some(own), Value::Object(given)) = (pod["spec"].as_object_mut(), spec) {
            own.extend(given);
        }
        self.create(pod)
    }

    /// The pods that a selector finds.
    pub fn pods(&self, selector: &str) -> anyhow::Result<Vec<Value>> {
        let mut list = self.get(&["pods", "--selector", selector])?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// A pod, once the condition holds for it; fails with the pod as it was last.
    pub fn wait_pod(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let mut last = Value::Null;
        let found = eventually_some(PATIENCE, &format!("pod {name}: {what}"), || {
            last = self.get(&["pod", name]).ok()?;
            condition(&last).then(|| last.clone())
        });
        found.with_context(|| format!("its status: {}", last["status"]))
    }

    /// A pod, once it is ready.
    pub fn wait_ready(&self, name: &str) -> anyhow::Result<Value> {
        self.wait_pod(name, "ready", |pod| condition(pod, "Ready") == "True")
    }

    /// Wait until an object is gone.
    pub fn wait_gone(&self, kind: &str, name: &str) -> anyhow::Result<()> {
        self.wait(&format!("{kind} {name} is gone"), || {
            let found = self.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "name"]);
            found.ok()?.trim().is_empty().then_some(())
        })
    }

    /// What a probe finds, within the usual patience.
    pub fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
        eventually_some(PATIENCE, what, probe)
    }

    /// The events about an object, oldest first: type, reason and message.
    pub fn events(&self, name: &str) -> anyhow::Result<Vec<(String, String, String)>> {
        let selector = format!("involvedObject.name={name}");
        let list = self.get(&["events", "--field-selector", &selector])?;
        let mut events = list["items"].as_array().cloned().unwrap_or_default();
        // The name ends with the moment in hexadecimal nanoseconds: finer than the seconds inside.
        events.sort_by_key(|e| {
            let name = e["metadata"]["name"].as_str().unwrap_or_default();
            name.rsplit_once('.').map(|(_, nanoseconds)| nanoseconds.to_owned())
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(events
            .iter()
            .map(|e| (text(&e["type"]), text(&e["reason"]), text(&e["message"])))
            .collect())
    }

    /// The reasons of those events.
    pub fn reasons(&self, name: &str) -> anyhow::Result<Vec<String>> {
        Ok(self.events(name)?.into_iter().map(|(_, reason, _)| reason).collect())
    }

    /// Wait until the reasons of an object's events are these, in this order. That the scheduler had
    /// to try more than once, because of what else runs on the node, does not count.
    pub fn wait_reasons(&self, name: &str, wanted: &[&str]) -> anyhow::Result<()> {
        let mut last = Vec::new();
        let same = self.wait(&format!("events of {name}"), || {
            last = self.reasons(name).ok()?;
            last.retain(|reason| reason != "FailedScheduling");
            (last == wanted).then_some(())
        });
        same.with_context(|| format!("wanted {wanted:?}, found {last:?}"))
    }
}

/// The status of a condition of an object; empty if it is not there.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|c| c["type"] == kind));
    found.and_then(|c| c["status"].as_str()).unwrap_or_default()
}

/// The only container status of a pod with one container.
#[must_use]
pub fn status_of(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The id of a container as the runtime has it.
pub fn runtime_id(status: &Value) -> anyhow::Result<&str> {
    let id = status["containerID"].as_str().context("no container id")?;
    Ok(id.split_once("://").map_or(id, |(_, id)| id))
}

/// What a shell command prints inside a container.
pub fn shell(node: &TestNode, id: &str, command: &str) -> anyhow::Result<String> {
    let text = node.crictl(["exec", id, "sh", "-c", command])?;
    ensure!(!text.is_empty(), "{command:?} printed nothing");
    Ok(text.trim().to_owned())
}
