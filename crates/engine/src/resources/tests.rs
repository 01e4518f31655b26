//! Sums of what pods ask for, and their QoS class.

use super::*;
use crate::pod::testing::pod;

fn list(text: &str) -> BTreeMap<String, ApiQuantity> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.to_owned(), ApiQuantity(value.to_owned())))
        .collect()
}

/// Container (or `pod`), requests, limits.
type Row = (&'static str, &'static str, &'static str);

/// Sets resources from `name: requests / limits`.
fn set(pod: &mut Pod, rows: &[Row]) {
    let spec = pod.spec.as_mut().unwrap();
    for (name, requests, limits) in rows {
        let resources = ResourceRequirements {
            requests: Some(list(requests)),
            limits: Some(list(limits)),
            ..ResourceRequirements::default()
        };
        if *name == "pod" {
            spec.resources = Some(resources);
            continue;
        }
        let init = spec.init_containers.iter_mut().flatten();
        let container = spec.containers.iter_mut().chain(init).find(|c| c.name == *name);
        container.unwrap().resources = Some(resources);
    }
}

fn text(amounts: &Amounts) -> String {
    amounts.iter().map(|(n, q)| format!("{n}={q}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn sums_containers_sidecars_and_init_peaks() {
    let cases: [(&str, &str, &[Row], &str); 7] = [
        (
            "regular ones add up",
            "a b",
            &[("a", "cpu=1", ""), ("b", "cpu=500m memory=1Gi", "")],
            "cpu=1500m memory=1Gi",
        ),
        (
            "an init container is a peak",
            "i:x a",
            &[("x", "cpu=2", ""), ("a", "cpu=1", "")],
            "cpu=2",
        ),
        (
            "a sidecar adds to regular ones",
            "s:s a",
            &[("s", "cpu=1", ""), ("a", "cpu=1", "")],
            "cpu=2",
        ),
        (
            "a sidecar adds to later init",
            "s:s i:x a",
            &[("s", "cpu=1", ""), ("x", "cpu=3", ""), ("a", "cpu=1", "")],
            "cpu=4",
        ),
        (
            "but not to earlier init",
            "i:x s:s a",
            &[("s", "cpu=1", ""), ("x", "cpu=3", ""), ("a", "cpu=1", "")],
            "cpu=3",
        ),
        (
            "a sum is written as what the init container asks for",
            "s:s i:x a",
            &[("s", "memory=10M", ""), ("x", "memory=100e6", "")],
            "memory=110e6",
        ),
        (
            "pod-level values replace sums",
            "a",
            &[("a", "cpu=1 memory=1Gi x/y=1", ""), ("pod", "cpu=4", "")],
            "cpu=4 memory=1Gi x/y=1",
        ),
    ];
    for (name, words, rows, expected) in cases {
        let mut pod = pod(words);
        set(&mut pod, rows);
        assert_eq!(text(&pod_requests(&pod)), expected, "{name}");
    }
}

#[test]
fn overhead_adds_to_requests_and_to_limits_that_exist() {
    let mut pod = pod("a");
    set(&mut pod, &[("a", "cpu=1", "memory=1Gi")]);
    pod.spec.as_mut().unwrap().overhead = Some(list("cpu=100m memory=64Mi"));
    assert_eq!(text(&pod_requests(&pod)), "cpu=1100m memory=64Mi");
    assert_eq!(text(&pod_limits(&pod)), "memory=1088Mi");
}

#[test]
fn the_status_can_only_raise_the_sum_unless_the_resize_is_infeasible() {
    let mut pod = pod("a");
    set(&mut pod, &[("a", "cpu=1", "")]);
    let entries = Some(vec![ContainerStatus {
        name: "a".to_owned(),
        resources: Some(ResourceRequirements {
            requests: Some(list("cpu=3")),
            ..ResourceRequirements::default()
        }),
        allocated_resources: Some(list("cpu=2")),
        ..ContainerStatus::default()
    }]);
    pod.status = Some(api::core::v1::PodStatus {
        container_statuses: entries,
        ..api::core::v1::PodStatus::default()
    });
    let counting = Counting { pod_level: true, with_status: true };
    assert_eq!(text(&of_pod(&pod, Side::Requests, counting)), "cpu=3");
    set(&mut pod, &[("a", "cpu=9", "")]);
    assert_eq!(text(&of_pod(&pod, Side::Requests, counting)), "cpu=9");
    pod.status.as_mut().unwrap().conditions = Some(vec![api::core::v1::PodCondition {
        type_: "PodResizePending".to_owned(),
        reason: Some("Infeasible".to_owned()),
        ..Default::default()
    }]);
    assert_eq!(text(&of_pod(&pod, Side::Requests, counting)), "cpu=3");
}

#[test]
fn qos_follows_the_table() {
    let full = "cpu=1 memory=1Gi";
    let cases: [(&str, &str, &[Row], QosClass); 8] = [
        ("nothing set", "a", &[], QosClass::BestEffort),
        ("only other resources", "a", &[("a", "x/y=1", "x/y=1")], QosClass::BestEffort),
        ("zero counts as unset", "a", &[("a", "cpu=0", "")], QosClass::BestEffort),
        ("all equal", "a b", &[("a", full, full), ("b", full, full)], QosClass::Guaranteed),
        ("one container without", "a b", &[("a", full, full)], QosClass::Burstable),
        ("init container counts", "i:x a", &[("a", full, full)], QosClass::Burstable),
        ("request below limit", "a", &[("a", "cpu=500m memory=1Gi", full)], QosClass::Burstable),
        ("pod level only", "a", &[("pod", full, full)], QosClass::Guaranteed),
    ];
    for (name, words, rows, expected) in cases {
        let mut pod = pod(words);
        set(&mut pod, rows);
        assert_eq!(compute_qos(&pod, true), expected, "{name}");
    }
}

#[test]
fn kernel_values_read_back_as_cpu() {
    assert_eq!(milli_of_shares(2), Some(2));
    assert_eq!(milli_of_shares(1024), Some(1000));
    assert_eq!(milli_of_shares(102), Some(100));
    assert_eq!(milli_of_shares(1), None);
    assert_eq!(milli_of_quota(-1, 100_000), None);
    assert_eq!(milli_of_quota(50_000, 100_000), Some(500));
}

#[test]
fn pods_are_compared_by_what_they_ask_for_as_a_whole_or_by_their_containers() {
    let request = |rows: &[Row], overhead: &str, name: &str| {
        let mut pod = pod("a");
        set(&mut pod, rows);
        pod.spec.as_mut().unwrap().overhead = Some(list(overhead));
        compared_request(&pod, name).to_string()
    };
    let own: &[Row] = &[("a", "memory=1Gi ephemeral-storage=2Gi", "")];
    assert_eq!(request(own, "", "memory"), "1Gi");
    assert_eq!(request(own, "memory=1Gi", "memory"), "2Gi");
    assert_eq!(request(own, "cpu=1", "cpu"), "0", "overhead of nothing");
    let whole: &[Row] = &[own[0], ("pod", "cpu=1", "")];
    assert_eq!(request(whole, "", "cpu"), "1");
    assert_eq!(request(whole, "", "memory"), "0", "containers do not count");
    assert_eq!(request(whole, "", "ephemeral-storage"), "0");
    let limit: &[Row] = &[own[0], ("pod", "", "cpu=1")];
    assert_eq!(request(limit, "", "memory"), "0");
}
