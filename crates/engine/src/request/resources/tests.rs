//! Numbers of the CPU and memory tables, on both cgroup versions.

use super::*;
use api::core::v1::{PodSpec, ResourceRequirements};

const GI: i64 = 1 << 30;

fn settings(cgroup: CgroupVersion) -> ResourceSettings {
    ResourceSettings {
        cgroup,
        cfs_period: Some(Duration::from_millis(100)),
        single_process_oom_kill: false,
        pod_level_resources: true,
        memory_capacity: 10 * GI,
        swap_capacity: 5 * GI,
        swap_controller: true,
        limited_swap: true,
        memory_qos: None,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
    }
}

fn resources(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
    let map = |list: &[(&str, &str)]| {
        Some(list.iter().map(|(k, v)| ((*k).into(), quantity(v))).collect())
    };
    ResourceRequirements { requests: map(requests), limits: map(limits), claims: None }
}

fn container(name: &str, r: ResourceRequirements) -> Container {
    Container { name: name.into(), resources: Some(r), ..Container::default() }
}

fn pod(containers: Vec<Container>) -> Pod {
    Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() }
}

fn of(settings: &ResourceSettings, pod: &Pod) -> LinuxContainerResources {
    settings.container(pod, &pod.spec.as_ref().unwrap().containers[0], CpuQuota::Enforced)
}

#[test]
fn cpu_becomes_shares_and_quota() {
    for (milli, shares, quota) in [
        (0, 2, 0),
        (1, 2, 1000),
        (10, 10, 1000),
        (100, 102, 10_000),
        (250, 256, 25_000),
        (500, 512, 50_000),
        (1000, 1024, 100_000),
        (2000, 2048, 200_000),
        (64_000, 65_536, 6_400_000),
        (256_000, 262_144, 25_600_000),
    ] {
        assert_eq!(shares_of_milli(milli), shares, "{milli}");
        assert_eq!(quota_of_milli(milli, 100_000), quota, "{milli}");
    }
}

#[test]
fn a_missing_request_follows_the_limit_but_a_zero_one_does_not() {
    let settings = settings(CgroupVersion::V1);
    let limits = [("cpu", "500m")];
    let only_limit = pod(vec![container("c", resources(&[], &limits))]);
    assert_eq!(of(&settings, &only_limit).cpu_shares, 512);
    let zero = pod(vec![container("c", resources(&[("cpu", "0")], &limits))]);
    assert_eq!(of(&settings, &zero).cpu_shares, 2);
}

#[test]
fn without_cfs_quota_neither_period_nor_quota_is_sent() {
    let mut settings = settings(CgroupVersion::V1);
    settings.cfs_period = None;
    let got = of(&settings, &pod(vec![container("c", resources(&[], &[("cpu", "1")]))]));
    assert_eq!((got.cpu_period, got.cpu_quota), (0, 0));
}

#[test]
fn exclusive_cpus_have_no_quota() {
    let settings = settings(CgroupVersion::V1);
    let pod = pod(vec![container("c", resources(&[], &[("cpu", "1")]))]);
    let first = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(settings.container(&pod, first, CpuQuota::Unlimited).cpu_quota, -1);
    assert_eq!(settings.sandbox(&pod, CpuQuota::Unlimited).cpu_quota, -1);
}

#[test]
fn pod_level_limits_fill_in_for_containers() {
    let settings = settings(CgroupVersion::V1);
    let mut pod = pod(vec![container("c", resources(&[], &[]))]);
    let all = [("cpu", "2"), ("memory", "1Gi"), ("hugepages-2Mi", "4Mi")];
    pod.spec.as_mut().unwrap().resources = Some(resources(&all, &all));
    let got = of(&settings, &pod);
    assert_eq!((got.cpu_shares, got.cpu_quota), (2048, 200_000));
    assert_eq!(got.memory_limit_in_bytes, GI);
    assert_eq!(got.hugepage_limits[0], HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 });
    assert_eq!(got.hugepage_limits[1].limit, 0);
    let mut off = settings;
    off.pod_level_resources = false;
    assert_eq!(of(&off, &pod).memory_limit_in_bytes, 0);
}

#[test]
fn swap_is_forbidden_or_shared_by_request() {
    let burstable =
        pod(vec![container("c", resources(&[("memory", "1Gi")], &[("memory", "2Gi")]))]);
    let v1 = of(&settings(CgroupVersion::V1), &burstable);
    assert_eq!(v1.memory_swap_limit_in_bytes, 2 * GI);
    assert!(v1.unified.is_empty());
    let v2 = of(&settings(CgroupVersion::V2), &burstable);
    assert_eq!(v2.memory_swap_limit_in_bytes, 0);
    assert_eq!(v2.unified["memory.swap.max"], (GI / 2).to_string());
    assert_eq!(v2.unified["memory.oom.group"], "1");
    let equal = pod(vec![container("c", resources(&[("memory", "1Gi")], &[("memory", "1Gi")]))]);
    assert_eq!(of(&settings(CgroupVersion::V2), &equal).unified["memory.swap.max"], "0");
    let half = [("memory", "1073741823500m")];
    let half = pod(vec![container("c", resources(&half, &[("memory", "1Gi")]))]);
    let half = of(&settings(CgroupVersion::V2), &half);
    assert_eq!(half.unified["memory.swap.max"], (GI / 2).to_string(), "half a byte less");
    let mut critical = burstable.clone();
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    assert_eq!(of(&settings(CgroupVersion::V2), &critical).unified["memory.swap.max"], "0");
    let mut none = settings(CgroupVersion::V2);
    none.swap_controller = false;
    assert!(!of(&none, &burstable).unified.contains_key("memory.swap.max"));
}

#[test]
fn memory_qos_protects_requests_and_throttles_below_limits() {
    let mut settings = settings(CgroupVersion::V2);
    settings.memory_qos = Some(MemoryQos {
        reservation: MemoryReservation::Tiered,
        throttling_factor: 0.9,
        allocatable_memory: 8 * GI,
        page_size: 4096,
    });
    let burstable =
        pod(vec![container("c", resources(&[("memory", "1Gi")], &[("memory", "2Gi")]))]);
    let got = of(&settings, &burstable).unified;
    assert_eq!(got["memory.low"], GI.to_string());
    assert!(!got.contains_key("memory.min"));
    assert_eq!(got["memory.high"], "2040107008");
    let both = [("cpu", "1"), ("memory", "1Gi")];
    let guaranteed = pod(vec![container("c", resources(&both, &both))]);
    let got = of(&settings, &guaranteed).unified;
    assert_eq!(got["memory.min"], GI.to_string());
    assert!(!got.contains_key("memory.high"));
    let best_effort = pod(vec![container("c", resources(&[], &[]))]);
    let got = of(&settings, &best_effort).unified;
    assert_eq!((got["memory.min"].as_str(), got["memory.low"].as_str()), ("0", "0"));
}

#[test]
fn oom_scores_follow_the_class_and_the_request() {
    let settings = settings(CgroupVersion::V1);
    let both = [("cpu", "1"), ("memory", "1Gi")];
    for (r, want) in [
        (resources(&[], &[]), 1000),
        (resources(&both, &both), -997),
        (resources(&[("memory", "1Gi")], &[]), 900),
        (resources(&[("memory", "1Mi")], &[]), 999),
        (resources(&[("memory", "10Gi")], &[]), 3),
    ] {
        assert_eq!(of(&settings, &pod(vec![container("c", r)])).oom_score_adj, want);
    }
    let mut sidecar = container("s", resources(&[("memory", "1Mi")], &[]));
    sidecar.restart_policy = Some("Always".into());
    let mut pod = pod(vec![container("c", resources(&[("memory", "1Gi")], &[]))]);
    pod.spec.as_mut().unwrap().init_containers = Some(vec![sidecar.clone()]);
    assert_eq!(settings.container(&pod, &sidecar, CpuQuota::Enforced).oom_score_adj, 900);
}

#[test]
fn a_sandbox_has_the_peak_of_the_pod_and_its_overhead_apart() {
    let settings = settings(CgroupVersion::V1);
    let mut sidecar = container("s", resources(&[("cpu", "100m")], &[]));
    sidecar.restart_policy = Some("Always".into());
    let init = container("i", resources(&[("cpu", "1")], &[]));
    let mut pod = pod(vec![container("c", resources(&[("cpu", "200m")], &[("memory", "1Gi")]))]);
    let spec = pod.spec.as_mut().unwrap();
    spec.init_containers = Some(vec![sidecar, init]);
    spec.overhead =
        Some([("cpu".into(), quantity("50m")), ("memory".into(), quantity("1Mi"))].into());
    let sandbox = settings.sandbox(&pod, CpuQuota::Enforced);
    assert_eq!(sandbox.cpu_shares, 1126);
    assert_eq!(sandbox.memory_limit_in_bytes, GI);
    let overhead = settings.overhead(&pod);
    assert_eq!((overhead.cpu_shares, overhead.cpu_quota), (51, 5000));
    assert_eq!(overhead.memory_limit_in_bytes, 1 << 20);
    let cgroup = PodCgroupValues {
        cpu_period: Some(100_000),
        cpu_quota: Some(25_000),
        cpu_shares: Some(256),
        memory: Some(GI),
    };
    let update = settings.update_sandbox("id", &pod, &cgroup).resources.unwrap();
    assert_eq!((update.cpu_quota, update.cpu_shares), (20_000, 204));
    assert_eq!(update.memory_limit_in_bytes, GI - (1 << 20));
}

#[test]
fn page_sizes_have_the_kernels_names() {
    for (bytes, want) in [
        (2 << 20, Some("2MB")),
        (GI, Some("1GB")),
        (64 << 10, Some("64KB")),
        (0, None),
        (1500, None),
    ] {
        assert_eq!(page_size_name(bytes).as_deref(), want);
    }
}
