//! `kubectl top` through a real metrics-server, which reads the node's `/metrics/resource`: `make
//! top-test`. `KUBELET=go` runs it with the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, Service, TestNode, eventually,
    eventually_some,
};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
/// It scrapes every ten seconds and shows what it has seen twice.
const PATIENCE: Duration = Duration::from_secs(120);

fn start_metrics_server(node: &TestNode, control: &ControlPlane) -> (Service, u16) {
    let port = node.slot().free_port().unwrap();
    let admin = control.kubeconfig("admin").display().to_string();
    let mut command = Command::new(node.part("metrics-server").unwrap());
    command
        .arg(format!("--kubeconfig={admin}"))
        .arg(format!("--authentication-kubeconfig={admin}"))
        .arg(format!("--authorization-kubeconfig={admin}"))
        .arg(format!("--cert-dir={}", node.slot().path("metrics-server").display()))
        .arg(format!("--secure-port={port}"))
        .args(["--bind-address=127.0.0.1", "--metric-resolution=10s"])
        .arg("--kubelet-request-timeout=5s")
        .args(["--kubelet-insecure-tls", "--kubelet-use-node-status-port"])
        .arg("--kubelet-preferred-address-types=InternalIP");
    node.slot().release_ports();
    (node.start_beside("metrics-server", command).unwrap(), port)
}

/// Lets the API server hand metrics.k8s.io on to that port of this machine.
fn register(control: &ControlPlane, port: u16) {
    control
        .create(&json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "metrics-server", "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost",
                "ports": [{"port": port}]}}))
        .unwrap();
    control
        .create(&json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {"group": "metrics.k8s.io", "version": "v1beta1",
                "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"name": "metrics-server", "namespace": "kube-system",
                    "port": port}}}))
        .unwrap();
}

fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "node1", "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", script],
                "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}}}]}})
}

/// Cells of a line of a table that begins with `name`.
fn line(table: &str, name: &str) -> Option<Vec<String>> {
    let lines = table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
    lines.into_iter().find(|cells: &Vec<String>| cells.first().is_some_and(|c| c == name))
}

fn number(cell: &str) -> u64 {
    cell.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

#[test]
fn kubectl_top_shows_nodes_pods_and_containers() {
    let options = ControlPlaneOptions { aggregator: true, ..ControlPlaneOptions::default() };
    let control = Arc::new(ControlPlane::start(&options).unwrap());
    let kind = KubeletKind::from_env().unwrap();
    let options = KubeletOptions { config: control.guarded(), ..KubeletOptions::default() };
    let node = TestNode::builder().kubelet(kind).options(options).join(&control).start().unwrap();
    let (_service, port) = start_metrics_server(&node, &control);
    register(&control, port);
    control.create(&pod("busy", "while :; do :; done")).unwrap();
    control.create(&pod("idle", "sleep 36000")).unwrap();
    eventually(PATIENCE, "metrics.k8s.io is served", || {
        control.get(["apiservice", "v1beta1.metrics.k8s.io"]).is_ok_and(|service| {
            let conditions = service["status"]["conditions"].as_array().cloned();
            let is_true = |c: &Value| c["type"] == "Available" && c["status"] == "True";
            conditions.is_some_and(|list| list.iter().any(is_true))
        })
    })
    .unwrap();
    let busy = eventually_some(PATIENCE, "the busy pod is seen to be busy", || {
        let table = control.kubectl(["top", "pod"]).ok()?;
        line(&table, "idle")?;
        line(&table, "busy").filter(|cells| number(&cells[1]) > 50)
    })
    .unwrap();
    assert!((50..=300).contains(&number(&busy[1])), "a limit of 200m: {busy:?}");
    let table = control.kubectl(["top", "pod"]).unwrap();
    println!("{table}");
    let idle = line(&table, "idle").unwrap();
    assert!(number(&idle[1]) < 50 && number(&idle[2]) < 64, "{idle:?}");
    let containers = control.kubectl(["top", "pod", "--containers"]).unwrap();
    println!("{containers}");
    assert!(containers.lines().skip(1).all(|row| row.contains(" c ")), "{containers}");
    let table = control.kubectl(["top", "node"]).unwrap();
    println!("{table}");
    let row = line(&table, "node1").unwrap();
    assert!(number(&row[1]) > 0 && number(&row[3]) > 0, "{row:?}");
}
