//! Bootstrap, rotation and serving certificates with the real signer of a real control plane.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kubeapi::certs::{ClientCertConfig, ServingConfig, establish, serving};
use kubeapi::connection::ClientIdentity;
use kubeapi::{ConnectionConfig, Kubeconfig, NodeApi, PodWatchEvent, watch_pods};
use ports::{NodeView, OnExit, SystemClock, Tasks};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use testkit::real::{ControlPlane, ControlPlaneOptions, eventually, eventually_some};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(40);

fn bind(control: &ControlPlane, name: &str, role: &str, group: &str) {
    let (role, group) = (format!("--clusterrole={role}"), format!("--group={group}"));
    control.kubectl(["create", "clusterrolebinding", name, &role, &group]).unwrap();
}

/// The signer backdates certificates by five minutes, so that short-lived ones are due at once.
fn control(signing_duration: &str) -> ControlPlane {
    let options = ControlPlaneOptions {
        controller_manager: true,
        signing_duration: signing_duration.into(),
        ..ControlPlaneOptions::default()
    };
    let control = ControlPlane::start(&options).unwrap();
    let approve = "system:certificates.k8s.io:certificatesigningrequests";
    bind(&control, "boot", "system:node-bootstrapper", "system:bootstrappers");
    bind(&control, "new", &format!("{approve}:nodeclient"), "system:bootstrappers");
    bind(&control, "renew", &format!("{approve}:selfnodeclient"), "system:nodes");
    control
}

/// Expiry times of the certificates that were in use, until `done`.
async fn follow(identity: &ClientIdentity, done: impl Fn(&[i64]) -> bool) -> Vec<i64> {
    let mut ends: Vec<i64> = Vec::new();
    let looking = async {
        while !done(&ends) {
            let end = identity.current().map(|pair| pair.not_after().as_second());
            if end.is_some() && ends.last().copied() != end {
                ends.extend(end);
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap();
    ends
}

fn certificates(folder: &Path) -> usize {
    let names = sys::fs::list_dir(folder).unwrap();
    names.iter().filter(|n| n.starts_with("kubelet-client-2")).count()
}

#[test]
fn a_machine_becomes_a_node_rotates_and_comes_back_after_expiry() {
    let control = control("20s");
    let folder = control.kubeconfig("admin").with_file_name("client");
    let config = ClientCertConfig {
        node_name: "node1".into(),
        kubeconfig: folder.join("kubeconfig"),
        bootstrap_kubeconfig: Some(control.kubeconfig("bootstrap")),
        cert_dir: folder.join("pki"),
        rotate: true,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = Tasks::new();
        let settings = ConnectionConfig::default();
        let made = establish(&config, &settings, Arc::new(SystemClock)).await.unwrap();
        let identity = Arc::clone(made.connection.identity());
        assert!(!identity.is_present(), "nothing is waited for");
        tasks.spawn("rotation", OnExit::Fine, made.rotation.unwrap().run(tasks.token()));
        follow(&identity, |ends| ends.len() == 1).await;
        let node = serde_json::from_value(json!({"metadata": {"name": "node1"}})).unwrap();
        NodeApi::new(&made.connection, "node1").create(&node).await.unwrap();
        let written = Kubeconfig::read(&config.kubeconfig).unwrap();
        assert!(written.client_pair().unwrap().is_some(), "the kubeconfig points at it");
        let (out, mut pods) = watch::channel(None);
        let watching = watch_pods(made.connection.clone(), "node1".into(), out, tasks.token());
        tasks.spawn("pods", OnExit::Fine, watching);
        let seen = |count: usize| {
            move |e: &Option<PodWatchEvent>| e.as_ref().is_some_and(|e| e.pods.len() == count)
        };
        tokio::time::timeout(PATIENCE, pods.wait_for(seen(0))).await.unwrap().unwrap();

        let first = certificates(&config.cert_dir);
        follow(&identity, |ends| ends.len() == 2).await;
        assert!(certificates(&config.cert_dir) > first);
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p1", "namespace": "default"},
            "spec": {"nodeName": "node1", "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "i"}]}});
        control.create(&pod).unwrap();
        tokio::time::timeout(PATIENCE, pods.wait_for(seen(1))).await.unwrap().unwrap();

        // Without approval of renewals the certificate expires; the bootstrap credentials bring a
        // new one.
        control.kubectl(["delete", "clusterrolebinding", "renew"]).unwrap();
        let last = identity.current().unwrap().not_after();
        let expired = last.as_second();
        follow(&identity, |ends| ends.last().is_some_and(|end| *end > expired + 15)).await;
        NodeApi::new(&made.connection, "node1").get().await.unwrap();
        tasks.shutdown().await;
    });
}

#[test]
fn a_single_bootstrap_leaves_a_usable_kubeconfig() {
    let control = control("1h");
    let folder = control.kubeconfig("admin").with_file_name("client");
    let config = ClientCertConfig {
        node_name: "node1".into(),
        kubeconfig: folder.join("kubeconfig"),
        bootstrap_kubeconfig: Some(control.kubeconfig("bootstrap")),
        cert_dir: folder.join("pki"),
        rotate: false,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = ConnectionConfig::default();
        let made = establish(&config, &settings, Arc::new(SystemClock)).await.unwrap();
        assert!(made.rotation.is_none());
        let node = serde_json::from_value(json!({"metadata": {"name": "node1"}})).unwrap();
        NodeApi::new(&made.connection, "node1").create(&node).await.unwrap();
        let leftover = config.cert_dir.join("kubelet-client.key.tmp");
        assert!(!sys::fs::try_exists(leftover).unwrap());
    });
}

#[test]
fn serving_certificates_follow_the_nodes_addresses() {
    let control = Arc::new(control("1h"));
    let cert_dir = control.kubeconfig("admin").with_file_name("serving");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read(&control.kubeconfig("node1")).unwrap();
        let connection =
            kubeapi::Connection::new(&kubeconfig, &ConnectionConfig::default()).await.unwrap();
        let view = |address: &str| {
            let node = json!({"metadata": {"name": "node1"}, "status": {"addresses": [
                {"type": "Hostname", "address": "node1"},
                {"type": "InternalIP", "address": address}]}});
            let node = Some(Arc::new(serde_json::from_value(node).unwrap()));
            Arc::new(NodeView { node, ..NodeView::default() })
        };
        let (views, node) = watch::channel(Arc::new(NodeView::default()));
        let config = ServingConfig {
            node_name: "node1".into(),
            cert_dir,
            first: None,
            allow_dns_only: false,
        };
        let (identity, rotation) = serving(&connection, config, node, Arc::new(SystemClock));
        let tasks = Tasks::new();
        let state = rotation.state();
        tasks.spawn("rotation", OnExit::Fine, rotation.run(tasks.token()));
        for address in ["192.0.2.7", "192.0.2.8"] {
            views.send_replace(view(address));
            let approving = Arc::clone(&control);
            tokio::task::spawn_blocking(move || approve_pending(&approving)).await.unwrap();
            let wanted = [192, 0, 2, if address.ends_with('7') { 7 } else { 8 }];
            let named = async {
                loop {
                    let current = identity.current();
                    let leaf = current.as_ref().and_then(|pair| pair.chain().first());
                    if leaf.is_some_and(|leaf| leaf.windows(4).any(|w| w == wanted)) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            };
            let named = tokio::time::timeout(PATIENCE, named).await;
            assert!(named.is_ok(), "{address}: {:?}", *state.borrow());
        }
        tasks.shutdown().await;
    });
}

fn approve_pending(control: &ControlPlane) {
    let pending = || {
        let list = control.get(["csr"]).ok()?;
        let open =
            list["items"].as_array()?.iter().find(|c| c["status"]["conditions"].is_null())?;
        open["metadata"]["name"].as_str().map(str::to_owned)
    };
    let name = eventually_some(PATIENCE, "a serving request", pending).unwrap();
    control.kubectl(["certificate", "approve", &name]).unwrap();
    let signed = || {
        let csr = control.get(["csr", &name]).unwrap_or_default();
        csr["status"]["certificate"].is_string()
    };
    eventually(PATIENCE, "a signature", signed).unwrap();
}
