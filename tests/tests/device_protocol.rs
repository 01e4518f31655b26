//! What plugins are told and what becomes of odd ones: bad names and versions, sockets that nobody serves, devices told
//! twice, a plugin that registers again, one that fails, a checkpoint that cannot be read. The expectations are the
//! Go kubelet's: `KUBELET=go` runs the same under it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proto::device_plugin_v1beta1::RegisterRequest;
use proto::device_plugin_v1beta1::registration_client::RegistrationClient;
use serde_json::{Value, json};
use testkit::device_plugin::{PluginConfig, RunningPlugin, device};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually,
    eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const RESOURCE: &str = "example.com/thing";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

struct RecordingNode {
    control: Arc<ControlPlane>,
    node: TestNode,
    kind: KubeletKind,
    runtime: tokio::runtime::Runtime,
}

impl RecordingNode {
    fn start() -> Self {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
        let kind = KubeletKind::from_env().unwrap();
        let options = KubeletOptions { own_devices: true, ..KubeletOptions::default() };
        let node =
            TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        eventually(PATIENCE, "the node is there", || control.get(["node", "node1"]).is_ok())
            .unwrap();
        Self { control, node, kind, runtime }
    }

    fn dir(&self) -> std::path::PathBuf {
        self.node.devices_dir()
    }

    /// What a plugin is told that registers like this.
    fn register(&self, version: &str, resource: &str, endpoint: &str) -> String {
        let request = RegisterRequest {
            version: version.to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: resource.to_owned(),
            options: None,
        };
        let socket = self.dir().join("kubelet.sock");
        self.runtime.block_on(async move {
            let channel = sockets::connect(&socket, PATIENCE).await.unwrap();
            match RegistrationClient::new(channel).register(request).await {
                Ok(_) => "registered".to_owned(),
                Err(status) => sockets::go_error(&status),
            }
        })
    }

    fn plugin(&self, config: PluginConfig) -> RunningPlugin {
        let _inside = self.runtime.enter();
        let plugin = RunningPlugin::start(config).unwrap();
        self.runtime.block_on(plugin.register()).unwrap();
        plugin
    }

    /// What the node reports: capacity and allocatable.
    fn reported(&self) -> (String, String) {
        let node = self.control.get(["node", "node1"]).unwrap_or_default();
        let of =
            |list: &str| node["status"][list][RESOURCE].as_str().unwrap_or_default().to_owned();
        (of("capacity"), of("allocatable"))
    }

    fn reports(&self, capacity: &str, allocatable: &str) {
        let wanted = (capacity.to_owned(), allocatable.to_owned());
        let what = format!("the node reports {capacity} and {allocatable}");
        let reached = eventually(PATIENCE, &what, || self.reported() == wanted);
        reached.unwrap_or_else(|error| panic!("{error:#}; it reports {:?}", self.reported()));
    }

    /// Status of a pod that was refused.
    fn refused(&self, name: &str) -> (Value, Value) {
        let status = eventually_some(PATIENCE, "the pod is refused", || {
            let pod = self.control.get(["pod", name]).ok()?;
            (pod["status"]["phase"] == "Failed").then(|| pod["status"].clone())
        });
        let status = status.unwrap();
        (status["reason"].clone(), status["message"].clone())
    }

    fn log(&self, id: &str) -> String {
        let printed = || self.node.crictl(["logs", id]).ok().filter(|log| !log.is_empty());
        eventually_some(PATIENCE, "the container has printed", printed).unwrap()
    }

    fn delete(&self, name: &str) {
        self.control.kubectl(["delete", "pod", name, "--wait=false"]).unwrap();
        let gone = || self.control.get(["pod", name]).is_err();
        eventually(PATIENCE, "the pod is gone", gone).unwrap();
    }
}

fn container(name: &str, devices: u32) -> Value {
    let command = "echo given=$DEVICES; trap 'exit 0' TERM; sleep 3600 & wait";
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", command],
        "resources": {"limits": {RESOURCE: devices.to_string()}}})
}

fn pod(name: &str, init: &[Value], containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "initContainers": init, "containers": containers},
    })
}

/// Entries as `container=ids` and what is registered, from the checkpoint once it can be read.
fn remembered(dir: &Path) -> (Vec<String>, Value) {
    let file = eventually_some(PATIENCE, "there is a checkpoint", || {
        let text = std::fs::read_to_string(dir.join("kubelet_internal_checkpoint")).ok()?;
        serde_json::from_str::<Value>(&text).ok()
    });
    let file = file.unwrap();
    let entries = file["Data"]["PodDeviceEntries"].as_array().cloned().unwrap_or_default();
    let one = |entry: &Value| {
        let ids = &entry["DeviceIDs"];
        format!("{}={ids}", entry["ContainerName"].as_str().unwrap())
    };
    let mut entries: Vec<String> = entries.iter().map(one).collect();
    entries.sort();
    let mut registered = file["Data"]["RegisteredDevices"].clone();
    for ids in registered.as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
        if let Some(ids) = ids.as_array_mut() {
            ids.sort_by_key(Value::to_string);
        }
    }
    (entries, registered)
}

#[test]
fn odd_registrations_are_answered_in_the_go_kubelets_words() {
    let recording_node = RecordingNode::start();
    let unsupported = |shown: &str| {
        format!(
            "rpc error: code = Unknown desc = requested API version {shown} is not supported by kubelet. \
             Supported version is [\"v1beta1\"]"
        )
    };
    let invalid = |shown: &str| {
        format!("rpc error: code = Unknown desc = the ResourceName {shown} is invalid")
    };
    for (version, shown) in
        [("v1alpha", "\"v1alpha\""), ("", "\"\""), ("v1\u{7}\u{e9}\u{200b}", "\"v1\\aé\\u200b\"")]
    {
        assert_eq!(recording_node.register(version, RESOURCE, "x.sock"), unsupported(shown));
    }
    let long = format!("example.com/{}", "x".repeat(64));
    let cases = [
        ("", "\"\"".to_owned()),
        ("thing", "\"thing\"".to_owned()),
        ("/thing", "\"/thing\"".to_owned()),
        ("example.com/", "\"example.com/\"".to_owned()),
        ("kubernetes.io/thing", "\"kubernetes.io/thing\"".to_owned()),
        ("a.kubernetes.io/thing", "\"a.kubernetes.io/thing\"".to_owned()),
        ("requests.example.com/thing", "\"requests.example.com/thing\"".to_owned()),
        ("Example.com/thing", "\"Example.com/thing\"".to_owned()),
        ("example.com/a/b", "\"example.com/a/b\"".to_owned()),
        ("example.com/a b\n\u{1}\u{feff}", "\"example.com/a b\\n\\x01\\ufeff\"".to_owned()),
        (long.as_str(), format!("{long:?}")),
        ("hugepages-2Mi", "\"hugepages-2Mi\"".to_owned()),
    ];
    for (resource, shown) in cases {
        assert_eq!(
            recording_node.register("v1beta1", resource, "x.sock"),
            invalid(&shown),
            "{resource:?}"
        );
    }
    let nobody =
        "rpc error: code = Unknown desc = failed to dial device plugin: context deadline exceeded";
    for endpoint in ["absent.sock", "", "../kubelet_internal_checkpoint"] {
        assert_eq!(recording_node.register("v1beta1", RESOURCE, endpoint), nobody, "{endpoint:?}");
    }
    assert_eq!(recording_node.reported(), (String::new(), String::new()));
}

#[test]
fn odd_devices_and_a_lost_checkpoint_end_as_with_the_go_kubelet() {
    let mut recording_node = RecordingNode::start();
    let dir = recording_node.dir();
    let mut config = PluginConfig::new(&dir, RESOURCE, &[]);
    config.devices = vec![
        device("a", "Healthy", None),
        device("a", "Unhealthy", None),
        device("b", "Healthy", Some(&[0])),
        device("c", "healthy", None),
        device("", "Healthy", Some(&[])),
    ];
    let plugin = recording_node.plugin(config.clone());
    recording_node.reports("5", "3");
    let (entries, registered) = remembered(&dir);
    assert_eq!((entries.len(), registered), (0, json!({RESOURCE: ["", "a", "b"]})));

    plugin.report(Vec::new());
    recording_node.reports("0", "0");
    let healthy = ["d1", "d2", "d3"].map(|id| device(id, "Healthy", Some(&[0])));
    plugin.report(healthy.to_vec());
    recording_node.reports("3", "3");

    // A device of an init container is used again; the checkpoint has it for both.
    let mut init = container("init", 2);
    init["command"] = json!(["true"]);
    recording_node.control.create(&pod("shares", &[init], &[container("app", 2)])).unwrap();
    let app = recording_node.node.wait_running("app", PATIENCE).unwrap();
    let allocations: Vec<String> =
        plugin.calls().into_iter().filter(|call| call.starts_with("Allocate")).collect();
    assert_eq!(allocations.len(), 2, "{allocations:?}");
    assert_eq!(allocations[0], allocations[1]);
    let given = allocations[0].strip_prefix("Allocate ").unwrap().to_owned();
    assert_eq!(recording_node.log(&app).trim(), format!("given={given}"));

    // Refusals: too many, and a plugin that fails.
    recording_node.control.create(&pod("many", &[], &[container("many", 2)])).unwrap();
    let (reason, message) = recording_node.refused("many");
    assert_eq!(reason, "UnexpectedAdmissionError");
    assert_eq!(
        message,
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for \
         example.com/thing. Requested: 2, Available: 1, which is unexpected"
    );
    plugin.fail(Some(tonic::Status::internal("no \"such\"\nthing")));
    recording_node.control.create(&pod("fails", &[], &[container("fails", 1)])).unwrap();
    let (_, message) = recording_node.refused("fails");
    assert_eq!(
        message,
        "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = no \"such\"\nthing, \
         which is unexpected"
    );
    plugin.fail(None);

    // It registers again under another socket while the first still serves.
    config.socket = "again.sock".to_owned();
    config.devices = healthy.to_vec();
    let again = recording_node.plugin(config.clone());
    let listed = || !again.calls().is_empty();
    eventually(PATIENCE, "the second is asked for its options", listed).unwrap();
    recording_node.control.create(&pod("third", &[], &[container("third", 1)])).unwrap();
    let third = recording_node.node.wait_running("third", PATIENCE).unwrap();
    assert!(again.calls().iter().any(|call| call.starts_with("Allocate")), "{:?}", again.calls());
    drop(plugin);
    for name in ["many", "fails", "shares"] {
        recording_node.delete(name);
    }

    // The checkpoint is cut while nobody looks: what runs goes on, and nothing is known of its devices.
    recording_node.node.kill_kubelet();
    let file = dir.join("kubelet_internal_checkpoint");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    drop(again);
    recording_node.node.start_kubelet(recording_node.kind).unwrap();
    config.socket = "last.sock".to_owned();
    let last = recording_node.plugin(config);
    recording_node.reports("3", "3");
    assert_eq!(
        recording_node.node.wait_running("third", PATIENCE).unwrap(),
        third,
        "it was not restarted"
    );
    let (entries, registered) = remembered(&dir);
    assert_eq!(entries, Vec::<String>::new());
    assert_eq!(registered, json!({RESOURCE: ["d1", "d2", "d3"]}));
    // Its device could be given twice, but what others ask for counts all the same.
    recording_node.control.create(&pod("all", &[], &[container("all", 3)])).unwrap();
    let (reason, message) = recording_node.refused("all");
    assert_eq!(reason, "OutOfexample.com/thing");
    assert_eq!(
        message,
        "Pod was rejected: Node didn't have enough resource: example.com/thing, requested: 3, used: 1, \
         capacity: 3"
    );
    drop(last);
}
