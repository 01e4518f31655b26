//! Claims are found, checked, recorded and reported as upstream does.

use super::health::{DeviceHealth, HealthState};
use super::*;
use api::core::v1::{Container, Pod};
use api::resource::v1::ResourceClaim;
use jiff::Timestamp;
use serde_json::{Value, json};

fn pod(spec: Value, status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec, "status": status
    }))
    .unwrap()
}

fn claim(owner: &str, reserved: &str, driver: Option<&str>) -> ResourceClaim {
    let allocation = driver.map(|driver| {
        json!({"devices": {"results": [
            {"request": "r", "driver": driver, "pool": "pool", "device": "dev"}]}})
    });
    serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "cu", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]},
        "spec": {},
        "status": {"allocation": allocation,
            "reservedFor": [{"resource": "pods", "name": "p", "uid": reserved}]}
    }))
    .unwrap()
}

fn container(claims: Value) -> Container {
    serde_json::from_value(json!({"name": "c", "resources": {"claims": claims}})).unwrap()
}

fn prepared(state: &mut ClaimState) -> ClaimKey {
    let entry = claim_entry(&claim("u", "u", Some("d"))).unwrap();
    let missing = state.reserve("u", vec![entry]).unwrap();
    let key = missing[0].key();
    let device = PreparedDevice {
        pool: "pool".to_owned(),
        name: "dev".to_owned(),
        share: None,
        requests: vec!["r".to_owned()],
        cdi: vec!["vendor/class=x".to_owned()],
    };
    state.given(&key, "d", vec![device]).unwrap();
    state.prepared(std::slice::from_ref(&key)).unwrap();
    key
}

#[test]
fn claims_are_found_by_name_template_and_extended_resource() {
    let rules = ClaimRules { extended: true, groups: false };
    let spec = json!({"containers": [], "resourceClaims": [
        {"name": "a", "resourceClaimName": "direct"},
        {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "unused", "resourceClaimTemplateName": "t"}]});
    let status = json!({
        "resourceClaimStatuses": [
            {"name": "b", "resourceClaimName": "made"}, {"name": "unused"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "ext", "requestMappings": []}});
    let found = pod_claims(&pod(spec.clone(), status), rules).unwrap();
    let names: Vec<(&str, bool)> =
        found.iter().map(|claim| (claim.name.as_str(), claim.generated)).collect();
    assert_eq!(names, [("direct", false), ("made", true), ("ext", false)]);
    let early = pod_claims(&pod(spec, json!({})), rules).unwrap_err();
    assert_eq!(early.to_string(), "pod \"ns/p\": ResourceClaim not created yet");
    let wrong = json!({"containers": [], "resourceClaims": [{"name": "a"}]});
    assert_eq!(
        pod_claims(&pod(wrong, json!({})), rules).unwrap_err().to_string(),
        "pod \"ns/p\", spec.resourceClaim \"a\": none of the supported fields are set"
    );
}

#[test]
fn a_claim_of_another_pod_is_refused() {
    let pod = pod(json!({"containers": []}), json!({}));
    let wanted = PodClaim { entry: None, name: "c".to_owned(), generated: true };
    let judge = |claim: &ResourceClaim| check(&pod, &wanted, claim, ClaimRules::default());
    assert_eq!(judge(&claim("u", "u", None)), Ok(()));
    assert_eq!(
        judge(&claim("x", "u", None)).unwrap_err().to_string(),
        "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)"
    );
    assert_eq!(
        judge(&claim("u", "x", None)).unwrap_err().to_string(),
        "pod p (u) is not allowed to use ResourceClaim c (cu)"
    );
    let refused = claim_entry(&claim("u", "u", None)).unwrap_err();
    assert_eq!(refused.to_string(), "ResourceClaim c: not allocated");
}

#[test]
fn a_prepared_claim_is_shared_and_left_by_the_last_pod() {
    let mut state = ClaimState::default();
    let key = prepared(&mut state);
    let again = claim_entry(&claim("u", "u", Some("d"))).unwrap();
    assert!(state.reserve("v", vec![again.clone()]).unwrap().is_empty(), "it is prepared");
    assert_eq!(state.in_use(), [("<any>".to_owned(), 1), ("d".to_owned(), 1)].into());
    let names = ["c".to_owned()];
    assert_eq!(state.leave("u", "ns", &names), Unprepare::default());
    let last = state.leave("v", "ns", &names);
    assert_eq!(last.by_driver["d"], [("cu".to_owned(), "c".to_owned())]);
    assert!(state.has_pod("v"), "until the driver has answered");
    state.forget(&last.claims);
    assert_eq!((state.has_pod("v"), last.claims), (false, vec![key]));
    let other = PreparedClaim { uid: "other".to_owned(), ..again.clone() };
    state.reserve("u", vec![again]).unwrap();
    assert_eq!(
        state.reserve("w", vec![other]).unwrap_err().to_string(),
        "old ResourceClaim with same name c and different UID cu still exists (previous pod force-deleted?!)"
    );
}

#[test]
fn a_container_gets_the_devices_of_its_requests() {
    let mut state = ClaimState::default();
    prepared(&mut state);
    let spec = json!({"containers": [],
        "resourceClaims": [{"name": "a", "resourceClaimName": "c"}]});
    let pod = pod(spec, json!({}));
    let cdi = |claims: Value| -> Vec<String> {
        let used = container_requests(&pod, &container(claims), ClaimRules::default()).unwrap();
        used.iter().flat_map(|(name, requests)| state.cdi("ns", name, requests).unwrap()).collect()
    };
    assert_eq!(cdi(json!([{"name": "a"}])), ["vendor/class=x"]);
    assert_eq!(cdi(json!([{"name": "a", "request": "r"}])), ["vendor/class=x"]);
    assert!(cdi(json!([{"name": "a", "request": "other"}])).is_empty());
    assert!(cdi(json!([])).is_empty());
}

#[test]
fn a_restart_finds_the_claims_and_asks_the_drivers_again() {
    let mut state = ClaimState::default();
    prepared(&mut state);
    let text = state.to_checkpoint().unwrap();
    let data = "\"Data\":\"{\\\"kind\\\":\\\"DRACheckpoint\\\",\\\"apiVersion\\\":\\\"checkpoint.dra.kubelet.k8s.io/v1\\\",\\\"ClaimInfoStateList\\\":[{\\\"ClaimUID\\\":\\\"cu\\\",\\\"ClaimName\\\":\\\"c\\\",\\\"Namespace\\\":\\\"ns\\\",\\\"PodUIDs\\\":{\\\"u\\\":{}},\\\"DriverState\\\":{\\\"d\\\":{\\\"Devices\\\":[{\\\"PoolName\\\":\\\"pool\\\",\\\"DeviceName\\\":\\\"dev\\\",\\\"ShareID\\\":null,\\\"RequestNames\\\":[\\\"r\\\"],\\\"CDIDeviceIDs\\\":[\\\"vendor/class=x\\\"]}]}}}]}\"";
    assert!(text.contains(data), "{text}");
    let mut after = ClaimState::restore(&text).unwrap();
    assert!(after.has_pod("u"));
    let again = claim_entry(&claim("u", "u", Some("d"))).unwrap();
    assert_eq!(after.reserve("u", vec![again]).unwrap().len(), 1, "nothing counts as prepared");
    let gone = after.left_behind(|_| false);
    assert_eq!(gone["u"], ("ns".to_owned(), vec!["c".to_owned()]));
}

#[test]
fn health_is_shown_while_it_holds() {
    let mut state = ClaimState::default();
    prepared(&mut state);
    let spec = json!({"containers": [],
        "resourceClaims": [{"name": "a", "resourceClaimName": "c"}]});
    let pod = pod(spec, json!({}));
    let container = container(json!([{"name": "a", "request": "r"}]));
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let mut health = HealthState::default();
    let report = |health: &str, now| {
        vec![DeviceHealth::reported(("pool", "dev"), health, 0, "hot", at(now))]
    };
    assert_eq!(health.report("d", report("Unhealthy", 0), at(0)).len(), 1);
    assert!(health.report("d", report("Unhealthy", 10), at(10)).is_empty());
    let shown = |health: &HealthState, now: i64| {
        let list = health.status(&state, &pod, &container, true, at(now));
        let one = list[0].resources.as_ref().unwrap()[0].clone();
        (list[0].name.clone(), one.resource_id, one.health.unwrap(), one.message)
    };
    let text = |text: &str| text.to_owned();
    let (name, id) = (text("claim:a/r"), text("vendor/class=x"));
    assert_eq!(
        shown(&health, 40),
        (name.clone(), id.clone(), text("Unhealthy"), Some(text("hot")))
    );
    assert_eq!(shown(&health, 41), (name, id, text("Unknown"), None));
    assert_eq!(health.report("d", Vec::new(), at(41)), [(text("pool"), text("dev"))]);
    health.forget("d");
    assert_eq!(health, HealthState::default());
    assert!(state.users_of("d", "pool", "dev").contains("u"));
}

#[test]
fn a_driver_that_names_ever_more_devices_does_not_fill_the_book() {
    let mut health = HealthState::default();
    let now = Timestamp::UNIX_EPOCH;
    for round in 0..20 {
        let devices = (0..10_000)
            .map(|n| DeviceHealth::reported(("p", &format!("{round}-{n}")), "Healthy", 0, "", now))
            .collect();
        health.report("driver", devices, now);
    }
    let text = serde_json::to_string(&health).unwrap();
    assert!(text.matches("DeviceName").count() <= 65_536);
    assert!(text.contains("\"19-9999\""), "what was told last is known");
}
