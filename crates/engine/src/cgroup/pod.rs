//! The limits of pod and QoS cgroups (kubelet: `ResourceConfigForPod`, `qosContainerManagerImpl`).

use super::{HUGETLB_UNLIMITED, Limits, MIN_SHARES, quota_us, shares, weight};
use crate::resources::{Counting, QosClass, Side, of_pod, qos_class, side_of};
use api::core::v1::Pod;
use api::pod::ContainerExt;
use std::collections::BTreeMap;

/// A pod's requests and limits, summed over its containers, overhead included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAsk {
    /// Its QoS level.
    pub level: QosClass,
    /// CPU request.
    pub cpu_request_milli: i64,
    /// Memory request in bytes.
    pub memory_request: i64,
    /// CPU limit, if every container (or the pod itself) has one.
    pub cpu_limit_milli: Option<i64>,
    /// Memory limit in bytes, if every container (or the pod itself) has one.
    pub memory_limit: Option<i64>,
    /// Huge page bytes by page size name (`2MB`).
    pub hugepages: BTreeMap<String, u64>,
    /// A container has exclusive CPUs, so no quota is set.
    pub exclusive_cpus: bool,
}

/// Sums up a pod. A limit counts only where every container has one or the pod has its own.
pub fn pod_ask(pod: &Pod, pod_level: bool) -> PodAsk {
    let counting = Counting { pod_level, with_status: false };
    let requests = of_pod(pod, Side::Requests, counting);
    let limits = of_pod(pod, Side::Limits, counting);
    let limited = |name: &str| {
        let Some(spec) = &pod.spec else { return false };
        let has =
            |resources| side_of(resources, Side::Limits).get(name).is_some_and(|q| !q.is_zero());
        // An init container is added to the sidecars before it: they run at the same time.
        let mut sidecars = false;
        let mut init = spec.init_containers.iter().flatten();
        let all = spec.containers.iter().all(|c| has(c.resources.as_ref()))
            && init.all(|c| {
                let own = has(c.resources.as_ref());
                sidecars |= own && c.is_sidecar();
                own || sidecars
            });
        all || (pod_level && has(spec.resources.as_ref()))
    };
    let hugepages = requests
        .iter()
        .filter_map(|(name, quantity)| {
            let size = page_size_name(name.strip_prefix("hugepages-")?)?;
            Some((size, u64::try_from(quantity.value()).ok()?))
        })
        .collect();
    PodAsk {
        level: qos_class(pod, pod_level),
        cpu_request_milli: requests.get("cpu").map_or(0, |q| q.milli_value()),
        memory_request: requests.get("memory").map_or(0, |q| q.value()),
        cpu_limit_milli: limits.get("cpu").filter(|_| limited("cpu")).map(|q| q.milli_value()),
        memory_limit: limits.get("memory").filter(|_| limited("memory")).map(|q| q.value()),
        hugepages,
        exclusive_cpus: false,
    }
}

/// The kernel's name of a page size (`2Mi` is `2MB`).
pub(super) fn page_size_name(quantity: &str) -> Option<String> {
    let mut size = quantity.parse::<units::Quantity>().ok()?.value();
    for unit in ["B", "KB", "MB", "GB"] {
        if size < 1024 || unit == "GB" {
            return (size > 0).then(|| format!("{size}{unit}"));
        }
        size /= 1024;
    }
    None
}

/// Node settings that shape pod limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLimitPolicy {
    /// `cpuCFSQuota`.
    pub cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds.
    pub period_us: u64,
    /// `podPidsLimit`; not positive means no limit.
    pub pids: i64,
}

/// Limits of one pod's cgroup.
pub fn pod_limits(ask: &PodAsk, policy: &PodLimitPolicy) -> Limits {
    let mut limits = Limits {
        pids: (policy.pids > 0).then_some(policy.pids),
        hugetlb: Some(ask.hugepages.clone()),
        ..Limits::default()
    };
    let quota = |milli: i64| {
        if policy.cfs_quota && !ask.exclusive_cpus { quota_us(milli, policy.period_us) } else { -1 }
    };
    match ask.level {
        QosClass::Guaranteed => {
            limits.cpu_shares = Some(shares(ask.cpu_request_milli));
            limits.cpu_quota_us = Some(quota(ask.cpu_limit_milli.unwrap_or(0)));
            limits.cpu_period_us = Some(policy.period_us);
            limits.memory_bytes = ask.memory_limit;
        }
        QosClass::Burstable => {
            limits.cpu_shares = Some(shares(ask.cpu_request_milli));
            if let Some(milli) = ask.cpu_limit_milli {
                limits.cpu_quota_us = Some(quota(milli));
                limits.cpu_period_us = Some(policy.period_us);
            }
            limits.memory_bytes = ask.memory_limit;
        }
        QosClass::BestEffort => limits.cpu_shares = Some(MIN_SHARES),
    }
    limits
}

/// The version 2 file that protects a pod's memory request, and its value; `None` if the request is not protected.
pub fn pod_protection(ask: &PodAsk, protection: MemoryProtection) -> Option<(String, String)> {
    let protects = protection == MemoryProtection::Tiered && ask.memory_request > 0;
    let file = if ask.level == QosClass::Guaranteed { "memory.min" } else { "memory.low" };
    protects.then(|| (file.to_owned(), ask.memory_request.to_string()))
}

/// Limits for the cgroup of a removed pod whose processes still run (kubelet: `ReduceCPULimits`).
pub fn starved() -> Limits {
    Limits { cpu_shares: Some(MIN_SHARES), hugetlb: Some(BTreeMap::new()), ..Limits::default() }
}

/// How memory requests are protected on version 2 (gate MemoryQoS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryProtection {
    /// Not touched.
    Off,
    /// Written as zero (`memoryReservationPolicy: None`).
    Cleared,
    /// In tiers (`TieredReservation`).
    Tiered,
}

/// Node settings that shape the QoS levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosPolicy {
    /// `qosReserved`: percent of memory requests that lower levels cannot use, and the memory for all
    /// pods in bytes.
    pub reserved: Option<(i64, i64)>,
    /// Protection of memory requests.
    pub protection: MemoryProtection,
}

/// Bytes protected by `memory.min` for Guaranteed pods, and by `memory.low` for Burstable pods.
pub fn protected_memory<'a>(
    asks: impl Iterator<Item = &'a PodAsk>,
    policy: &QosPolicy,
) -> (i64, i64) {
    if policy.protection != MemoryProtection::Tiered {
        return (0, 0);
    }
    asks.fold((0_i64, 0_i64), |(min, low), ask| match ask.level {
        QosClass::Guaranteed => (min.saturating_add(ask.memory_request), low),
        QosClass::Burstable => (min, low.saturating_add(ask.memory_request)),
        QosClass::BestEffort => (min, low),
    })
}

/// The present values of a QoS level; `None` and absent files are unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LevelValues {
    /// CPU shares on version 1.
    pub cpu_shares: Option<u64>,
    /// CPU weight on version 2.
    pub cpu_weight: Option<u64>,
    /// Version 2 files by name.
    pub unified: BTreeMap<String, u64>,
}

/// The part of a level's limits that may be written while not all pods are known: a sum over some of them is too low,
/// and the limit of lower levels too high.
pub fn only_raised(limits: Limits, now: &LevelValues) -> Limits {
    let raises_cpu = |shares: &u64| {
        now.cpu_shares.is_none_or(|now| *shares > now)
            && now.cpu_weight.is_none_or(|now| weight(*shares) > now)
    };
    let raises = |file: &str, value: &str| {
        let value = value.parse::<u64>().ok();
        now.unified.get(file).is_none_or(|now| value.is_some_and(|value| value > *now))
    };
    Limits {
        cpu_shares: limits.cpu_shares.filter(raises_cpu),
        memory_bytes: None,
        unified: limits.unified.into_iter().filter(|(file, value)| raises(file, value)).collect(),
        ..limits
    }
}

/// Limits of a QoS cgroup that do not depend on its pods.
pub fn unsummed(level: QosClass, page_sizes: &[String]) -> Limits {
    let hugetlb = page_sizes.iter().map(|size| (size.clone(), HUGETLB_UNLIMITED)).collect();
    Limits {
        cpu_shares: (level == QosClass::BestEffort).then_some(MIN_SHARES),
        hugetlb: Some(hugetlb),
        ..Limits::default()
    }
}

/// Limits of the two QoS cgroups, and what `kubepods` gets with them, from the active pods.
pub fn qos_limits<'a>(
    asks: impl Iterator<Item = &'a PodAsk> + Clone,
    policy: &QosPolicy,
    page_sizes: &[String],
) -> BTreeMap<QosClass, Limits> {
    let sum = |level: QosClass, amount: fn(&PodAsk) -> i64| {
        asks.clone().filter(|ask| ask.level == level).map(amount).fold(0, i64::saturating_add)
    };
    let cpu = sum(QosClass::Burstable, |ask| ask.cpu_request_milli);
    let guaranteed = sum(QosClass::Guaranteed, |ask| ask.memory_request);
    let burstable = sum(QosClass::Burstable, |ask| ask.memory_request);
    let classes = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
    let mut all = BTreeMap::from(classes.map(|level| (level, unsummed(level, page_sizes))));
    let mut set = |class, change: &dyn Fn(&mut Limits)| {
        if let Some(limits) = all.get_mut(&class) {
            change(limits);
        }
    };
    set(QosClass::Burstable, &|limits| limits.cpu_shares = Some(shares(cpu)));
    if let Some((percent, allocatable)) = policy.reserved.filter(|(_, memory)| *memory != 0) {
        let share = |requests: i64| requests.saturating_mul(percent) / 100;
        let for_burstable = allocatable.saturating_sub(share(guaranteed));
        let for_best_effort = for_burstable.saturating_sub(share(burstable));
        set(QosClass::Burstable, &|limits| limits.memory_bytes = Some(for_burstable));
        set(QosClass::BestEffort, &|limits| limits.memory_bytes = Some(for_best_effort));
    }
    let (min, low) = match policy.protection {
        MemoryProtection::Off => return all,
        MemoryProtection::Cleared => (0, 0),
        MemoryProtection::Tiered => (guaranteed.saturating_add(burstable), burstable),
    };
    let unified = |limits: &mut Limits, file: &str, value: i64| {
        limits.unified.insert(file.to_owned(), value.to_string());
    };
    set(QosClass::Guaranteed, &|limits| unified(limits, "memory.min", min));
    set(QosClass::Burstable, &|limits| unified(limits, "memory.low", low));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(level: QosClass) -> PodAsk {
        PodAsk {
            level,
            cpu_request_milli: 500,
            memory_request: 1 << 10,
            cpu_limit_milli: Some(1000),
            memory_limit: Some(1 << 20),
            hugepages: BTreeMap::new(),
            exclusive_cpus: false,
        }
    }

    const POLICY: PodLimitPolicy = PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: -1 };

    #[test]
    fn a_limit_counts_only_where_every_container_has_one() {
        let pod = |second: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"spec": {"containers": [
                {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"},
                                            "requests": {"cpu": "500m", "hugepages-2Mi": "4Mi"}}},
                {"name": "b", "resources": second},
            ]}}))
            .unwrap()
        };
        let all = pod_ask(&pod(serde_json::json!({"limits": {"cpu": "1", "memory": "1Mi"}})), true);
        assert_eq!((all.level, all.cpu_request_milli), (QosClass::Burstable, 500));
        assert_eq!((all.cpu_limit_milli, all.memory_limit), (Some(2000), Some(65 << 20)));
        assert_eq!(all.hugepages, BTreeMap::from([("2MB".to_owned(), 4 << 20)]));
        let some = pod_ask(&pod(serde_json::json!({})), true);
        assert_eq!((some.cpu_limit_milli, some.memory_limit), (None, None));
    }

    #[test]
    fn a_limited_sidecar_stands_for_init_containers_after_it() {
        let limits = |limits: &[(&str, bool, bool)]| {
            let container = |(name, sidecar, limited): &(&str, bool, bool)| {
                let mut container = serde_json::json!({ "name": name });
                if *sidecar {
                    container["restartPolicy"] = "Always".into();
                }
                if *limited {
                    container["resources"] = serde_json::json!({"limits": {"cpu": "1"}});
                }
                container
            };
            let init: Vec<_> = limits.iter().map(container).collect();
            let pod = serde_json::json!({"spec": {
                "initContainers": init, "containers": [container(&("main", false, true))],
            }});
            pod_ask(&serde_json::from_value(pod).unwrap(), true).cpu_limit_milli
        };
        assert_eq!(limits(&[("sidecar", true, true), ("init", false, false)]), Some(2000));
        assert_eq!(limits(&[("one", true, true), ("two", true, false)]), Some(2000));
        assert_eq!(limits(&[("init", false, false), ("sidecar", true, true)]), None);
        assert_eq!(limits(&[("init", false, true), ("next", false, false)]), None);
    }

    #[test]
    fn a_pod_s_request_is_protected_by_its_class_where_memory_is_tiered() {
        let of = |level, protection| pod_protection(&ask(level), protection);
        let file = |name: &str| Some((name.to_owned(), "1024".to_owned()));
        let tiered = MemoryProtection::Tiered;
        assert_eq!(of(QosClass::Guaranteed, tiered), file("memory.min"));
        assert_eq!(of(QosClass::Burstable, tiered), file("memory.low"));
        assert_eq!(of(QosClass::Guaranteed, MemoryProtection::Cleared), None);
        let nothing = PodAsk { memory_request: 0, ..ask(QosClass::BestEffort) };
        assert_eq!(pod_protection(&nothing, tiered), None);
    }

    #[test]
    fn memory_is_protected_by_class_where_it_is_tiered() {
        let asks = [QosClass::Guaranteed, QosClass::Burstable, QosClass::Burstable].map(ask);
        let policy = |protection| QosPolicy { reserved: None, protection };
        let of = |protection| protected_memory(asks.iter(), &policy(protection));
        assert_eq!(of(MemoryProtection::Tiered), (1 << 10, 2 << 10));
        assert_eq!(of(MemoryProtection::Cleared), (0, 0));
    }

    #[test]
    fn best_effort_pods_get_the_smallest_share_and_no_limit() {
        let limits = pod_limits(&ask(QosClass::BestEffort), &POLICY);
        assert_eq!(limits.cpu_shares, Some(2));
        assert_eq!((limits.cpu_quota_us, limits.memory_bytes, limits.pids), (None, None, None));
    }

    #[test]
    fn burstable_pods_are_limited_only_where_every_container_is() {
        let mut pod = ask(QosClass::Burstable);
        let limits = pod_limits(&pod, &POLICY);
        assert_eq!((limits.cpu_shares, limits.cpu_quota_us), (Some(512), Some(100_000)));
        pod.cpu_limit_milli = None;
        pod.memory_limit = None;
        let limits = pod_limits(&pod, &POLICY);
        assert_eq!((limits.cpu_quota_us, limits.cpu_period_us), (None, None));
        assert_eq!(limits.memory_bytes, None);
    }

    #[test]
    fn exclusive_cpus_and_a_switched_off_quota_mean_unlimited() {
        let mut pod = ask(QosClass::Guaranteed);
        pod.exclusive_cpus = true;
        assert_eq!(pod_limits(&pod, &POLICY).cpu_quota_us, Some(-1));
        pod.exclusive_cpus = false;
        let policy = PodLimitPolicy { cfs_quota: false, pids: 50, ..POLICY };
        let limits = pod_limits(&pod, &policy);
        assert_eq!((limits.cpu_quota_us, limits.pids), (Some(-1), Some(50)));
    }

    const PLAIN: QosPolicy = QosPolicy { reserved: None, protection: MemoryProtection::Off };

    #[test]
    fn reserved_memory_is_kept_from_lower_levels() {
        let pods = [ask(QosClass::Burstable), ask(QosClass::Guaranteed)];
        let policy = QosPolicy { reserved: Some((50, 10 << 10)), ..PLAIN };
        let limits = qos_limits(pods.iter(), &policy, &[]);
        assert_eq!(limits[&QosClass::Burstable].memory_bytes, Some((10 << 10) - 512));
        assert_eq!(limits[&QosClass::BestEffort].memory_bytes, Some((10 << 10) - 1024));
        assert_eq!(limits[&QosClass::Guaranteed].memory_bytes, None);
    }

    #[test]
    fn tiers_protect_the_requests_of_the_levels() {
        let pods = [ask(QosClass::Burstable), ask(QosClass::Guaranteed)];
        let protected = |protection| {
            let limits = qos_limits(pods.iter(), &QosPolicy { protection, ..PLAIN }, &[]);
            let of = |level, file: &str| limits[&level].unified.get(file).cloned();
            (of(QosClass::Guaranteed, "memory.min"), of(QosClass::Burstable, "memory.low"))
        };
        let text = |value: &str| Some(value.to_owned());
        assert_eq!(protected(MemoryProtection::Tiered), (text("2048"), text("1024")));
        assert_eq!(protected(MemoryProtection::Cleared), (text("0"), text("0")));
        assert_eq!(protected(MemoryProtection::Off), (None, None));
    }

    #[test]
    fn while_pods_are_missing_a_level_is_only_raised() {
        let limits = Limits {
            cpu_shares: Some(1024),
            memory_bytes: Some(5),
            hugetlb: Some(BTreeMap::new()),
            unified: [("memory.min", "10"), ("memory.low", "10")]
                .map(|(file, value)| (file.to_owned(), value.to_owned()))
                .into(),
            ..Limits::default()
        };
        let with = |cpu_shares, cpu_weight, memory_min| {
            let unified = BTreeMap::from([("memory.min".to_owned(), memory_min)]);
            only_raised(limits.clone(), &LevelValues { cpu_shares, cpu_weight, unified })
        };
        assert_eq!(with(Some(512), None, 9), Limits { memory_bytes: None, ..limits.clone() });
        assert_eq!(with(Some(1536), None, 9).cpu_shares, None);
        assert_eq!(with(None, Some(39), 9).cpu_shares, None);
        assert_eq!(with(None, Some(38), 9).cpu_shares, Some(1024));
        let kept: Vec<String> = with(None, None, 11).unified.into_keys().collect();
        assert_eq!(kept, ["memory.low"]);
    }

    #[test]
    fn burstable_level_gets_the_sum_of_its_pods() {
        let pods = [ask(QosClass::Burstable), ask(QosClass::Burstable), ask(QosClass::Guaranteed)];
        let limits = qos_limits(pods.iter(), &PLAIN, &["2MB".to_owned()]);
        assert_eq!(limits[&QosClass::Burstable].cpu_shares, Some(1024));
        assert_eq!(limits[&QosClass::BestEffort].cpu_shares, Some(2));
        assert_eq!(limits[&QosClass::Guaranteed].cpu_shares, None);
        let hugetlb = limits[&QosClass::Guaranteed].hugetlb.clone().unwrap();
        assert_eq!(hugetlb["2MB"], HUGETLB_UNLIMITED);
    }
}
