//! Dynamic resources from a claim to the container, with Kubernetes' own test driver. `KUBELET=go` runs the same under
//! the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode, eventually,
    eventually_some,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

/// A claim that is allocated by hand, as the scheduler would.
fn claim(control: &ControlPlane, name: &str, driver: &str) {
    control
        .create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [
                {"name": "req", "exactly": {"deviceClassName": "test", "allocationMode": "ExactCount", "count": 1}}]}}
        }))
        .unwrap();
    let device = format!("device-{name}");
    patch_status(
        control,
        name,
        &json!({"allocation": {"devices": {"results": [
            {"request": "req", "driver": driver, "pool": "node1", "device": device}]}}}),
    );
}

fn patch_status(control: &ControlPlane, name: &str, status: &Value) {
    let patch = json!({"status": status}).to_string();
    control
        .kubectl([
            "patch",
            "resourceclaim",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])
        .unwrap();
}

/// Reserves the claim for the pod and gives the pod to the node, as the scheduler would.
fn schedule(node: &TestNode, control: &ControlPlane, claim: &str, pod: &str) {
    let object = control.get(["pod", pod]).unwrap();
    let user = json!({"resource": "pods", "name": pod, "uid": object["metadata"]["uid"]});
    patch_status(control, claim, &json!({"reservedFor": [user]}));
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"}
    });
    let file = node.slot().write("etc/binding.json", binding.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    control.kubectl(["create", "--raw", &path, "-f", &file.to_string_lossy()]).unwrap();
}

fn pod(name: &str, claim: &str) -> Value {
    let command = "env; trap 'exit 0' TERM; sleep 3600 & wait";
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "resourceClaims": [{"name": "it", "resourceClaimName": claim}],
            "containers": [{
                "name": name, "image": IMAGE, "command": ["sh", "-c", command],
                "resources": {"claims": [{"name": "it", "request": "req"}]}
            }]
        }
    })
}

fn driver(node: &TestNode, control: &ControlPlane, name: &str) -> Service {
    std::fs::create_dir_all(node.root_dir().join("plugins").join(name)).unwrap();
    let mut command = Command::new(node.part("dra-test-driver").unwrap());
    command.arg("--kubeconfig").arg(control.kubeconfig("admin"));
    command.args(["--drivername", name, "kubelet-plugin", "--node-name", "node1"]);
    command.arg("--plugin-registration-path").arg(node.root_dir().join("plugins_registry"));
    command.arg("--datadir").arg(node.root_dir().join("plugins"));
    node.start_beside("dra-driver", command).unwrap()
}

fn slices(control: &ControlPlane) -> usize {
    let list = control.get(["resourceslice"]).unwrap_or_default();
    list["items"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_claim_is_prepared_for_its_pod_and_unprepared_after_it() {
    let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default()).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    control
        .create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "test"}, "spec": {}
        }))
        .unwrap();
    // A pod that waits for its driver is tried again with every look.
    let config = json!({"syncFrequency": "5s"});
    let options = KubeletOptions { own_devices: true, config, ..KubeletOptions::default() };
    let mut node =
        TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    // CDI specifications are shared by the machine: a name of our own.
    let name = format!("test-{}.cdi.k8s.io", std::process::id());
    claim(&control, "one", &name);
    control.create(&pod("one", "one")).unwrap();
    schedule(&node, &control, "one", "one");
    eventually(PATIENCE, "the pod waits for its driver", || {
        let events = control.get(["events"]).unwrap_or_default().to_string();
        events.contains(&format!(
            "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {name} is not registered"
        ))
    })
    .unwrap();

    let mut plugin = driver(&node, &control, &name);
    eventually(PATIENCE, "the driver offers its devices", || slices(&control) == 1).unwrap();
    let id = node.wait_running("one", PATIENCE).unwrap();
    let log = eventually_some(PATIENCE, "the container has printed", || {
        node.crictl(["logs", &id]).ok().filter(|log| log.contains("HOME="))
    })
    .unwrap();
    assert!(log.contains("claim_one_req=true"), "{log}");
    let state = node.root_dir().join("dra_manager_state");
    let text = std::fs::read_to_string(&state).unwrap();
    assert!(text.contains("\\\"ClaimName\\\":\\\"one\\\""), "{text}");
    assert!(text.contains("CDIDeviceIDs"), "{text}");
    let shown = eventually_some(PATIENCE, "the status shows the claim's device", || {
        let pod = control.get(["pod", "one"]).ok()?;
        let shown = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        (!shown.is_null()).then_some(shown)
    })
    .unwrap();
    assert_eq!(shown[0]["name"], "claim:it/req");

    node.kill_kubelet();
    node.start_kubelet(kind).unwrap();
    assert_eq!(node.wait_running("one", PATIENCE).unwrap(), id, "it was not restarted");
    control.kubectl(["delete", "pod", "one", "--wait=false"]).unwrap();
    eventually(PATIENCE, "the pod is gone", || control.get(["pod", "one"]).is_err()).unwrap();
    eventually(PATIENCE, "its claim is forgotten", || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        text.contains("ClaimInfoStateList") && !text.contains("ClaimName")
    })
    .unwrap();

    eventually(PATIENCE, "the driver offers its devices again", || slices(&control) == 1).unwrap();
    plugin.stop(Duration::from_secs(20));
    eventually(PATIENCE, "a driver that is gone offers nothing", || slices(&control) == 0).unwrap();
}
