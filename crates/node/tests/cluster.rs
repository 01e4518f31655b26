//! The node against a real API server; only the runtime is a fake.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use api::core::v1::Node;
use async_trait::async_trait;
use cri::api::{
    Image, RuntimeCondition, RuntimeFeatures, RuntimeHandler, RuntimeHandlerFeatures,
    RuntimeStatus, StatusResponse, VersionResponse,
};
use engine::node::{NodeSettings, Reservation, Threshold};
use kubeapi::{Connection, ConnectionConfig, Kubeconfig};
use node::{HeartbeatConfig, LeaseConfig, NodeConfig, NodeInputs, NodeParts, RuntimeProbe};
use ports::{Events, NodeEvent, NodeView, NodeViews, PressureCondition, Roots, SystemClock, Tasks};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::real::{ControlPlane, ControlPlaneOptions};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
struct FakeRuntime {
    network: AtomicBool,
    cidr: Mutex<Option<String>>,
}

#[async_trait]
impl RuntimeProbe for FakeRuntime {
    async fn status(&self) -> Result<StatusResponse, String> {
        let condition = |name: &str, status| RuntimeCondition {
            r#type: name.into(),
            status,
            reason: if status { String::new() } else { "NetworkPluginNotReady".into() },
            message: if status { String::new() } else { "no plugin".into() },
        };
        let network = self.network.load(Ordering::SeqCst);
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", network)];
        let handler = |name: &str| RuntimeHandler {
            name: name.into(),
            features: Some(RuntimeHandlerFeatures {
                recursive_read_only_mounts: true,
                user_namespaces: false,
            }),
        };
        Ok(StatusResponse {
            status: Some(RuntimeStatus { conditions }),
            runtime_handlers: vec![handler("runc"), handler("")],
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: false,
            }),
            ..StatusResponse::default()
        })
    }

    async fn version(&self) -> Result<VersionResponse, String> {
        Ok(VersionResponse {
            runtime_name: "containerd".into(),
            runtime_version: "2.3.4".into(),
            ..VersionResponse::default()
        })
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        let digest = format!("example.com/app@sha256:{}", "0".repeat(64));
        let image = Image {
            id: "sha256:1".into(),
            repo_tags: vec!["example.com/app:1".into()],
            repo_digests: vec![digest],
            size: 1000,
            ..Image::default()
        };
        Ok(vec![image])
    }

    async fn set_pod_cidr(&self, cidr: &str) -> Result<(), String> {
        *self.cidr.lock().unwrap() = Some(cidr.to_owned());
        Ok(())
    }
}

#[derive(Debug, Default)]
struct EventNotes(Mutex<Vec<String>>);

impl Events for EventNotes {
    fn emit(&self, event: NodeEvent) {
        self.0.lock().unwrap().push(event.reason.to_owned());
    }
}

struct Running {
    tasks: Tasks,
    runtime: Arc<FakeRuntime>,
    pressure: watch::Sender<Vec<PressureCondition>>,
    events: Arc<EventNotes>,
    view: NodeViews,
}

async fn start(control: &ControlPlane, settings: NodeSettings) -> Running {
    let kubeconfig = Kubeconfig::read(&control.kubeconfig("node1")).unwrap();
    let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
    let (pressure, pressure_in) = watch::channel(Vec::new());
    let (view_out, view) = watch::channel(Arc::new(NodeView::default()));
    let runtime = Arc::new(FakeRuntime::default());
    runtime.network.store(true, Ordering::SeqCst);
    let events = Arc::new(EventNotes::default());
    let config = NodeConfig {
        settings,
        roots: Roots { kubelet: std::env::temp_dir(), ..Roots::default() },
        heartbeat: HeartbeatConfig::default(),
        lease: LeaseConfig::default(),
        pod_cidr: String::new(),
    };
    let parts = NodeParts {
        connection: Some(connection),
        runtime: Arc::clone(&runtime) as Arc<dyn RuntimeProbe>,
        inputs: NodeInputs { pressure: pressure_in, ..NodeInputs::default() },
        events: Arc::clone(&events) as Arc<dyn Events>,
        clock: Arc::new(SystemClock),
        view: view_out,
    };
    let tasks = Tasks::new();
    node::start(config, parts, &tasks);
    Running { tasks, runtime, pressure, events, view }
}

fn settings() -> NodeSettings {
    NodeSettings {
        node_name: "node1".into(),
        hostname: "node1".into(),
        architecture: units::release::ARCHITECTURE.into(),
        kubelet_version: units::release::REPORTED_VERSION.into(),
        controller_attach: true,
        max_pods: 110,
        port: 10250,
        max_images: 50,
        local_storage_isolation: true,
        report_runtime_handlers: true,
        report_features: true,
        reservation: Reservation {
            memory_eviction: Some(Threshold::Amount("100Mi".parse().unwrap())),
            storage_eviction: Some(Threshold::Share(0.1)),
            ..Reservation::default()
        },
        declared_features: Some(vec!["RestartAllContainersOnContainerExits".into()]),
        ..NodeSettings::default()
    }
}

fn condition(node: &Node, kind: &str) -> (String, String) {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let found = conditions.and_then(|c| c.iter().find(|c| c.type_ == kind));
    found.map_or_else(Default::default, |c| {
        (c.status.clone(), c.message.clone().unwrap_or_default())
    })
}

/// Waits until the API server's node, as in the view, fulfils `wanted`.
async fn until(view: &mut NodeViews, wanted: impl Fn(&Node) -> bool) -> Arc<Node> {
    let seen = view.wait_for(|v| v.node.as_ref().is_some_and(|n| wanted(n)));
    let seen = tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap().clone();
    seen.node.clone().unwrap()
}

fn with_control<F: Future<Output = ()>>(test: impl FnOnce(Arc<ControlPlane>) -> F) {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(test(control));
}

#[test]
fn registers_becomes_ready_and_keeps_a_lease() {
    with_control(async |control| {
        let mut node = start(&control, settings()).await;
        let started = tokio::time::Instant::now();
        until(&mut node.view, |n| condition(n, "Ready").0 == "True").await;
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        let seen = control.get(["node", "node1"]).unwrap();
        assert_eq!(shape(&seen["status"]), shape(&golden()["status"]), "same fields as recorded");
        assert_eq!(seen["metadata"]["labels"], golden()["metadata"]["labels"]);
        assert_eq!(seen["metadata"]["annotations"], golden()["metadata"]["annotations"]);
        let lease = eventually_lease(&control);
        assert_eq!(lease["spec"]["holderIdentity"], "node1");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
        let owner = &lease["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], seen["metadata"]["uid"]);

        node.pressure.send_replace(vec![PressureCondition::Memory]);
        let started = tokio::time::Instant::now();
        until(&mut node.view, |n| condition(n, "MemoryPressure").0 == "True").await;
        assert!(started.elapsed() < Duration::from_secs(2), "sent at once");
        node.runtime.network.store(false, Ordering::SeqCst);
        let down = until(&mut node.view, |n| condition(n, "Ready").0 == "False").await;
        assert_eq!(
            condition(&down, "Ready").1,
            "container runtime network not ready: NetworkReady=false \
             reason:NetworkPluginNotReady message:no plugin"
        );
        assert!(node.view.borrow().network_error.is_some());
        let patch = r#"{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}"#;
        control.kubectl(["patch", "node", "node1", "-p", patch]).unwrap();
        control.kubectl(["cordon", "node1"]).unwrap();
        until(&mut node.view, |n| n.spec.as_ref().unwrap().unschedulable == Some(true)).await;
        let reported = async {
            while node.runtime.cidr.lock().unwrap().is_none()
                || !node.events.0.lock().unwrap().contains(&"NodeNotSchedulable".to_owned())
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reported).await.unwrap();
        assert_eq!(node.runtime.cidr.lock().unwrap().as_deref(), Some("10.9.0.0/24"));
        let events = node.events.0.lock().unwrap().clone();
        for reason in ["NodeHasSufficientMemory", "NodeHasInsufficientMemory", "NodeNotReady"] {
            assert!(events.iter().any(|e| e == reason), "{reason} in {events:?}");
        }
        node.tasks.shutdown().await;
    });
}

#[test]
fn an_existing_node_is_reconciled_and_stays_ready() {
    with_control(async |control| {
        let mut first = start(&control, settings()).await;
        // Only a node with a UID is the API server's; before that it is the locally built one.
        let registered = |n: &Node| n.metadata.uid.is_some() && condition(n, "Ready").0 == "True";
        until(&mut first.view, registered).await;
        first.tasks.shutdown().await;
        let before = control.get(["node", "node1"]).unwrap();
        control.kubectl(["label", "node", "node1", "kubernetes.io/hostname-"]).unwrap();
        let mut labelled = settings();
        labelled.labels = [("team".to_owned(), "a".to_owned())].into();
        let mut second = start(&control, labelled).await;
        let right = |n: &Node| {
            let labels = n.metadata.labels.clone().unwrap_or_default();
            labels.get("kubernetes.io/hostname").is_some_and(|v| v == "node1")
        };
        until(&mut second.view, right).await;
        let ready = until(&mut second.view, registered).await;
        let labels = ready.metadata.labels.as_ref().unwrap();
        assert!(!labels.contains_key("team"), "--node-labels are for new nodes");
        let after = control.get(["node", "node1"]).unwrap();
        let transition = |node: &Value| {
            let list = node["status"]["conditions"].as_array().unwrap().clone();
            list.into_iter().map(|c| c["lastTransitionTime"].clone()).collect::<Vec<_>>()
        };
        // The time before the runtime's first response must not show as a transition.
        assert_eq!(transition(&after), transition(&before));
        second.tasks.shutdown().await;
    });
}

fn eventually_lease(control: &ControlPlane) -> Value {
    let lease = || control.get(["lease", "-n", "kube-node-lease", "node1"]).ok();
    testkit::real::eventually_some(PATIENCE, "lease", lease).unwrap()
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../fixtures/golden/node.json")).unwrap()
}

/// Keys at every level, first element of lists.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), shape(v))).collect(),
        Value::Array(list) => json!([list.first().map(shape)]),
        _ => Value::Null,
    }
}
