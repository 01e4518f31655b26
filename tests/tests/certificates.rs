//! Client and serving certificates, signed by the real signer for a minute or less.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test on the real machine")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, TestNode, eventually_some,
};
use tests::cluster::{PATIENCE, PAUSE, Space, condition};

/// A control plane that signs for this long and approves what nodes ask for themselves.
fn signer(duration: &str) -> Arc<ControlPlane> {
    let control = ControlPlane::start(&ControlPlaneOptions {
        controller_manager: true,
        signing_duration: duration.to_owned(),
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    let approve = "system:certificates.k8s.io:certificatesigningrequests";
    for (name, role, group) in [
        ("boot", "system:node-bootstrapper".to_owned(), "system:bootstrappers"),
        ("new", format!("{approve}:nodeclient"), "system:bootstrappers"),
        ("renew", format!("{approve}:selfnodeclient"), "system:nodes"),
    ] {
        let (role, group) = (format!("--clusterrole={role}"), format!("--group={group}"));
        control.kubectl(["create", "clusterrolebinding", name, &role, &group]).unwrap();
    }
    Arc::new(control)
}

fn options(control: &ControlPlane, config: Value) -> KubeletOptions {
    let fresh = control.kubeconfig("admin").with_file_name("fresh.kubeconfig");
    KubeletOptions {
        config,
        args: vec![
            format!("--kubeconfig={}", fresh.display()),
            format!("--bootstrap-kubeconfig={}", control.kubeconfig("bootstrap").display()),
        ],
        ..KubeletOptions::default()
    }
}

/// The files of client certificates, and the one in use.
fn client_certificates(node: &TestNode) -> (BTreeSet<String>, PathBuf) {
    let folder = node.root_dir().join("pki");
    let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let dated = |name: &String| name.starts_with("kubelet-client-2");
    (
        names.filter(dated).collect(),
        std::fs::read_link(folder.join("kubelet-client-current.pem")).unwrap_or_default(),
    )
}

fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": {
        "nodeName": "node1", "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "containers": [{ "name": "c", "image": PAUSE }],
    } })
}

#[test]
fn a_short_lived_client_certificate_is_renewed_while_pods_are_served() {
    // The signer dates certificates back by five minutes: of six minutes, more than the seven tenths
    // after which they are renewed are over before they arrive, or soon after.
    let control = signer("60s");
    let mut node = TestNode::builder()
        .options(options(&control, json!({ "rotateCertificates": true })))
        .kubelet(KubeletKind::from_env().unwrap())
        .join(&control)
        .start()
        .unwrap();
    let space = Space::default_of(&control);
    let first = client_certificates(&node).1;
    space.create(pod("before")).unwrap();
    space.wait_ready("before").unwrap();
    let renewed = || {
        let (all, current) = client_certificates(&node);
        (all.len() > 2 && current != first).then_some(())
    };
    eventually_some(PATIENCE, "two more certificates", renewed).unwrap();
    // With the new one everything goes on: pods come and go, the node stays ready.
    space.create(pod("after")).unwrap();
    space.wait_ready("after").unwrap();
    space.kubectl(&["delete", "pod", "before", "--timeout=60s"]).unwrap();
    let requests = control.get(["csr"]).unwrap();
    let own = |r: &&Value| r["spec"]["username"] == "system:node:node1";
    assert!(requests["items"].as_array().unwrap().iter().filter(own).count() > 1, "{requests}");
    let (code, text) = node.kubelet_get("/metrics").unwrap();
    assert_eq!(code, 200);
    let line = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
    let left = line("kubelet_certificate_manager_client_ttl_seconds ").unwrap();
    assert!((0.0..=60.0).contains(&left.trim().parse::<f64>().unwrap()), "{left}");
    assert!(text.contains("rest_client_requests_total{"), "requests are counted");
    node.stop_kubelet();
}

#[test]
fn a_machine_whose_certificate_is_over_joins_anew() {
    let control = signer("15s");
    let mut node = TestNode::builder()
        .options(options(&control, json!({ "rotateCertificates": true })))
        .kubelet(KubeletKind::from_env().unwrap())
        .join(&control)
        .start()
        .unwrap();
    node.stop_kubelet();
    let current = node.root_dir().join("pki/kubelet-client-current.pem");
    let is_over = || {
        let mut check = Command::new("openssl");
        check.args(["x509", "-noout", "-checkend", "0", "-in"]).arg(&current);
        (!check.output().unwrap().status.success()).then_some(())
    };
    eventually_some(Duration::from_secs(30), "the certificate is over", is_over).unwrap();
    let before = requests_of(&control, "bootstrap");
    node.start_kubelet(KubeletKind::from_env().unwrap()).unwrap();
    let space = Space::default_of(&control);
    space.create(pod("again")).unwrap();
    space.wait_ready("again").unwrap();
    assert!(requests_of(&control, "bootstrap") > before);
    node.stop_kubelet();
}

fn requests_of(control: &ControlPlane, user: &str) -> usize {
    let requests = control.get(["csr"]).unwrap();
    let items = requests["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter(|r| r["spec"]["username"] == user).count()
}

#[test]
fn a_serving_certificate_is_asked_for_and_used_once_approved() {
    let control = signer("60s");
    let config = json!({ "rotateCertificates": true, "serverTLSBootstrap": true });
    let mut node = TestNode::builder()
        .options(options(&control, config))
        .kubelet(KubeletKind::from_env().unwrap())
        .join(&control)
        .start()
        .unwrap();
    let serving = || {
        let requests = control.get(["csr"]).ok()?;
        let items = requests["items"].as_array()?;
        let own = |r: &&Value| r["spec"]["signerName"] == "kubernetes.io/kubelet-serving";
        items.iter().find(own).cloned()
    };
    let request = eventually_some(PATIENCE, "a request", serving).unwrap();
    assert_eq!(request["spec"]["username"], "system:node:node1");
    assert_eq!(request["spec"]["usages"], json!(["digital signature", "server auth"]));
    assert!(node.kubelet_get("/healthz").is_err(), "without a certificate there is no handshake");
    let name = request["metadata"]["name"].as_str().unwrap();
    control.kubectl(["certificate", "approve", name]).unwrap();
    let answers = || node.kubelet_get("/healthz").ok().filter(|(code, _)| *code == 200);
    eventually_some(PATIENCE, "the server answers", answers).unwrap();
    let mut peer = Command::new("sh");
    peer.arg("-c").arg(format!(
        "openssl s_client -connect 127.0.0.1:{} </dev/null 2>/dev/null | openssl x509 -noout -subject",
        node.api_port()
    ));
    let subject = String::from_utf8(peer.output().unwrap().stdout).unwrap();
    assert!(subject.contains("system:nodes") && subject.contains("system:node:node1"), "{subject}");
    let object = control.get(["node", "node1"]).unwrap();
    assert_eq!(condition(&object, "Ready"), "True");
    node.stop_kubelet();
}
