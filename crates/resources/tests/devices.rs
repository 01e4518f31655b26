//! Devices from a plugin's registration to what a container gets, over the real sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test with real files")]

use api::core::v1::{Container, Pod};
use api::ids::PodUid;
use engine::topology::{Hint, Numa, Policy, PolicyKind};
use ports::{
    ActivePods, ContainerExtras, NotPlaced, Placement, PodEntry, PodLife, PodSource, PodsSnapshot,
    Tasks,
};
use proto::pod_resources_v1::pod_resources_lister_server::PodResourcesLister;
use proto::pod_resources_v1::{GetPodResourcesRequest, ListPodResourcesRequest};
use resources::PlacementMetrics;
use resources::devices::{DeviceMetrics, Devices, DevicesConfig, DevicesDeps, LateDevices};
use resources::placement::{AllocateError, Placed, PlacementConfig, Provider, Scope};
use resources::pod_resources::{PodResources, PodResourcesMetrics};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use telemetry::metrics::Registry;
use testkit::device_plugin::{PluginConfig, RunningPlugin, device};
use tokio::sync::{mpsc, watch};
use tonic::Status;

const RESOURCE: &str = "example.com/thing";
const PATIENCE: Duration = Duration::from_secs(20);

struct Fixture {
    dir: PathBuf,
    tasks: Tasks,
    devices: Devices,
    touched: mpsc::Receiver<PodUid>,
    pods: watch::Sender<PodsSnapshot>,
    registry: Registry,
}

impl Fixture {
    fn start(dir: &Path, running: BTreeSet<(String, String)>) -> Self {
        Self::start_with(dir, running, LateDevices::Refuse)
    }

    fn start_with(dir: &Path, running: BTreeSet<(String, String)>, late: LateDevices) -> Self {
        let (pods, snapshot) = watch::channel(PodsSnapshot::default());
        let tasks = Tasks::new();
        let registry = Registry::new();
        let config = DevicesConfig {
            dir: dir.to_owned(),
            numa_nodes: vec![0, 1],
            health_status: true,
            claims_for_extended: true,
            running,
            late,
        };
        let metrics = DeviceMetrics::new(&registry);
        let deps = DevicesDeps { pods: snapshot, metrics, tasks: tasks.clone() };
        let (devices, touched) = Devices::start(config, deps).unwrap();
        Self { dir: dir.to_owned(), tasks, devices, touched, pods, registry }
    }

    async fn reports(&self, capacity: Option<i64>, allocatable: Option<i64>) {
        let mut facts = self.devices.facts();
        let reached = facts.wait_for(|facts| {
            let of = |list: &BTreeMap<String, units::Quantity>| {
                list.get(RESOURCE).map(|amount| amount.value())
            };
            (of(&facts.capacity), of(&facts.allocatable)) == (capacity, allocatable)
        });
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        let reached = reached.map(|result| result.is_ok()).unwrap_or_default();
        assert!(reached, "{capacity:?} {allocatable:?} {:?}", self.devices.facts().borrow());
    }

    async fn plugin(&self, ids: &[&str]) -> RunningPlugin {
        let plugin = RunningPlugin::start(PluginConfig::new(&self.dir, RESOURCE, ids)).unwrap();
        plugin.register().await.unwrap();
        plugin
    }

    async fn give(&self, uid: &str, count: u32) -> Result<(), AllocateError> {
        let pod = pod(uid, count);
        self.devices.allocate(&pod, container(&pod), Hint::default()).await
    }

    async fn extras(&self, uid: &str, count: u32) -> Result<ContainerExtras, String> {
        let pod = pod(uid, count);
        let mut extras = ContainerExtras::default();
        let done = self.devices.extras(&pod, container(&pod), &mut extras).await;
        done.map(|()| extras).map_err(|error| error.to_string())
    }
}

fn pod(uid: &str, count: u32) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"containers": [
            {"name": "c", "resources": {"limits": {RESOURCE: count.to_string(), "cpu": "1"}}}]}
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("rubelet-devices-{name}-{}", std::process::id()));
    drop(std::fs::remove_dir_all(&dir));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_gets_what_its_plugin_says_also_after_a_restart() {
    let dir = folder("restart");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    assert!(fixture.devices.facts().borrow().folder_was_empty);
    let plugin = fixture.plugin(&["a", "b"]).await;
    fixture.reports(Some(2), Some(2)).await;
    fixture.give("u", 1).await.unwrap();
    fixture.give("u", 1).await.unwrap();
    let allocations = plugin.calls().iter().filter(|call| call.starts_with("Allocate")).count();
    assert_eq!(allocations, 1, "what it has is kept");
    let extras = fixture.extras("u", 1).await.unwrap();
    assert_eq!(extras.envs, [("DEVICES".to_owned(), "a".to_owned())]);
    assert_eq!(extras.devices[0].container_path, "/dev/given");
    assert_eq!(extras.mounts[0].host_path, "/etc/hostname");
    assert_eq!(extras.annotations[0].1, "a");
    let shown = fixture.registry.render();
    assert!(shown.contains(
        "kubelet_device_plugin_registration_total{resource_name=\"example.com/thing\"} 1"
    ));
    assert!(shown.contains(
        "kubelet_device_plugin_alloc_duration_seconds_count{resource_name=\"example.com/thing\"} 1"
    ));
    drop(plugin);
    fixture.reports(Some(2), Some(0)).await;
    fixture.tasks.shutdown().await;

    let running = BTreeSet::from([("u".to_owned(), "c".to_owned())]);
    let fixture = Fixture::start(&dir, running);
    assert!(!fixture.devices.facts().borrow().folder_was_empty);
    fixture.reports(Some(0), Some(0)).await;
    assert_eq!(fixture.devices.owed("u"), [(RESOURCE.to_owned(), 1)].into());
    fixture.give("u", 1).await.unwrap();
    let refused = fixture.give("v", 1).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "no healthy devices present; cannot allocate unhealthy devices example.com/thing"
    );
    assert_eq!(fixture.extras("u", 1).await.unwrap(), extras, "its plugin is late");
    let _plugin = fixture.plugin(&["a", "b"]).await;
    fixture.reports(Some(2), Some(2)).await;
    fixture.give("v", 1).await.unwrap();
    assert_eq!(fixture.extras("v", 1).await.unwrap().envs[0].1, "b");
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_asked_for_a_pod_waits_for_its_plugin_and_what_runs_goes_on() {
    let dir = folder("late");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    assert_eq!(
        fixture.devices.awaited_plugin(&pod("u", 1)),
        None,
        "nobody ever heard of the resource"
    );
    let plugin = fixture.plugin(&["a", "b"]).await;
    fixture.reports(Some(2), Some(2)).await;
    fixture.give("u", 1).await.unwrap();
    drop(plugin);
    fixture.reports(Some(2), Some(0)).await;
    assert_eq!(fixture.devices.awaited_plugin(&pod("v", 1)), None, "it is not asked for");
    fixture.tasks.shutdown().await;

    let running = BTreeSet::from([("u".to_owned(), "other".to_owned())]);
    let fixture = Fixture::start_with(&dir, running, LateDevices::Wait);
    assert_eq!(fixture.devices.awaited_plugin(&pod("u", 1)), None, "it runs");
    fixture.give("u", 1).await.unwrap();
    let what = "the device plugin of example.com/thing";
    assert_eq!(fixture.devices.awaited_plugin(&pod("v", 1)).as_deref(), Some(what));
    assert_eq!(fixture.devices.awaited_plugin(&pod("v", 0)), None, "it needs no device");
    let waiting = pod("v", 1);
    let settled = fixture.devices.settled(&waiting);
    let comes = async {
        let plugin = fixture.plugin(&["a", "b"]).await;
        fixture.reports(Some(2), Some(2)).await;
        plugin
    };
    let (done, plugin) = tokio::join!(tokio::time::timeout(PATIENCE, settled), comes);
    done.unwrap();
    assert_eq!(fixture.devices.awaited_plugin(&waiting), None);
    fixture.give("v", 1).await.unwrap();
    drop(plugin);
    fixture.reports(Some(2), Some(0)).await;
    assert_eq!(
        fixture.devices.awaited_plugin(&pod("w", 1)).as_deref(),
        Some(what),
        "it may come back"
    );
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_device_is_shown_and_not_given() {
    let dir = folder("broken");
    let mut fixture = Fixture::start(&dir, BTreeSet::new());
    let plugin = fixture.plugin(&["a", "b"]).await;
    fixture.reports(Some(2), Some(2)).await;
    fixture.give("u", 1).await.unwrap();
    plugin.report(vec![device("a", "Unhealthy", None), device("b", "Healthy", None)]);
    fixture.reports(Some(2), Some(1)).await;
    let touched = tokio::time::timeout(PATIENCE, fixture.touched.recv()).await.unwrap().unwrap();
    assert_eq!(touched.as_str(), "u");
    let health = fixture.devices.health(&pod("u", 1));
    let shown = health["c"][0].resources.as_ref().unwrap()[0].clone();
    assert_eq!((shown.resource_id.as_str(), shown.health.as_deref()), ("a", Some("Unhealthy")));
    let refused = fixture.give("v", 2).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "requested number of devices unavailable for example.com/thing. Requested: 2, Available: 1"
    );
    fixture.give("v", 1).await.unwrap();
    fixture.pods.send_modify(|snapshot| snapshot.sources_ready = true);
    Provider::forget_all_but(&fixture.devices, &BTreeSet::new()).await;
    fixture.give("w", 1).await.unwrap();
    assert_eq!(fixture.extras("w", 1).await.unwrap().envs[0].1, "b", "what gone pods had is free");
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_asked_what_it_wants_to_be_asked() {
    let dir = folder("asked");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let mut config = PluginConfig::new(&dir, RESOURCE, &["a", "b", "c"]);
    config.options.get_preferred_allocation_available = true;
    config.options.pre_start_required = true;
    let plugin = RunningPlugin::start(config).unwrap();
    plugin.register().await.unwrap();
    fixture.reports(Some(3), Some(3)).await;
    plugin.fail(Some(Status::failed_precondition("not now")));
    let refused = fixture.give("u", 2).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = FailedPrecondition desc = not now"
    );
    plugin.fail(None);
    fixture.give("u", 2).await.unwrap();
    assert_eq!(fixture.extras("u", 2).await.unwrap().envs[0].1, "b,c", "as it prefers");
    assert!(plugin.calls().contains(&"PreStart b,c".to_owned()), "{:?}", plugin.calls());
    plugin.fail(Some(Status::unknown("broken")));
    assert_eq!(
        fixture.extras("u", 2).await.unwrap_err(),
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = broken"
    );
    let refused = fixture.give("v", 1).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = broken"
    );
    plugin.fail(None);
    fixture.give("v", 1).await.unwrap();
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_registration_is_refused_with_upstreams_words() {
    let dir = folder("refused");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let plugin = RunningPlugin::start(PluginConfig::new(&dir, RESOURCE, &["a"])).unwrap();
    let refused = plugin.register_as("v1alpha").await.unwrap_err();
    assert_eq!(
        refused.message(),
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    plugin.fail(Some(Status::unknown("no options")));
    let refused = plugin.register().await.unwrap_err();
    assert_eq!(
        refused.message(),
        "failed to get device plugin options: rpc error: code = Unknown desc = no options"
    );
    let native = RunningPlugin::start(PluginConfig::new(&dir, "cpu", &["a"])).unwrap();
    let refused = native.register().await.unwrap_err();
    assert_eq!(refused.message(), "the ResourceName \"cpu\" is invalid");
    assert!(fixture.devices.check().is_ok());
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_anew_takes_over() {
    let dir = folder("anew");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let old = fixture.plugin(&["a"]).await;
    fixture.reports(Some(1), Some(1)).await;
    let mut config = PluginConfig::new(&dir, RESOURCE, &["a", "b"]);
    config.socket = "new.sock".to_owned();
    let new = RunningPlugin::start(config).unwrap();
    new.register().await.unwrap();
    fixture.reports(Some(2), Some(2)).await;
    drop(old);
    fixture.give("u", 2).await.unwrap();
    assert_eq!(new.calls().last().map(String::as_str), Some("Allocate a,b"));
    fixture.reports(Some(2), Some(2)).await;
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_resources_socket_shows_only_pods_that_their_source_has() {
    let dir = folder("shown");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let entry = |name: &str, given: bool, life: PodLife| {
        let pod = pod(name, 0);
        let entry = PodEntry {
            pod: Arc::clone(&pod),
            given: given.then_some(pod),
            source: PodSource::Api,
            mirror: None,
            life,
            status: None,
            evicted: false,
        };
        (PodUid::from(name), entry)
    };
    let pods = [
        entry("runs", true, PodLife::Syncing),
        entry("ends", true, PodLife::Terminating),
        entry("forced", false, PodLife::Terminating),
    ];
    fixture.pods.send_replace(PodsSnapshot { pods: Arc::new(pods.into()), sources_ready: true });
    let shown = PodResources {
        pods: fixture.pods.subscribe(),
        devices: fixture.devices.clone(),
        claims: None,
        exclusive: None,
        active_only: true,
        metrics: PodResourcesMetrics::new(&fixture.registry),
    };
    let list = shown.list(tonic::Request::new(ListPodResourcesRequest {})).await.unwrap();
    let names: Vec<String> = list.into_inner().pod_resources.into_iter().map(|p| p.name).collect();
    assert_eq!(names, ["ends", "runs"]);
    let (pod_name, pod_namespace) = ("forced".to_owned(), "ns".to_owned());
    let request = tonic::Request::new(GetPodResourcesRequest { pod_name, pod_namespace });
    let refused = shown.get(request).await.unwrap_err();
    assert_eq!(refused.message(), "pod forced in namespace ns not found");
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

/// Placement with devices only.
fn placement(fixture: &Fixture) -> Placed {
    let policy = Policy::new(PolicyKind::None, Numa::default(), &BTreeMap::new()).unwrap();
    let config =
        PlacementConfig { policy, scope: Scope::Container, pod_level: false, lifts_quota: None };
    let metrics = PlacementMetrics::new(&fixture.registry);
    Placed::new(config, vec![Arc::new(fixture.devices.clone())], metrics)
}

async fn settled(placement: &Placed, pod: &Pod) {
    tokio::time::timeout(PATIENCE, placement.settled(pod)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_holds_up_only_pods_that_need_it() {
    let dir = folder("hangs");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let other = RunningPlugin::start(PluginConfig::new(&dir, "example.com/other", &["o"])).unwrap();
    other.register().await.unwrap();
    let plugin = fixture.plugin(&["a", "b"]).await;
    fixture.reports(Some(2), Some(2)).await;
    let placement = placement(&fixture);
    let (first, second) = (pod("first", 1), pod("second", 1));
    let all = [Arc::clone(&first), Arc::clone(&second)];
    let active = ActivePods { others: &all, complete: true };

    plugin.hang(true);
    let waits = |what: &str| Err(NotPlaced::Waits(what.to_owned()));
    let own = "the device plugin of example.com/thing to answer Allocate";
    assert_eq!(placement.admit(&first, active).await, waits(own));
    let of_first = format!("{own} for pod ns/first");
    assert_eq!(placement.admit(&second, active).await, waits(&of_first), "one at a time");
    assert_eq!(plugin.calls().iter().filter(|call| call.starts_with("Allocate")).count(), 1);
    let shown = "rubelet_device_plugin_unanswered_calls{resource_name=\"example.com/thing\"} 1";
    assert!(fixture.registry.render().contains(shown), "{}", fixture.registry.render());

    let mut elsewhere = (*pod("elsewhere", 0)).clone();
    let limits = json!({"limits": {"example.com/other": "1"}});
    elsewhere.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(limits).unwrap();
    let elsewhere = Arc::new(elsewhere);
    assert_eq!(placement.admit(&elsewhere, active).await, Ok(()));
    assert_eq!(placement.admit(&pod("none", 0), active).await, Ok(()));

    plugin.hang(false);
    settled(&placement, &first).await;
    settled(&placement, &second).await;
    assert_eq!(placement.admit(&first, active).await, Ok(()));
    assert_eq!(placement.admit(&second, active).await, Ok(()));
    let of = |uid: &str| fixture.devices.of_container(uid, "c")[RESOURCE].clone();
    assert_ne!(of("first"), of("second"));
    let asked: Vec<String> =
        plugin.calls().into_iter().filter(|call| call.starts_with("Allocate")).collect();
    assert_eq!(asked, ["Allocate a", "Allocate b"], "nobody is asked twice");
    assert!(!fixture.registry.render().contains(shown));
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hung_plugin_was_asked_for_is_free_when_its_pod_goes() {
    let dir = folder("abandoned");
    let fixture = Fixture::start(&dir, BTreeSet::new());
    let mut config = PluginConfig::new(&dir, RESOURCE, &["a", "b", "c"]);
    config.options.get_preferred_allocation_available = true;
    let plugin = RunningPlugin::start(config).unwrap();
    plugin.register().await.unwrap();
    fixture.reports(Some(3), Some(3)).await;
    let placement = placement(&fixture);
    let active = ActivePods { others: &[], complete: true };
    plugin.hang(true);
    let what = "the device plugin of example.com/thing to answer GetPreferredAllocation";
    assert_eq!(placement.admit(&pod("u", 1), active).await, Err(NotPlaced::Waits(what.to_owned())));
    placement.abandon("u");
    // The plugin is free for the next call, and so are all devices.
    let next = pod("v", 3);
    settled(&placement, &next).await;
    assert_eq!(placement.admit(&next, active).await, Err(NotPlaced::Waits(what.to_owned())));
    plugin.hang(false);
    settled(&placement, &next).await;
    assert_eq!(placement.admit(&next, active).await, Ok(()));
    assert!(fixture.devices.of_container("u", "c").is_empty());

    // A failure after the pod was deferred is reported at its next admission.
    plugin.hang(true);
    let last = pod("w", 1);
    assert_eq!(placement.admit(&last, active).await, Err(NotPlaced::Waits(what.to_owned())));
    plugin.fail(Some(Status::unknown("broken")));
    plugin.hang(false);
    settled(&placement, &last).await;
    let NotPlaced::Refused(refusal) = placement.admit(&last, active).await.unwrap_err() else {
        panic!("it waits")
    };
    assert_eq!(refusal.reason, "UnexpectedAdmissionError");
    assert_eq!(
        refusal.message,
        "Allocate failed due to rpc error: code = Unknown desc = broken, which is unexpected"
    );
    plugin.fail(None);
    assert_eq!(placement.admit(&last, active).await, Ok(()), "nothing was lost");
    fixture.tasks.shutdown().await;
    std::fs::remove_dir_all(dir).unwrap();
}
