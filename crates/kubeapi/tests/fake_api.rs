//! The connection under failures, against the fake API server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use http::Method;
use kubeapi::{
    ApiObjects, Connection, ConnectionConfig, Kubeconfig, LeaseApi, NodeApi, ObjectsConfig,
    PodWatchEvent, Strategy, watch_pods,
};
use ports::{NodeView, Objects, OnExit, SystemClock, Tasks};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::fake_api::FakeApi;
use tokio::sync::watch;

async fn connect(api: &FakeApi) -> Connection {
    let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
    Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap()
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "i", "env": [
            {"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}})
}

fn follow(connection: &Connection, tasks: &Tasks) -> watch::Receiver<Option<PodWatchEvent>> {
    let (out, pods) = watch::channel(None);
    let watching = watch_pods(connection.clone(), "node1".into(), out, tasks.token());
    tasks.spawn("pods", OnExit::Fine, watching);
    pods
}

async fn until(pods: &mut watch::Receiver<Option<PodWatchEvent>>, names: &[&str]) {
    let wanted = |event: &Option<PodWatchEvent>| {
        let Some(event) = event else { return false };
        let mut seen: Vec<_> =
            event.pods.values().map(|p| p.metadata.name.clone().unwrap()).collect();
        seen.sort();
        seen == names
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), pods.wait_for(wanted)).await;
    waited.unwrap().unwrap();
}

#[tokio::test]
async fn a_watch_survives_cuts_and_a_lost_history() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let tasks = Tasks::new();
    let mut pods = follow(&connection, &tasks);
    until(&mut pods, &[]).await;
    api.put(pod("a"));
    until(&mut pods, &["a"]).await;
    api.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata":
        {"name": "elsewhere", "namespace": "ns"}, "spec": {"nodeName": "node2"}}));
    api.cut_watches();
    api.put(pod("b"));
    until(&mut pods, &["a", "b"]).await;
    api.cut_watches();
    api.remove("pods", "ns", "a");
    api.compact();
    api.put(pod("c"));
    until(&mut pods, &["b", "c"]).await;
    tasks.shutdown().await;
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_listed_plainly() {
    let api = FakeApi::start().await.unwrap();
    api.put(pod("a"));
    api.refuse(Method::GET, "/pods", 1, 422);
    let connection = connect(&api).await;
    let tasks = Tasks::new();
    let mut pods = follow(&connection, &tasks);
    until(&mut pods, &["a"]).await;
    api.put(pod("b"));
    until(&mut pods, &["a", "b"]).await;
    tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn new_credentials_end_the_pause_of_a_refused_watch() {
    let api = FakeApi::start().await.unwrap();
    api.refuse(Method::GET, "/pods", 7, 401);
    let connection = connect(&api).await;
    let tasks = Tasks::new();
    let mut pods = follow(&connection, &tasks);
    while api.requests().iter().filter(|r| r.ends_with("/pods")).count() < 7 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let started = tokio::time::Instant::now();
    connection.redial_all();
    until(&mut pods, &[]).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_after_the_deadline_and_dialled_anew() {
    let api = FakeApi::start().await.unwrap();
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}));
    let connection = connect(&api).await;
    let node = NodeApi::new(&connection, "node1");
    api.swallow(Method::GET, "/nodes/node1", 1);
    let started = tokio::time::Instant::now();
    let silent = node.get().await.unwrap_err();
    assert_eq!(silent.to_string(), "no answer from the API server within 10s");
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(node.get().await.unwrap().metadata.name.as_deref(), Some("node1"));
}

#[tokio::test]
async fn a_lease_keeps_fields_that_this_version_does_not_know() {
    let api = FakeApi::start().await.unwrap();
    let lease = LeaseApi::new(&connect(&api).await, "node1");
    assert!(lease.get().await.unwrap_err().is_not_found());
    let made = lease
        .create(&json!({"metadata": {"name": "node1"}, "spec": {"future": "field"}}))
        .await
        .unwrap();
    assert_eq!(made["spec"]["future"], "field");
    let mut old = made.clone();
    lease.replace(&made).await.unwrap();
    old["spec"]["leaseDurationSeconds"] = 40.into();
    let conflict = lease.replace(&old).await.unwrap_err();
    assert_eq!(conflict.refusal(), Some(kubeapi::Refusal::Conflict));
}

fn start_objects(connection: &Connection, strategy: Strategy, tasks: &Tasks) -> ApiObjects {
    let config = ObjectsConfig {
        node_name: "node1".into(),
        strategy,
        sync_frequency: Duration::from_secs(60),
    };
    let (_, node) = watch::channel(Arc::new(NodeView::default()));
    ApiObjects::start(connection, &config, node, Arc::new(SystemClock), tasks)
}

fn secret(value: &str, immutable: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns"},
        "immutable": immutable, "stringData": {"k": value}, "type": value})
}

#[tokio::test]
async fn an_immutable_secret_is_not_watched_any_more() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let tasks = Tasks::new();
    let objects = start_objects(&connection, Strategy::Watch, &tasks);
    api.put(secret("one", true));
    let user = Arc::new(serde_json::from_value(api.put(pod("a"))).unwrap());
    objects.register_pod(&user);
    assert_eq!(objects.secret("ns", "s").await.unwrap().type_.as_deref(), Some("one"));
    let asked = || api.requests().iter().filter(|r| r.contains("/secrets")).count();
    let before = asked();
    api.cut_watches();
    assert_eq!(objects.secret("ns", "s").await.unwrap().type_.as_deref(), Some("one"));
    assert_eq!(asked(), before, "neither read nor watched again");
    tasks.shutdown().await;
}

#[tokio::test]
async fn the_cache_strategy_reads_again_for_a_new_pod_and_survives_an_outage() {
    let api = FakeApi::start().await.unwrap();
    let connection = connect(&api).await;
    let tasks = Tasks::new();
    let objects = start_objects(&connection, Strategy::Cache, &tasks);
    api.put(secret("one", false));
    let first = Arc::new(serde_json::from_value(api.put(pod("a"))).unwrap());
    objects.register_pod(&first);
    let kind = async || objects.secret("ns", "s").await.unwrap().type_.clone().unwrap();
    assert_eq!(kind().await, "one");
    api.put(secret("two", false));
    assert_eq!(kind().await, "one", "still fresh enough");
    let second = Arc::new(serde_json::from_value(api.put(pod("b"))).unwrap());
    api.refuse(Method::GET, "/secrets/s", 1, 500);
    objects.register_pod(&second);
    assert_eq!(kind().await, "one", "an error keeps what is known");
    assert_eq!(kind().await, "two");
    tasks.shutdown().await;
}

#[tokio::test]
async fn what_is_forbidden_until_the_server_has_seen_the_pod_is_read_all_the_same() {
    for strategy in [Strategy::Watch, Strategy::Cache, Strategy::Get] {
        let api = FakeApi::start().await.unwrap();
        let connection = connect(&api).await;
        let tasks = Tasks::new();
        let objects = start_objects(&connection, strategy, &tasks);
        api.put(secret("one", false));
        api.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "c", "namespace": "ns"}}));
        api.refuse(Method::GET, "/secrets", 3, 403);
        api.refuse(Method::GET, "/persistentvolumeclaims/c", 3, 403);
        let user = Arc::new(serde_json::from_value(api.put(pod("a"))).unwrap());
        objects.register_pod(&user);
        let read = objects.secret("ns", "s").await;
        assert_eq!(read.unwrap().type_.as_deref(), Some("one"), "{strategy:?}");
        objects.claim("ns", "c").await.unwrap();
        // What stays forbidden is told.
        api.refuse(Method::GET, "/persistentvolumeclaims/c", u32::MAX, 403);
        objects.claim("ns", "c").await.unwrap_err();
        tasks.shutdown().await;
    }
}
