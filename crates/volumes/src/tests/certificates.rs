//! Certificates for pods, with a scripted signer.

use super::fixture::eventually;
use super::{Fixture, pod};
use api::core::v1::Pod;
use ports::PodLife;
use serde_json::{Value, json};
use std::sync::Arc;

const CHAIN: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

fn fixture(name: &str) -> Fixture {
    Fixture::with(name, |config, _| config.pod_certificates = true)
}

fn wants_certificate(uid: &str, key_type: &str) -> Arc<Pod> {
    let source = json!({"podCertificate": {
        "signerName": "example.com/signer", "keyType": key_type, "maxExpirationSeconds": 3600,
        "credentialBundlePath": "bundle.pem", "keyPath": "key.pem",
        "certificateChainPath": "chain.pem", "userAnnotations": {"example.com/a": "b"}
    }});
    pod(uid, json!([{"name": "v", "projected": {"sources": [source], "defaultMode": 420}}]))
}

fn answer(kind: &str, refresh: &str) -> Value {
    json!({
        "conditions": [{"type": kind, "status": "True", "reason": "Why", "message": "because",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "certificateChain": format!("said by the signer\n{CHAIN}"),
        "beginRefreshAt": refresh, "notBefore": "2026-01-01T00:00:00Z",
        "notAfter": "2999-01-01T00:00:00Z"
    })
}

#[tokio::test]
async fn a_pod_gets_key_and_chain_and_later_new_ones() {
    let fixture = fixture("certificate");
    let p = wants_certificate("u", "ECDSAP256");
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("requested", || fixture.storage.requests.lock().unwrap().len() == 1).await;
    let request = Arc::clone(&fixture.storage.requests.lock().unwrap()["req-0"]);
    let (meta, spec) = (&request.metadata, &request.spec);
    assert_eq!(meta.generate_name.as_deref(), Some("req-"));
    let owner = &meta.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Pod", "u", None));
    assert_eq!((spec.node_name.as_str(), spec.node_uid.as_str()), ("node", "node-uid"));
    assert_eq!((spec.pod_name.as_str(), spec.service_account_uid.as_str()), ("p", "sa-uid"));
    assert_eq!(
        (spec.signer_name.as_str(), spec.max_expiration_seconds),
        ("example.com/signer", Some(3600))
    );
    assert_eq!(spec.unverified_user_annotations.as_ref().unwrap()["example.com/a"], "b");
    eventually("told", || {
        fixture.events.all().iter().any(|e| {
            e == "FailedMount: MountVolume.SetUp failed for volume \"v\" : credential bundle is not issued yet"
        })
    })
    .await;
    // Its refresh time is in the past, so the next one is requested at once.
    fixture.storage.answer_request("req-0", answer("Issued", "2020-01-01T00:00:00Z"));
    let path = fixture.ready(&p).await["v"].host_path.clone();
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    let first = read("key.pem");
    assert!(first.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(read("chain.pem"), CHAIN);
    assert_eq!(read("bundle.pem"), format!("{first}{CHAIN}"));
    eventually("asked again", || fixture.storage.requests.lock().unwrap().len() == 2).await;
    fixture.storage.answer_request("req-1", answer("Issued", "2999-01-01T00:00:00Z"));
    eventually("renewed", || read("key.pem") != first).await;
    eventually("counted", || {
        let line =
            "kubelet_podcertificate_states{signer_name=\"example.com/signer\",state=\"fresh\"} 1";
        fixture.registry.render().contains(line)
    })
    .await;
    fixture.end(&p).await;
}

#[tokio::test]
async fn a_refusal_is_told_and_stays() {
    let fixture = fixture("certificate-denied");
    let p = wants_certificate("u", "ED25519");
    fixture.show(&[(&p, PodLife::Syncing)]);
    eventually("requested", || fixture.storage.requests.lock().unwrap().len() == 1).await;
    fixture.storage.answer_request("req-0", answer("Denied", "2999-01-01T00:00:00Z"));
    let told = |text: &str| fixture.events.all().iter().any(|e| e.contains(text));
    eventually("told", || {
        told("Denied: Why%!(EXTRA string=PodCertificateRequest ns/req-0 was denied, reason=\"Why\", message=\"because\")")
            && told("PodCertificateRequest was permanently denied: reason=\"Why\" message=\"because\"")
    })
    .await;
    assert_eq!(fixture.storage.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn without_the_gate_nothing_is_asked_for() {
    let fixture = Fixture::new("certificate-off");
    let p = wants_certificate("u", "ED25519");
    fixture.show(&[(&p, PodLife::Syncing)]);
    let text = "FailedMount: MountVolume.SetUp failed for volume \"v\" : unimplemented";
    eventually("told", || fixture.events.all().iter().any(|e| e == text)).await;
    assert!(fixture.storage.requests.lock().unwrap().is_empty());
}
