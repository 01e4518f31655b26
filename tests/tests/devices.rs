//! Devices of device plugins, from registration to the container, with Kubernetes' own sample plugin (a Go client that
//! dials our socket by its path). `KUBELET=go` runs the same under the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode, eventually,
    eventually_some, run,
};

const PATIENCE: Duration = Duration::from_secs(90);
const RESOURCE: &str = "example.com/resource";

fn pod(name: &str, devices: u32) -> Value {
    let command = "ls /tmp; trap 'exit 0' TERM; sleep 3600 & wait";
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": name, "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "command": ["sh", "-c", command],
                "resources": {"limits": {RESOURCE: devices.to_string()}}
            }]
        }
    })
}

fn sample_plugin(node: &TestNode) -> Service {
    let program = node.part("sample-device-plugin").unwrap();
    let mut command = node.command(program).unwrap();
    command.env("PLUGIN_SOCK_DIR", "/var/lib/kubelet/device-plugins");
    node.start_beside("device-plugin", command).unwrap()
}

/// What the node reports: capacity and allocatable.
fn reported(control: &ControlPlane) -> (String, String) {
    let node = control.get(["node", "node1"]).unwrap_or_default();
    let of = |list: &str| node["status"][list][RESOURCE].as_str().unwrap_or_default().to_owned();
    (of("capacity"), of("allocatable"))
}

fn reports(control: &ControlPlane, capacity: &str, allocatable: &str) {
    let wanted = (capacity.to_owned(), allocatable.to_owned());
    let what = format!("the node reports {capacity} and {allocatable}");
    let reached = eventually(PATIENCE, &what, || reported(control) == wanted);
    reached.unwrap_or_else(|error| panic!("{error:#}; it reports {:?}", reported(control)));
}

fn health(control: &ControlPlane, name: &str) -> Value {
    let pod = control.get(["pod", name]).unwrap_or_default();
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone()
}

#[test]
fn devices_reach_a_container_and_stay_with_it() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let options = KubeletOptions { own_devices: true, ..KubeletOptions::default() };
    let mut node =
        TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let plugin = sample_plugin(&node);
    reports(&control, "2", "2");

    control.create(&pod("one", 1)).unwrap();
    let id = node.wait_running("one", PATIENCE).unwrap();
    let log = eventually_some(PATIENCE, "the container has printed", || {
        node.crictl(["logs", &id]).ok().filter(|log| !log.is_empty())
    });
    assert!(log.as_ref().unwrap().contains("Dev-"), "{log:?}");
    let checkpoint = node.devices_dir().join("kubelet_internal_checkpoint");
    let text = std::fs::read_to_string(&checkpoint).unwrap();
    assert!(text.contains("\"ContainerName\":\"one\""), "{text}");
    eventually(PATIENCE, "the status shows its device as healthy", || {
        let health = health(&control, "one");
        health[0]["name"] == RESOURCE && health[0]["resources"][0]["health"] == "Healthy"
    })
    .unwrap();

    control.create(&pod("three", 3)).unwrap();
    let refused = eventually_some(PATIENCE, "too much is refused", || {
        let pod = control.get(["pod", "three"]).ok()?;
        (pod["status"]["phase"] == "Failed").then(|| pod["status"].clone())
    })
    .unwrap();
    assert_eq!(refused["reason"], "UnexpectedAdmissionError");
    assert_eq!(
        refused["message"],
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for \
         example.com/resource. Requested: 3, Available: 1, which is unexpected"
    );

    node.kill_kubelet();
    node.start_kubelet(kind).unwrap();
    reports(&control, "2", "2");
    assert_eq!(node.wait_running("one", PATIENCE).unwrap(), id, "it was not restarted");

    drop(plugin);
    reports(&control, "2", "0");
    node.kill_kubelet();
    node.start_kubelet(kind).unwrap();
    reports(&control, "0", "0");
    assert_eq!(node.wait_running("one", PATIENCE).unwrap(), id, "its plugin is gone, it is not");
    let phase = control.get(["pod", "one"]).unwrap()["status"]["phase"].clone();
    assert_eq!(phase, "Running");

    let _plugin = sample_plugin(&node);
    reports(&control, "2", "2");
    control.kubectl(["delete", "pod", "one", "--wait=false"]).unwrap();
    eventually(PATIENCE, "the pod is gone", || control.get(["pod", "one"]).is_err()).unwrap();
    control.create(&pod("both", 2)).unwrap();
    node.wait_running("both", PATIENCE).unwrap();
}

/// As after a reboot: nothing of the pod runs and its plugin has not come back yet. The Go kubelet refuses it.
#[test]
fn a_pod_waits_for_its_plugin_where_that_is_asked_for() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::Rubelet;
    let env = vec![("RUBELET_LATE_DEVICES".to_owned(), "wait".to_owned())];
    let options = KubeletOptions { own_devices: true, env, ..KubeletOptions::default() };
    let mut node =
        TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let plugin = sample_plugin(&node);
    reports(&control, "2", "2");
    control.create(&pod("one", 1)).unwrap();
    let first = node.wait_running("one", PATIENCE).unwrap();
    node.kill_kubelet();
    drop(plugin);
    node.crictl(["stop", "--timeout", "0", &first]).unwrap();
    node.start_kubelet(kind).unwrap();
    let reason = || control.get(["pod", "one"]).ok().map(|pod| pod["status"]["reason"].clone());
    let waits = || reason().is_some_and(|reason| reason == "WaitingForDevices");
    eventually(PATIENCE, "the pod says what it waits for", waits).unwrap();

    let _plugin = sample_plugin(&node);
    let second = node.wait_running("one", PATIENCE).unwrap();
    assert_ne!(second, first);
    eventually(PATIENCE, "nothing of the wait stays", || reason() == Some(Value::Null)).unwrap();
    let pod = control.get(["pod", "one"]).unwrap();
    assert_eq!(pod["status"]["phase"], "Running");
}

/// A plugin that was stopped in the middle of its life: whoever needs it waits for its answer and says so, whoever
/// does not starts beside. In the Go kubelet no pod starts any more.
#[test]
fn a_plugin_that_hangs_holds_up_its_own_pods_alone() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let options = KubeletOptions { own_devices: true, ..KubeletOptions::default() };
    let builder = TestNode::builder().kubelet(KubeletKind::Rubelet).options(options);
    let node = builder.join(&control).start().unwrap();
    let plugin = sample_plugin(&node);
    reports(&control, "2", "2");
    let signal = |name: &str| run("kill", [name, plugin.pid().to_string().as_str()]).unwrap();
    signal("-STOP");
    control.create(&pod("needy", 1)).unwrap();
    let reason = || control.get(["pod", "needy"]).ok().map(|pod| pod["status"]["reason"].clone());
    let waits = || reason().is_some_and(|reason| reason == "WaitingForDevices");
    eventually(PATIENCE, "the pod says what it waits for", waits).unwrap();

    let mut modest = pod("modest", 0);
    modest["spec"]["containers"][0]["resources"] = json!({});
    control.create(&modest).unwrap();
    node.wait_running("modest", PATIENCE).unwrap();
    assert!(waits(), "nobody answered for the other: {:?}", reason());

    signal("-CONT");
    node.wait_running("needy", PATIENCE).unwrap();
    eventually(PATIENCE, "nothing of the wait stays", || reason() == Some(Value::Null)).unwrap();
}

/// Extended resources that somebody else gave the node: it was there before this machine's folder of plugins
/// was emptied, as after a new installation.
#[test]
fn an_existing_node_keeps_resources_that_no_plugin_gave_it() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let options = KubeletOptions { own_devices: true, ..KubeletOptions::default() };
    let mut node =
        TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let version = || -> Option<String> {
        let node = control.get(["node", "node1"]).ok()?;
        node["status"]["nodeInfo"]["kubeletVersion"].as_str().map(str::to_owned)
    };
    eventually_some(PATIENCE, "the node is there", version).unwrap();
    node.kill_kubelet();
    for entry in std::fs::read_dir(node.devices_dir()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let given = r#"{"status":{"capacity":{"example.com/resource":"4"},"nodeInfo":{"kubeletVersion":"gone"}}}"#;
    control
        .kubectl(["patch", "node", "node1", "--subresource=status", "--type=merge", "-p", given])
        .unwrap();
    node.start_kubelet(kind).unwrap();
    eventually(PATIENCE, "the node reports again", || version().is_some_and(|v| v != "gone"))
        .unwrap();
    reports(&control, "4", "4");
}
