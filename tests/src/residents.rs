//! A node whose pods stay: of every class, static, resized, probed, with volumes of every kind, a device and a CPU of
//! their own. Whoever takes the node over must leave them as they are.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use testkit::csi_driver::{CsiDriver, CsiDriverConfig};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode, eventually,
};

use crate::observe::Observer;

const PATIENCE: Duration = Duration::from_secs(120);
/// The namespace of the pods.
pub const NAMESPACE: &str = "swap";
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const DRIVER: &str = "swap.test";
const DEVICE: &str = "example.com/resource";
/// What a container does that stays.
pub const STAYS: &str = "touch /tmp/up; trap 'exit 0' TERM; sleep 3600 & wait";

/// A pod of the node; one whose name begins with `static` is a manifest.
#[must_use]
pub fn pod(name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    if !name.starts_with("static") {
        pod["spec"]["nodeName"] = json!("node1");
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    pod
}

/// The only container of a pod, with more fields.
#[must_use]
pub fn container(extra: &Value) -> Value {
    let mut container = json!({ "name": "main", "image": IMAGE, "command": ["sh", "-c", STAYS] });
    for (key, value) in extra.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    container
}

/// The spec of a pod with one container.
#[must_use]
pub fn one(extra: &Value) -> Value {
    json!({ "containers": [container(extra)] })
}

/// The spec of a pod with one volume, mounted at `/v`.
#[must_use]
pub fn mounted(source: Value, command: &str) -> Value {
    let mut volume = source;
    volume["name"] = json!("v");
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let command = ["sh", "-c", command];
    let container = container(&json!({ "volumeMounts": mounts, "command": command }));
    json!({ "containers": [container], "volumes": [volume] })
}

/// All three kinds of probe, asked in this way.
fn probes(how: &Value) -> Value {
    let mut probe = how.clone();
    probe["periodSeconds"] = json!(1);
    // What an unready moment of the server would show is not the matter here.
    probe["timeoutSeconds"] = json!(20);
    json!({ "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe })
}

/// All three kinds of probe by a command that succeeds.
#[must_use]
pub fn by_exec() -> Value {
    probes(&json!({ "exec": { "command": ["test", "-f", "/tmp/up"] } }))
}

fn agnhost(args: &[&str], how: &Value) -> Value {
    let mut extra = probes(how);
    (extra["image"], extra["command"], extra["args"]) = (json!(AGNHOST), json!(null), json!(args));
    one(&extra)
}

fn statics() -> Vec<Value> {
    vec![pod("static", one(&json!({}))), pod("static-probed", one(&by_exec()))]
}

/// Whole CPUs are exclusive; half of one is kept back, so that the small pods fit beside.
#[must_use]
pub fn options() -> KubeletOptions {
    KubeletOptions {
        own_devices: true,
        config: json!({ "cpuManagerPolicy": "static", "systemReserved": { "cpu": "500m" } }),
        ..KubeletOptions::default()
    }
}

/// Pods of many kinds, all of which stay.
fn pods() -> Vec<Value> {
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } });
    let amount = json!({ "cpu": "50m", "memory": "32Mi" });
    let whole = json!({ "cpu": "1", "memory": "32Mi" });
    let field = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    let claim = json!({ "persistentVolumeClaim": { "claimName": "files" } });
    let http = json!({ "httpGet": { "path": "/healthz", "port": 8080 } });
    let unready =
        json!({ "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 } });
    let once = format!("test -f /v/once || {{ touch /v/once; exit 3; }}; {STAYS}");
    let mut owned = pod("owned", one(&json!({})));
    owned["metadata"]["labels"] = json!({ "app": "owned", "pod-template-hash": "5d4f8c7b9" });
    owned["metadata"]["ownerReferences"] = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "name": "owned", "uid": "00000000-0000-4000-8000-000000000001", "controller": true }]);
    let mut done = pod("done", one(&json!({ "command": ["true"] })));
    done["spec"]["restartPolicy"] = json!("Never");
    vec![
        owned,
        done,
        pod("exec", one(&by_exec())),
        pod("http", agnhost(&["netexec", "--http-port=8080"], &http)),
        pod("tcp", agnhost(&["netexec"], &json!({ "tcpSocket": { "port": 8080 } }))),
        pod("grpc", agnhost(&["grpc-health-checking"], &json!({ "grpc": { "port": 5000 } }))),
        pod("unready", one(&unready)),
        pod("restarted", mounted(json!({ "emptyDir": {} }), &once)),
        pod(
            "sidecar",
            json!({
                "initContainers": [
                    { "name": "once", "image": IMAGE, "command": ["true"] },
                    lay_over(json!({ "name": "side", "image": IMAGE, "restartPolicy": "Always",
                        "command": ["sh", "-c", STAYS] }), &by_exec()),
                ],
                "containers": [container(&by_exec())],
            }),
        ),
        pod("exclusive", one(&json!({ "resources": { "limits": whole, "requests": whole } }))),
        pod("device", one(&json!({ "resources": { "limits": { DEVICE: "1" } } }))),
        pod("guaranteed", one(&json!({ "resources": { "limits": amount, "requests": amount } }))),
        pod("resized", one(&json!({ "resources": { "limits": whole, "requests": amount } }))),
        pod("scratch", mounted(json!({ "emptyDir": { "medium": "Memory" } }), STAYS)),
        pod("settings", mounted(json!({ "configMap": { "name": "settings" } }), STAYS)),
        pod("token", mounted(json!({ "projected": { "sources": [token] } }), STAYS)),
        pod("fields", mounted(json!({ "downwardAPI": { "items": [field] } }), STAYS)),
        pod("host", mounted(json!({ "hostPath": { "path": "/etc" } }), STAYS)),
        pod("claim", mounted(claim, STAYS)),
        pod("inline", mounted(json!({ "csi": { "driver": DRIVER } }), STAYS)),
    ]
}

fn lay_over(mut base: Value, extra: &Value) -> Value {
    for (key, value) in extra.as_object().into_iter().flatten() {
        base[key] = value.clone();
    }
    base
}

/// What a claim needs: its driver's object, the claim, and the volume that is bound to it.
fn make_storage(control: &ControlPlane) -> anyhow::Result<()> {
    let named = |kind: &str, spec: Value| {
        let metadata = json!({ "name": "files", "namespace": NAMESPACE });
        let mut object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata });
        object["spec"] = lay_over(
            json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "manual" }),
            &spec,
        );
        object
    };
    let amount = json!({ "storage": "16Mi" });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER },
        "spec": { "attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"] },
    });
    control.create(&class)?;
    let claim = json!({ "volumeName": "files", "resources": { "requests": amount } });
    control.create(&named("PersistentVolumeClaim", claim))?;
    let uid = control.get(["pvc", "files", "-n", NAMESPACE])?["metadata"]["uid"].clone();
    let volume = json!({
        "capacity": amount, "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": { "name": "files", "namespace": NAMESPACE, "uid": uid },
        "csi": { "driver": DRIVER, "volumeHandle": "h-files" },
    });
    control.create(&named("PersistentVolume", volume))?;
    let bound = json!({ "phase": "Bound", "capacity": amount, "accessModes": ["ReadWriteOnce"] });
    let bound = json!({ "status": bound }).to_string();
    let args = ["patch", "pvc", "files", "-n", NAMESPACE, "--subresource=status", "-p", &bound];
    control.kubectl(args)?;
    Ok(())
}

/// Whether a pod is in the state in which it stays.
#[must_use]
pub fn is_settled(name: &str, pod: &Value) -> bool {
    let main = &pod["status"]["containerStatuses"][0];
    match name {
        "done" => pod["status"]["phase"] == "Succeeded",
        "unready" => main["started"] == true,
        "restarted" => is_ready(pod) && main["restartCount"] == 1,
        _ => is_ready(pod),
    }
}

/// Whether a pod is Ready.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// The node with its pods.
#[derive(Debug)]
pub struct Residents {
    /// What the API server had of the pods.
    pub observer: Observer,
    /// The node.
    pub node: TestNode,
    /// The driver of the CSI volumes.
    pub driver: CsiDriver,
    /// The cluster.
    pub control: Arc<ControlPlane>,
    _runtime: tokio::runtime::Runtime,
    data: PathBuf,
    /// Names of the pods, those of mirrors too.
    names: Vec<String>,
    _plugin: Service,
}

impl Residents {
    /// Starts a node with this kubelet and lets the usual pods and `more` come to rest on it.
    pub fn start(kind: KubeletKind, more: &[Value]) -> anyhow::Result<Residents> {
        let control = Arc::new(ControlPlane::start(&ControlPlaneOptions::default())?);
        let named = |kind: &str, name: &str, namespace: Option<&str>| {
            let metadata = json!({ "name": name, "namespace": namespace });
            json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })
        };
        control.create(&named("Namespace", NAMESPACE, None))?;
        control.create(&named("ServiceAccount", "default", Some(NAMESPACE)))?;
        for kind in ["ConfigMap", "Secret"] {
            let mut settings = named(kind, "settings", Some(NAMESPACE));
            settings["data"] = json!({ "a": "MQ==" });
            control.create(&settings)?;
        }
        make_storage(&control)?;
        let observer = Observer::start(&control, NAMESPACE)?;
        let node = TestNode::builder()
            .kubelet(kind)
            .options(options())
            .image(AGNHOST.trim_start_matches("registry.k8s.io/"))
            .join(&control)
            .start()?;
        let data = node.slot().path("csi-data");
        let mut config = CsiDriverConfig::new(DRIVER, &data);
        config.registry = Some(node.root_dir().join("plugins_registry"));
        let runtime = tokio::runtime::Runtime::new()?;
        let driver = runtime.block_on(async { CsiDriver::start(config) })?;
        eventually(PATIENCE, "the CSI driver is registered", || {
            let found = control.get(["csinode", "node1"]);
            found.is_ok_and(|node| node["spec"]["drivers"][0]["name"] == DRIVER)
        })?;
        let mut plugin = node.command(node.part("sample-device-plugin")?)?;
        plugin.env("PLUGIN_SOCK_DIR", "/var/lib/kubelet/device-plugins");
        let plugin = node.start_beside("device-plugin", plugin)?;
        eventually(PATIENCE, "the devices are allocatable", || {
            let found = control.get(["node", "node1"]);
            found.is_ok_and(|node| node["status"]["allocatable"][DEVICE] == "2")
        })?;
        let mut residents = Residents {
            observer,
            node,
            driver,
            control,
            _runtime: runtime,
            data,
            names: Vec::new(),
            _plugin: plugin,
        };
        for fixed in statics() {
            residents.add_static(&fixed)?;
        }
        for pod in pods().iter().chain(more) {
            residents.control.create(pod)?;
            let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
            residents.names.push(name.to_owned());
        }
        residents.settle()?;
        residents.resize()?;
        Ok(residents)
    }

    /// Puts a static pod in place.
    pub fn add_static(&mut self, pod: &Value) -> anyhow::Result<()> {
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
        self.node.add_manifest(&format!("{name}.json"), &pod.to_string())?;
        self.names.push(format!("{name}-node1"));
        Ok(())
    }

    /// Waits until every pod is in the state in which it stays.
    pub fn settle(&self) -> anyhow::Result<()> {
        for name in &self.names {
            eventually(PATIENCE, &format!("{name} has settled"), || {
                self.observer.pod(name).is_some_and(|pod| is_settled(name, &pod))
            })?;
        }
        Ok(())
    }

    /// One pod got other resources than it was created with (not a Guaranteed one: those have their
    /// CPUs from the static policy, which does not resize them).
    fn resize(&self) -> anyhow::Result<()> {
        let resources = json!({ "limits": { "cpu": "900m" }, "requests": { "cpu": "60m" } });
        let changed = json!({ "name": "main", "resources": resources });
        let patch = json!({ "spec": { "containers": [changed] } }).to_string();
        let args =
            ["patch", "pod", "resized", "-n", NAMESPACE, "--subresource=resize", "-p", &patch];
        self.control.kubectl(args)?;
        eventually(PATIENCE, "the pod is resized", || {
            self.observer.pod("resized").is_some_and(|pod| {
                let main = &pod["status"]["containerStatuses"][0];
                main["resources"]["limits"]["cpu"] == "900m"
                    && pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
            })
        })
    }

    /// Names of the pods, those of mirrors too.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

impl Drop for Residents {
    fn drop(&mut self) {
        self.node.stop_kubelet();
        drop(std::fs::remove_dir_all(&self.data));
    }
}
