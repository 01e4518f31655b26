//! The limits of pod and QoS cgroups (kubelet: `ResourceConfigForPod`, `qosContainerManagerImpl`).

use super::{HUGETLB_UNLIMITED, Limits, MIN_SHARES, QosLevel, quota_us, shares};
use std::collections::BTreeMap;

/// What a pod asks for, summed up over its containers, overhead included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAsk {
    /// Its QoS level.
    pub level: QosLevel,
    /// CPU request.
    pub cpu_request_milli: i64,
    /// CPU limit, if every container (or the pod itself) has one.
    pub cpu_limit_milli: Option<i64>,
    /// Memory limit in bytes, if every container (or the pod itself) has one.
    pub memory_limit: Option<i64>,
    /// Huge page bytes by page size name (`2MB`).
    pub hugepages: BTreeMap<String, u64>,
    /// A container holds exclusive CPUs, so that no quota may slow it down.
    pub exclusive_cpus: bool,
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
        QosLevel::Guaranteed => {
            limits.cpu_shares = Some(shares(ask.cpu_request_milli));
            limits.cpu_quota_us = Some(quota(ask.cpu_limit_milli.unwrap_or(0)));
            limits.cpu_period_us = Some(policy.period_us);
            limits.memory_bytes = ask.memory_limit;
        }
        QosLevel::Burstable => {
            limits.cpu_shares = Some(shares(ask.cpu_request_milli));
            if let Some(milli) = ask.cpu_limit_milli {
                limits.cpu_quota_us = Some(quota(milli));
                limits.cpu_period_us = Some(policy.period_us);
            }
            limits.memory_bytes = ask.memory_limit;
        }
        QosLevel::BestEffort => limits.cpu_shares = Some(MIN_SHARES),
    }
    limits
}

/// Limits of the two QoS cgroups and the hugetlb part of `kubepods`, from the active pods.
/// Memory is only limited where `qosReserved` asks for it.
pub fn qos_limits<'a>(
    asks: impl Iterator<Item = &'a PodAsk>,
    page_sizes: &[String],
) -> BTreeMap<QosLevel, Limits> {
    let burstable: i64 = asks
        .filter(|ask| ask.level == QosLevel::Burstable)
        .map(|ask| ask.cpu_request_milli)
        .fold(0, i64::saturating_add);
    let hugetlb: BTreeMap<String, u64> =
        page_sizes.iter().map(|size| (size.clone(), HUGETLB_UNLIMITED)).collect();
    let level =
        |cpu_shares| Limits { cpu_shares, hugetlb: Some(hugetlb.clone()), ..Limits::default() };
    BTreeMap::from([
        (QosLevel::Guaranteed, level(None)),
        (QosLevel::Burstable, level(Some(shares(burstable)))),
        (QosLevel::BestEffort, level(Some(MIN_SHARES))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(level: QosLevel) -> PodAsk {
        PodAsk {
            level,
            cpu_request_milli: 500,
            cpu_limit_milli: Some(1000),
            memory_limit: Some(1 << 20),
            hugepages: BTreeMap::new(),
            exclusive_cpus: false,
        }
    }

    const POLICY: PodLimitPolicy = PodLimitPolicy { cfs_quota: true, period_us: 100_000, pids: -1 };

    #[test]
    fn best_effort_pods_get_the_smallest_share_and_no_limit() {
        let limits = pod_limits(&ask(QosLevel::BestEffort), &POLICY);
        assert_eq!(limits.cpu_shares, Some(2));
        assert_eq!((limits.cpu_quota_us, limits.memory_bytes, limits.pids), (None, None, None));
    }

    #[test]
    fn burstable_pods_are_limited_only_where_every_container_is() {
        let mut pod = ask(QosLevel::Burstable);
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
        let mut pod = ask(QosLevel::Guaranteed);
        pod.exclusive_cpus = true;
        assert_eq!(pod_limits(&pod, &POLICY).cpu_quota_us, Some(-1));
        pod.exclusive_cpus = false;
        let policy = PodLimitPolicy { cfs_quota: false, pids: 50, ..POLICY };
        let limits = pod_limits(&pod, &policy);
        assert_eq!((limits.cpu_quota_us, limits.pids), (Some(-1), Some(50)));
    }

    #[test]
    fn burstable_level_gets_the_sum_of_its_pods() {
        let pods = [ask(QosLevel::Burstable), ask(QosLevel::Burstable), ask(QosLevel::Guaranteed)];
        let limits = qos_limits(pods.iter(), &["2MB".to_owned()]);
        assert_eq!(limits[&QosLevel::Burstable].cpu_shares, Some(1024));
        assert_eq!(limits[&QosLevel::BestEffort].cpu_shares, Some(2));
        assert_eq!(limits[&QosLevel::Guaranteed].cpu_shares, None);
        let hugetlb = limits[&QosLevel::Guaranteed].hugetlb.clone().unwrap();
        assert_eq!(hugetlb["2MB"], HUGETLB_UNLIMITED);
    }
}
