//! The node over long times and with failures, with fakes and paused time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use cri::api::UpdateRuntimeConfigRequest;
use engine::node::NodeSettings;
use http::Method;
use kubeapi::{Connection, ConnectionConfig, EventLog, Kubeconfig};
use node::{HeartbeatConfig, LeaseConfig, NodeConfig, NodeInputs, NodeParts};
use ports::{NodeView, NodeViews, PressureCondition, Roots, Tasks, VolumeFacts};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::fake_api::FakeApi;
use testkit::fake_cri::FakeCri;
use testkit::paused_clock::PausedClock;
use tokio::sync::watch;

struct Running {
    tasks: Tasks,
    cri: FakeCri,
    pressure: watch::Sender<Vec<PressureCondition>>,
    volumes: watch::Sender<VolumeFacts>,
    view: NodeViews,
}

async fn start(api: Option<&FakeApi>) -> Running {
    start_with(api, HeartbeatConfig::default()).await
}

async fn start_with(api: Option<&FakeApi>, heartbeat: HeartbeatConfig) -> Running {
    start_in(api, heartbeat, "").await
}

async fn start_in(api: Option<&FakeApi>, heartbeat: HeartbeatConfig, pod_cidr: &str) -> Running {
    start_holding(api, heartbeat, pod_cidr, VolumeFacts::default()).await
}

async fn start_holding(
    api: Option<&FakeApi>,
    heartbeat: HeartbeatConfig,
    pod_cidr: &str,
    first: VolumeFacts,
) -> Running {
    let connection = match api {
        None => None,
        Some(api) => {
            let kubeconfig = Kubeconfig::parse(&api.kubeconfig(), Path::new("/")).unwrap();
            Some(Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap())
        }
    };
    let clock = Arc::new(PausedClock::new());
    let cri = FakeCri::new(Arc::clone(&clock) as Arc<dyn ports::Clock>);
    let (pressure, pressure_in) = watch::channel(Vec::new());
    let (volumes, volumes_in) = watch::channel(first);
    let (view_out, view) = watch::channel(Arc::new(NodeView::default()));
    let config = NodeConfig {
        settings: NodeSettings {
            node_name: "node1".into(),
            hostname: "192.0.2.2".into(),
            architecture: "amd64".into(),
            kubelet_version: "v1".into(),
            max_pods: 110,
            max_images: 50,
            ..NodeSettings::default()
        },
        roots: Roots { kubelet: std::env::temp_dir(), ..Roots::default() },
        heartbeat,
        lease: LeaseConfig::default(),
        pod_cidr: pod_cidr.to_owned(),
    };
    let parts = NodeParts {
        connection,
        runtime: Arc::new(cri.client()),
        inputs: NodeInputs { pressure: pressure_in, volumes: volumes_in, ..NodeInputs::default() },
        events: Arc::new(EventLog),
        clock,
        view: view_out,
    };
    let tasks = Tasks::new();
    node::start(config, parts, &tasks);
    Running { tasks, cri, pressure, volumes, view }
}

fn condition(api: &FakeApi, kind: &str) -> Option<Value> {
    let node = api.object("nodes", "", "node1")?;
    let list = node["status"]["conditions"].as_array()?.clone();
    list.into_iter().find(|c| c["type"] == kind)
}

async fn until(what: &str, mut wanted: impl FnMut() -> bool) {
    let waiting = async {
        while !wanted() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    assert!(waited.is_ok(), "{what}");
}

fn count(api: &FakeApi, request: &str) -> usize {
    api.requests().iter().filter(|r| r.starts_with(request)).count()
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_reports_every_few_minutes_and_renews_its_lease_every_ten_seconds() {
    let api = FakeApi::start().await.unwrap();
    let node = start(Some(&api)).await;
    until("ready", || condition(&api, "Ready").is_some_and(|c| c["status"] == "True")).await;
    let reports = count(&api, "PATCH /api/v1/nodes");
    let renewals = count(&api, "PUT /apis/coordination");
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    let reports = count(&api, "PATCH /api/v1/nodes") - reports;
    let renewals = count(&api, "PUT /apis/coordination") - renewals;
    assert!((2..=9).contains(&reports), "{reports} reports in twenty minutes");
    assert!((110..=121).contains(&renewals), "{renewals} renewals in twenty minutes");
    let lease = api.object("leases", "kube-node-lease", "node1").unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["name"], "node1");
    node.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_happened_during_an_outage_is_reported_after_it() {
    let api = FakeApi::start().await.unwrap();
    let node = start(Some(&api)).await;
    until("ready", || condition(&api, "Ready").is_some_and(|c| c["status"] == "True")).await;
    api.refuse(Method::PATCH, "/nodes", 12, 503);
    node.pressure.send_replace(vec![PressureCondition::Disk]);
    until("pressure", || condition(&api, "DiskPressure").is_some_and(|c| c["status"] == "True"))
        .await;
    node.cri.down();
    until("down", || {
        condition(&api, "Ready").is_some_and(|c| c["message"] == "container runtime is down")
    })
    .await;
    assert!(!node.view.borrow().runtime_up);
    node.cri.up();
    until("up", || condition(&api, "Ready").is_some_and(|c| c["status"] == "True")).await;
    node.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_at_start_is_waited_for() {
    let api = FakeApi::start().await.unwrap();
    api.refuse(Method::POST, "/nodes", 5, 500);
    let node = start(Some(&api)).await;
    let known = node.view.borrow().node.clone().unwrap();
    assert_eq!(known.metadata.uid, None, "pods are judged by our own idea of the node meanwhile");
    assert!(known.status.as_ref().unwrap().allocatable.as_ref().unwrap().contains_key("memory"));
    until("registered", || api.object("nodes", "", "node1").is_some()).await;
    assert_eq!(count(&api, "POST /api/v1/nodes"), 6);
    until("view", || node.view.borrow().node.as_ref().unwrap().metadata.uid.is_some()).await;
    node.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_exists_is_known_before_it_is_registered_again() {
    let api = FakeApi::start().await.unwrap();
    api.put(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } }));
    api.refuse(Method::POST, "/nodes", u32::MAX, 500);
    let node = start(Some(&api)).await;
    until("view", || node.view.borrow().node.as_ref().unwrap().metadata.uid.is_some()).await;
    node.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_ready_node_stays_ready_over_a_start_unless_what_ails_it_stays() {
    let api = FakeApi::start().await.unwrap();
    let node = start(Some(&api)).await;
    let ready = |api: &FakeApi| condition(api, "Ready").is_some_and(|c| c["status"] == "True");
    until("ready", || ready(&api)).await;
    node.tasks.shutdown().await;
    let since = condition(&api, "Ready").unwrap()["lastTransitionTime"].clone();

    // After a restart its drivers are unknown at first.
    let not_yet = || VolumeFacts {
        not_ready: Some("CSINode is not yet initialized".into()),
        ..VolumeFacts::default()
    };
    let node = start_holding(Some(&api), HeartbeatConfig::default(), "", not_yet()).await;
    until("registered", || count(&api, "POST /api/v1/nodes") == 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(ready(&api));
    node.volumes.send_replace(VolumeFacts::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let now = condition(&api, "Ready").unwrap();
    assert_eq!((&now["status"], &now["lastTransitionTime"]), (&json!("True"), &since));
    node.tasks.shutdown().await;

    let node = start_holding(Some(&api), HeartbeatConfig::default(), "", not_yet()).await;
    until("not ready", || !ready(&api)).await;
    node.tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_be_created_is_looked_for_unless_that_is_switched_off() {
    for get_on_exists_only in [false, true] {
        let api = FakeApi::start().await.unwrap();
        api.put(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } }));
        api.refuse(Method::POST, "/nodes", u32::MAX, 403);
        let heartbeat = HeartbeatConfig { get_on_exists_only, ..HeartbeatConfig::default() };
        let node = start_with(Some(&api), heartbeat).await;
        if get_on_exists_only {
            until("tried again", || count(&api, "POST /api/v1/nodes") > 5).await;
            assert_eq!(count(&api, "PATCH /api/v1/nodes"), 0);
        } else {
            let ready = || condition(&api, "Ready").is_some_and(|c| c["status"] == "True");
            until("ready", ready).await;
        }
        node.tasks.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_without_an_api_server_knows_itself() {
    let mut node = start(None).await;
    let seen = node.view.wait_for(|v| v.runtime_up && v.node.is_some());
    let seen = tokio::time::timeout(Duration::from_secs(60), seen).await.unwrap().unwrap().clone();
    let status = seen.node.as_ref().unwrap().status.clone().unwrap();
    assert!(status.capacity.unwrap().contains_key("memory"));
    assert_eq!(status.addresses.unwrap().len(), 2);
    node.tasks.shutdown().await;
}

fn sent_cidrs(node: &Running) -> Vec<String> {
    let requests: Vec<UpdateRuntimeConfigRequest> = node.cri.requests_of();
    let cidr = |r: UpdateRuntimeConfigRequest| r.runtime_config?.network_config;
    requests.into_iter().filter_map(cidr).map(|network| network.pod_cidr).collect()
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_configured_pod_network() {
    let alone = start_in(None, HeartbeatConfig::default(), "10.1.0.0/24").await;
    until("told", || sent_cidrs(&alone) == ["10.1.0.0/24"]).await;
    alone.tasks.shutdown().await;

    let api = FakeApi::start().await.unwrap();
    let node = start_in(Some(&api), HeartbeatConfig::default(), "10.1.0.0/24").await;
    until("ready", || condition(&api, "Ready").is_some_and(|c| c["status"] == "True")).await;
    assert_eq!(sent_cidrs(&node), ["10.1.0.0/24"]);
    node.tasks.shutdown().await;

    let none = start(None).await;
    until("asked", || none.cri.calls().len() > 3).await;
    assert_eq!(sent_cidrs(&none), [""; 0]);
    none.tasks.shutdown().await;
}
