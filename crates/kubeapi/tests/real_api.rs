//! The connection against a real API server, as a real node with the node authorizer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use api::core::v1::Pod;
use api::ids::PodUid;
use kubeapi::{
    ApiEvents, ApiObjects, ApiPods, Connection, ConnectionConfig, EventsConfig, Kubeconfig,
    ObjectsConfig, PodWatchEvent, Strategy, watch_pods,
};
use ports::{
    EventSeverity, EventTarget, Events, NodeEvent, NodeView, ObjectError, Objects, PodApi,
    PodApiError, SystemClock, Tasks, TokenRequest,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testkit::real::{ControlPlane, ControlPlaneOptions};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(10);

struct Cluster {
    control: ControlPlane,
    connection: Connection,
    tasks: Tasks,
}

/// Starts the control plane before the runtime is entered: it blocks.
fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(Cluster) -> F) {
    let control = ControlPlane::start(&ControlPlaneOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read(&control.kubeconfig("node1")).unwrap();
        let connection = Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
        let tasks = Tasks::new();
        let cluster = Cluster { control, connection, tasks: tasks.clone() };
        test(cluster).await;
        tasks.shutdown().await;
    });
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": "i", "envFrom": [
                {"configMapRef": {"name": "cm"}}, {"secretRef": {"name": "absent"}}]}],
        },
    })
}

fn register_node(control: &ControlPlane) {
    control
        .create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}))
        .unwrap();
}

async fn wait_pods(
    pods: &mut watch::Receiver<Option<PodWatchEvent>>,
    done: impl Fn(&PodWatchEvent) -> bool,
) -> PodWatchEvent {
    let seen = pods.wait_for(|e| e.as_ref().is_some_and(&done));
    tokio::time::timeout(PATIENCE, seen).await.unwrap().unwrap().clone().unwrap()
}

#[test]
fn pods_are_followed_written_and_deleted() {
    with_cluster(async |cluster| {
        let Cluster { control, connection, tasks } = cluster;
        register_node(&control);
        let (out, mut pods) = watch::channel(None);
        let watching = watch_pods(connection.clone(), "node1".into(), out, tasks.token());
        tasks.spawn("pods", ports::OnExit::Fine, watching);
        assert!(wait_pods(&mut pods, |_| true).await.pods.is_empty());
        control.create(&pod("p1")).unwrap();
        let seen = wait_pods(&mut pods, |e| e.pods.len() == 1).await;
        let first: Arc<Pod> = Arc::clone(seen.pods.values().next().unwrap());
        assert_eq!(first.metadata.managed_fields, None, "managed fields are dropped");
        let uid = PodUid::from(first.metadata.uid.clone().unwrap());

        let writes = ApiPods::new(&connection);
        let patch = json!({"status": {"phase": "Running", "message": "hello"}});
        let stored = writes.patch_status("default", "p1", &uid, patch.clone()).await.unwrap();
        assert_eq!(stored.status.as_ref().unwrap().message.as_deref(), Some("hello"));
        let moved = |e: &PodWatchEvent| {
            e.pods.get(&uid).is_some_and(|p| p.status.as_ref().unwrap().message.is_some())
        };
        wait_pods(&mut pods, moved).await;

        let other = PodUid::from("00000000-0000-0000-0000-000000000000");
        let refused = writes.patch_status("default", "p1", &other, patch).await.unwrap_err();
        assert!(matches!(refused, PodApiError::NotFound(_)), "{refused:?}");
        let refused = writes.delete_now("default", "p1", &other).await.unwrap_err();
        assert!(matches!(refused, PodApiError::Conflict(_)), "{refused:?}");
        control.kubectl(["delete", "pod", "p1", "--wait=false"]).unwrap();
        wait_pods(&mut pods, |e| e.pods[&uid].metadata.deletion_timestamp.is_some()).await;
        writes.delete_now("default", "p1", &uid).await.unwrap();
        wait_pods(&mut pods, |e| e.pods.is_empty()).await;
        let gone = writes.get("default", "p1").await.unwrap_err();
        // The node authorizer notices a little later that the pod is gone, and then forbids.
        assert!(matches!(gone, PodApiError::NotFound(_) | PodApiError::Forbidden(_)), "{gone:?}");
    });
}

#[test]
fn objects_of_registered_pods_are_kept_fresh() {
    with_cluster(async |cluster| {
        let Cluster { control, connection, tasks } = cluster;
        register_node(&control);
        let config_map = |value: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": value},
                "metadata": {"name": "cm", "namespace": "default"}})
        };
        control.create(&config_map("one")).unwrap();
        control.create(&pod("p1")).unwrap();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": "default"}});
        control.create(&account).unwrap();
        let writes = ApiPods::new(&connection);
        let bound = writes.get("default", "p1").await.unwrap();
        let uid = bound.metadata.uid.clone().unwrap();
        let (_view, node) = watch::channel(Arc::new(NodeView::default()));
        let config = ObjectsConfig {
            node_name: "node1".into(),
            strategy: Strategy::Watch,
            sync_frequency: Duration::from_secs(60),
        };
        let objects = ApiObjects::start(&connection, &config, node, Arc::new(SystemClock), &tasks);

        let stranger = objects.config_map("default", "cm").await.unwrap_err();
        assert_eq!(stranger.to_string(), "object \"default\"/\"cm\" not registered");
        objects.register_pod(&bound);
        let mut changes = objects.changes().unwrap();
        // The node authorizer learns of the new pod a little after it was bound.
        let found = retry(async || objects.config_map("default", "cm").await).await;
        assert_eq!(found.data.as_ref().unwrap()["key"], "one");
        let absent = loop {
            match objects.secret("default", "absent").await.unwrap_err() {
                ObjectError::NotFound(text) => break text,
                _ => tokio::task::yield_now().await,
            }
        };
        assert_eq!(absent, "secret \"absent\" not found");

        control.kubectl(["patch", "cm", "cm", "-p", "{\"data\":{\"key\":\"two\"}}"]).unwrap();
        let change = tokio::time::timeout(Duration::from_secs(2), changes.recv()).await;
        assert_eq!(change.unwrap().unwrap().name, "cm", "announced within two seconds");
        let found = objects.config_map("default", "cm").await.unwrap();
        assert_eq!(found.data.as_ref().unwrap()["key"], "two");

        let services = tokio::time::timeout(PATIENCE, async {
            loop {
                match objects.services() {
                    Some(services) => break services,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        let services = services.await.unwrap();
        assert!(services.iter().any(|s| s.metadata.name.as_deref() == Some("kubernetes")));
        let missing = objects.runtime_class("none").await.unwrap_err();
        assert_eq!(missing.to_string(), "runtimeclass.node.k8s.io \"none\" not found");
        let node = objects.node_now().await.unwrap();
        assert_eq!(node.metadata.name.as_deref(), Some("node1"));
        let request = TokenRequest {
            namespace: "default".into(),
            service_account: "default".into(),
            service_account_uid: String::new(),
            pod_name: "p1".into(),
            pod_uid: uid.clone(),
            audiences: vec!["somebody".into()],
            expiration_seconds: 3600,
        };
        let wrong = objects.token(&request).await;
        // p1 has no service account: the admission plugin that sets it is off.
        let text = wrong.unwrap_err().to_string();
        assert!(text.starts_with("failed to fetch token: "), "{text}");
    });
}

async fn retry<T>(mut ask: impl AsyncFnMut() -> Result<T, ObjectError>) -> T {
    let wait = async {
        loop {
            match ask().await {
                Ok(found) => break found,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap()
}

#[test]
fn repeated_events_are_counted_on_one_object() {
    with_cluster(async |cluster| {
        let Cluster { control, connection, tasks } = cluster;
        register_node(&control);
        control.create(&pod("p1")).unwrap();
        let bound = ApiPods::new(&connection).get("default", "p1").await.unwrap();
        let config = EventsConfig { node_name: "node1".into() };
        let (events, sending) =
            ApiEvents::new(&connection, config, Arc::new(SystemClock), tasks.token());
        tasks.spawn("events", ports::OnExit::Fine, sending);
        let target = EventTarget::Pod { pod: bound, field_path: Some("spec.containers{c}".into()) };
        for _ in 0..3 {
            let event = NodeEvent {
                target: target.clone(),
                severity: EventSeverity::Normal,
                reason: "Started",
                message: "Container started".into(),
            };
            events.emit(event);
        }
        let listed = tokio::task::spawn_blocking(move || {
            let args = ["events", "--field-selector", "reason=Started"];
            testkit::real::eventually_some(PATIENCE, "three counted events", || {
                let list = control.get(args).ok()?;
                (list["items"][0]["count"] == 3).then_some(list)
            })
        });
        let list = listed.await.unwrap().unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        let event = &list["items"][0];
        assert_eq!(event["source"], json!({"component": "kubelet", "host": "node1"}));
        assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{c}");
        assert_eq!(event["reportingComponent"], "kubelet");
    });
}
