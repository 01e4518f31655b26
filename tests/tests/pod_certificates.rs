//! `podCertificate` sources under a real API server with a small signer: keys and chains as the pod sees them,
//! what a refusal says, and a restart. `KUBELET=go` runs the same under the Go kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test on the real machine")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::real::{
    ControlPlane, ControlPlaneOptions, KubeletKind, KubeletOptions, PodSigner, TestNode,
    eventually, eventually_some, run,
};

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";

fn pod(name: &str, sources: &[Value]) -> Value {
    let sources: Vec<Value> =
        sources.iter().map(|source| json!({"podCertificate": source})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "node1", "serviceAccountName": "signed",
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 1234},
            "volumes": [{"name": "v", "projected": {"sources": sources}}],
            "containers": [{"name": "c", "image": IMAGE,
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]}]
        }
    })
}

struct RecordingNode {
    control: Arc<ControlPlane>,
    node: TestNode,
    signer: PodSigner,
    kind: KubeletKind,
}

impl RecordingNode {
    fn new() -> Self {
        let kind = KubeletKind::from_env().unwrap();
        let gate = "--feature-gates=PodCertificateRequest=true".to_owned();
        let served = "--runtime-config=certificates.k8s.io/v1beta1=true".to_owned();
        let options = ControlPlaneOptions {
            api_server_args: vec![gate, served],
            ..ControlPlaneOptions::default()
        };
        let control = Arc::new(ControlPlane::start(&options).unwrap());
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "signed", "namespace": "default"}});
        control.create(&account).unwrap();
        let config =
            json!({"featureGates": {"PodCertificateRequest": true}, "syncFrequency": "5s"});
        let node = TestNode::builder()
            .image(IMAGE.trim_start_matches("registry.k8s.io/"))
            .kubelet(kind)
            .options(KubeletOptions { config, ..KubeletOptions::default() })
            .join(&control)
            .start()
            .unwrap();
        let signer = PodSigner::new(&control).unwrap();
        Self { control, node, signer, kind }
    }

    fn is_ready(&self, name: &str) -> bool {
        let pod = self.control.get(["pod", name]).unwrap_or_default();
        pod["status"]["containerStatuses"][0]["ready"] == true
    }

    /// What the container prints.
    fn inside(&self, container: &str, command: &str) -> String {
        self.node.crictl(["exec", container, "sh", "-c", command]).unwrap()
    }

    /// Warnings about the pod.
    fn events(&self, pod: &str) -> Vec<String> {
        let list = self.control.get(["events"]).unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let text = |e: &Value, key: &str| e[key].as_str().unwrap_or_default().to_owned();
        (items.iter())
            .filter(|e| e["involvedObject"]["name"] == pod && e["type"] == "Warning")
            .map(|e| format!("{}: {}", text(e, "reason"), text(e, "message")))
            .collect()
    }
}

/// Key and certificates belong together, and the chain leads to the signer.
fn check_pair(dir: &Path, authority: &Path, key: &str, chain: &str, algorithm: &str) {
    let (key_file, chain_file) = (dir.join("key.pem"), dir.join("chain.pem"));
    std::fs::write(&key_file, key).unwrap();
    std::fs::write(&chain_file, chain).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    if !algorithm.starts_with("ED25519") {
        run("openssl", ["pkey", "-check", "-noout", "-in", &path(&key_file)]).unwrap();
    }
    let of_key = run("openssl", ["pkey", "-pubout", "-in", &path(&key_file)]).unwrap();
    let of_chain =
        run("openssl", ["x509", "-pubkey", "-noout", "-in", &path(&chain_file)]).unwrap();
    assert_eq!(of_key, of_chain, "{algorithm}");
    let shown = run("openssl", ["pkey", "-noout", "-text", "-in", &path(&key_file)]).unwrap();
    assert!(shown.contains(algorithm), "{algorithm}: {shown}");
    run("openssl", ["verify", "-CAfile", &path(authority), &path(&chain_file)]).unwrap();
    assert_eq!(chain.matches("-----BEGIN CERTIFICATE-----\n").count(), 2, "{chain}");
}

#[test]
fn pods_get_certificates_for_keys_of_their_own() {
    let mut recording_node = RecordingNode::new();
    let of = |signer: &str, kind: &str, paths: Value| {
        let mut source = json!({"signerName": format!("signer.test/{signer}"), "keyType": kind});
        for (key, value) in paths.as_object().unwrap() {
            source[key] = value.clone();
        }
        source
    };
    let pair = |name: &str| json!({"keyPath": format!("{name}.key"), "certificateChainPath": format!("{name}.crt")});
    let sources = [
        of("issues", "ECDSAP256", json!({"credentialBundlePath": "bundle.pem"})),
        of("issues", "ECDSAP384", pair("p384")),
        of("issues", "ED25519", pair("ed")),
        of("issues", "ECDSAP521", pair("p521")),
        of("issues", "RSA3072", pair("rsa3072")),
        of("issues", "RSA4096", pair("rsa4096")),
    ];
    recording_node.control.create(&pod("good", &sources)).unwrap();
    let denied = of("denies", "ED25519", json!({"credentialBundlePath": "b"}));
    recording_node.control.create(&pod("denied", &[denied])).unwrap();
    let failed = of("fails", "ED25519", json!({"credentialBundlePath": "b"}));
    recording_node.control.create(&pod("failed", &[failed])).unwrap();
    eventually(PATIENCE, "the pod has its certificates", || {
        recording_node.signer.pass().unwrap();
        recording_node.is_ready("good")
    })
    .unwrap();

    // What was asked.
    let requests = recording_node.signer.pass().unwrap();
    let object = recording_node.control.get(["pod", "good"]).unwrap();
    let own: Vec<&Value> =
        (requests.iter()).filter(|r| r["spec"]["podUID"] == object["metadata"]["uid"]).collect();
    assert_eq!(own.len(), 6);
    for request in own {
        assert!(request["metadata"]["name"].as_str().unwrap().starts_with("req-"));
        assert_eq!(request["metadata"]["ownerReferences"][0]["name"], "good");
        assert_eq!(request["spec"]["serviceAccountName"], "signed");
        assert_eq!(request["spec"]["nodeName"], "node1");
    }

    // What the pod sees.
    let container = recording_node.node.wait_running("c", PATIENCE).unwrap();
    let listed = recording_node.inside(&container, "cd /v; stat -L -c '%a %u %n' *");
    let pairs = ["ed", "p384", "p521", "rsa3072", "rsa4096"];
    let files = pairs.into_iter().flat_map(|name| [format!("{name}.crt"), format!("{name}.key")]);
    let modes: Vec<String> = std::iter::once("bundle.pem".to_owned())
        .chain(files)
        .map(|name| format!("600 1234 {name}"))
        .collect();
    assert_eq!(listed.trim(), modes.join("\n"));
    let scratch = recording_node.control.folder("looked-at").unwrap();
    let authority = recording_node.signer.authority();
    for (name, algorithm) in [
        ("p384", "secp384r1"),
        ("p521", "secp521r1"),
        ("ed", "ED25519 Private-Key"),
        ("rsa3072", "Private-Key: (3072 bit, 2 primes)"),
        ("rsa4096", "Private-Key: (4096 bit, 2 primes)"),
    ] {
        let key = recording_node.inside(&container, &format!("cat /v/{name}.key"));
        let chain = recording_node.inside(&container, &format!("cat /v/{name}.crt"));
        check_pair(&scratch, &authority, &key, &chain, algorithm);
    }
    let bundle = recording_node.inside(&container, "cat /v/bundle.pem");
    let (key, chain) = bundle.split_at(bundle.find("-----BEGIN CERTIFICATE").unwrap());
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{bundle:?}");
    check_pair(&scratch, &authority, key, chain, "prime256v1");

    // What a refusal says.
    for (name, told, how, past, reason, message) in [
        ("denied", "Denied", "was denied", "denied", "NotYou", "not for \\\"you\\\""),
        ("failed", "Failed", "failed", "failed", "NoInk", "the pen is dry"),
    ] {
        let refusal = |request: &&Value| request["spec"]["podName"] == name;
        let request = requests.iter().find(refusal).unwrap()["metadata"]["name"].clone();
        let request = request.as_str().unwrap();
        let event = format!(
            "{told}: {reason}%!(EXTRA string=PodCertificateRequest default/{request} {how}, reason=\"{reason}\", message=\"{message}\")"
        );
        let mount = format!(
            "FailedMount: MountVolume.SetUp failed for volume \"v\" : PodCertificateRequest was permanently {past}: reason=\"{reason}\" message=\"{message}\""
        );
        for expected in [event, mount] {
            eventually(PATIENCE, &format!("an event: {expected}"), || {
                recording_node.events(name).contains(&expected)
            })
            .unwrap_or_else(|error| panic!("{error:#}: {:#?}", recording_node.events(name)));
        }
        assert!(!recording_node.is_ready(name));
    }
    let states = |page: &str| {
        let mut lines: Vec<String> = (page.lines())
            .filter(|line| line.starts_with("kubelet_podcertificate_states{"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines.join("\n")
    };
    let expected = "kubelet_podcertificate_states{signer_name=\"signer.test/denies\",state=\"denied\"} 1\n\
        kubelet_podcertificate_states{signer_name=\"signer.test/fails\",state=\"failed\"} 1\n\
        kubelet_podcertificate_states{signer_name=\"signer.test/issues\",state=\"fresh\"} 6";
    eventually_some(PATIENCE, "the metric counts each", || {
        let (_, page) = recording_node.node.kubelet_get("/metrics").ok()?;
        (states(&page) == expected).then_some(())
    })
    .unwrap();

    // Nothing survives a restart: a new key, signed anew, under the running container.
    let before = recording_node.inside(&container, "cat /v/ed.key");
    let kind = recording_node.kind;
    recording_node.node.stop_kubelet();
    recording_node.node.start_kubelet(kind).unwrap();
    eventually(PATIENCE, "a new certificate is there", || {
        recording_node.signer.pass().unwrap();
        recording_node.inside(&container, "cat /v/ed.key") != before
    })
    .unwrap();
    let key = recording_node.inside(&container, "cat /v/ed.key");
    let chain = recording_node.inside(&container, "cat /v/ed.crt");
    check_pair(&scratch, &authority, &key, &chain, "ED25519 Private-Key");
}
