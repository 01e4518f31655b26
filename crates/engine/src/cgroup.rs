//! Names and values of the cgroups that the agent owns.
//!
//! Owns: the internal name of a cgroup and its form for either driver, the limits of a cgroup, and
//! the control files that express them on either cgroup version.
//!
//! Promises: same names and numbers as upstream (kubelet: `cgroupManagerImpl`, `ResourceConfigForPod`),
//! so that either agent finds the other's tree.
//!
//! Deliberately absent: I/O; what a pod asks for is summed up in `crate::resources`.

use std::collections::BTreeMap;

mod node;
mod pod;

use crate::resources::QosClass;
pub use node::{Enforced, ResourceList, allocatable, list_limits, over_reserved};
pub use pod::{
    LevelValues, MemoryProtection, PodAsk, PodLimitPolicy, QosPolicy, only_raised, pod_ask,
    pod_limits, pod_protection, protected_memory, qos_limits, starved, unsummed,
};

/// Smallest CPU shares a cgroup can have.
pub const MIN_SHARES: u64 = 2;
/// Largest CPU shares a cgroup can have.
pub const MAX_SHARES: u64 = 262_144;
/// Smallest CFS quota the kernel takes, in microseconds.
pub const MIN_QUOTA_US: i64 = 1_000;
/// The hugetlb limit of the QoS levels: unlimited in practice (2^62).
pub const HUGETLB_UNLIMITED: u64 = 1 << 62;

/// How cgroups are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// By writing to the cgroup filesystem.
    Cgroupfs,
    /// By asking systemd for slices.
    Systemd,
}

/// A cgroup by its parts, independent of the driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The root.
    pub fn root() -> Self {
        Self(Vec::new())
    }

    /// The parent's name with one more part.
    pub fn child(&self, part: &str) -> Self {
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Self(parts)
    }

    /// The name one level up; the root is its own parent.
    pub fn parent(&self) -> Self {
        Self(self.0.iter().take(self.0.len().saturating_sub(1)).cloned().collect())
    }

    /// Reads a name in the driver's form.
    pub fn parse(driver: Driver, text: &str) -> Self {
        match driver {
            Driver::Cgroupfs => {
                Self(text.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect())
            }
            Driver::Systemd => {
                let base = text.rsplit('/').next().unwrap_or_default();
                let base = base.strip_suffix(".slice").unwrap_or(base);
                Self(
                    base.split('-')
                        .filter(|p| !p.is_empty())
                        .map(|p| p.replace('_', "-"))
                        .collect(),
                )
            }
        }
    }

    /// Reads `cgroupRoot`, which is a path of the cgroup filesystem with either driver (kubelet:
    /// `ParseCgroupfsToCgroupName`).
    pub fn of_root(text: &str) -> Self {
        Self::parse(Driver::Cgroupfs, text)
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The full path in the hierarchy, which is also what CRI gets as the cgroup parent.
    pub fn path(&self, driver: Driver) -> String {
        match driver {
            Driver::Cgroupfs => format!("/{}", self.0.join("/")),
            Driver::Systemd => {
                let units = (1..=self.0.len()).filter_map(|n| self.prefix_unit(n));
                let joined = units.collect::<Vec<_>>().join("/");
                format!("/{joined}")
            }
        }
    }

    /// The systemd slice unit of this cgroup; none for the root.
    pub fn slice_unit(&self) -> Option<String> {
        self.prefix_unit(self.0.len())
    }

    fn prefix_unit(&self, parts: usize) -> Option<String> {
        let escaped: Vec<String> = self.0.iter().take(parts).map(|p| p.replace('-', "_")).collect();
        if escaped.is_empty() { None } else { Some(format!("{}.slice", escaped.join("-"))) }
    }

    /// The parts as Go prints a quoted list, for messages.
    pub fn quoted(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|part| format!("{part:?}")).collect();
        format!("[{}]", parts.join(" "))
    }

    /// The pod UID in a pod cgroup's last part (`pod<UID>`).
    pub fn pod_uid(&self) -> Option<&str> {
        let mut pieces = self.0.last()?.split("pod");
        match (pieces.next(), pieces.next(), pieces.next()) {
            (Some(""), Some(uid), None) if !uid.is_empty() => Some(uid),
            _ => None,
        }
    }
}

/// As Go prints a list.
impl std::fmt::Display for CgroupName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}]", self.0.join(" "))
    }
}

/// The agent's part of the tree below the configured root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    kubepods: CgroupName,
}

impl Tree {
    /// The tree below `cgroupRoot`.
    pub fn new(root: &CgroupName) -> Self {
        Self { kubepods: root.child("kubepods") }
    }

    /// `kubepods`, the root of all pods.
    pub fn kubepods(&self) -> &CgroupName {
        &self.kubepods
    }

    /// The parent of the pods of a level.
    pub fn level(&self, level: QosClass) -> CgroupName {
        match level {
            QosClass::Guaranteed => self.kubepods.clone(),
            QosClass::Burstable => self.kubepods.child("burstable"),
            QosClass::BestEffort => self.kubepods.child("besteffort"),
        }
    }

    /// A pod's cgroup.
    pub fn pod(&self, level: QosClass, uid: &str) -> CgroupName {
        self.level(level).child(&format!("pod{uid}"))
    }
}

/// Limits of one cgroup; `None` leaves a value unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU shares on the version 1 scale.
    pub cpu_shares: Option<u64>,
    /// CFS quota per period in microseconds; -1 is unlimited.
    pub cpu_quota_us: Option<i64>,
    /// CFS period in microseconds.
    pub cpu_period_us: Option<u64>,
    /// Memory limit in bytes; -1 is unlimited.
    pub memory_bytes: Option<i64>,
    /// Process limit; -1 is unlimited.
    pub pids: Option<i64>,
    /// Hugetlb limits by page size name (`2MB`). Every page size of the machine must be listed:
    /// a missing one is written as 0.
    pub hugetlb: Option<BTreeMap<String, u64>>,
    /// CPUs of the cgroup.
    pub cpuset_cpus: Option<String>,
    /// Version 2 files written as they are.
    pub unified: BTreeMap<String, String>,
}

/// One value for one control file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWrite {
    /// Version 1 controller that has the file.
    pub controller: &'static str,
    /// File name.
    pub file: String,
    /// Content.
    pub value: String,
    /// Only written where the file is there.
    pub optional: bool,
}

/// CPU shares for a CPU amount, within the kernel's bounds. For absurdly large amounts the product overflows, as
/// upstream's does (kubelet: `MilliCPUToShares`).
pub fn shares(milli_cpu: i64) -> u64 {
    let raw = milli_cpu.wrapping_mul(1024) / 1000;
    u64::try_from(raw).unwrap_or(0).clamp(MIN_SHARES, MAX_SHARES)
}

/// The version 2 weight equivalent to these shares.
pub fn weight(shares: u64) -> u64 {
    let shares = shares.clamp(MIN_SHARES, MAX_SHARES);
    1 + (shares - MIN_SHARES) * 9_999 / (MAX_SHARES - MIN_SHARES)
}

/// CPU shares equivalent to a weight of version 2.
pub fn shares_of_weight(weight: u64) -> u64 {
    weight.saturating_sub(1).saturating_mul(262_142) / 9_999 + 2
}

/// CFS quota for a CPU limit; 0 (no limit) gives -1. It overflows as upstream's does (kubelet: `MilliCPUToQuota`).
pub fn quota_us(milli_cpu: i64, period_us: u64) -> i64 {
    if milli_cpu <= 0 {
        return -1;
    }
    let period = i64::try_from(period_us).unwrap_or(i64::MAX);
    (milli_cpu.wrapping_mul(period) / 1000).max(MIN_QUOTA_US)
}

/// The quota as the systemd driver writes it: rounded up to a hundredth of a CPU.
pub fn systemd_quota_us(quota_us: i64, period_us: u64) -> i64 {
    let (Ok(period), true) = (i64::try_from(period_us), quota_us > 0) else { return quota_us };
    if period == 0 {
        return quota_us;
    }
    let per_second = quota_us.saturating_mul(1_000_000) / period;
    let rounded = per_second.div_euclid(10_000) + i64::from(per_second.rem_euclid(10_000) != 0);
    rounded.saturating_mul(10_000).saturating_mul(period) / 1_000_000
}

/// The files that express `limits`, in the order to write them.
pub fn file_writes(limits: &Limits, v2: bool, page_sizes: &[String]) -> Vec<FileWrite> {
    let mut writes = if v2 { v2_writes(limits) } else { v1_writes(limits) };
    if let Some(hugetlb) = &limits.hugetlb {
        for size in page_sizes {
            let value = hugetlb.get(size).copied().unwrap_or(0).to_string();
            let names =
                if v2 { ["max", "rsvd.max"] } else { ["limit_in_bytes", "rsvd.limit_in_bytes"] };
            for name in names {
                writes.push(FileWrite {
                    controller: "hugetlb",
                    file: format!("hugetlb.{size}.{name}"),
                    value: value.clone(),
                    optional: true,
                });
            }
        }
    }
    writes
}

fn write(controller: &'static str, file: &str, value: String) -> FileWrite {
    FileWrite { controller, file: file.to_owned(), value, optional: false }
}

fn or_max(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

fn v1_writes(limits: &Limits) -> Vec<FileWrite> {
    let mut writes = Vec::new();
    if let Some(cpus) = &limits.cpuset_cpus {
        writes.push(write("cpuset", "cpuset.cpus", cpus.clone()));
    }
    if let Some(bytes) = limits.memory_bytes.filter(|bytes| *bytes != 0) {
        writes.push(write("memory", "memory.limit_in_bytes", bytes.to_string()));
    }
    if let Some(shares) = limits.cpu_shares {
        writes.push(write("cpu", "cpu.shares", shares.to_string()));
    }
    if let Some(period) = limits.cpu_period_us {
        writes.push(write("cpu", "cpu.cfs_period_us", period.to_string()));
    }
    if let Some(quota) = limits.cpu_quota_us {
        writes.push(write("cpu", "cpu.cfs_quota_us", quota.to_string()));
    }
    if let Some(pids) = limits.pids {
        writes.push(write("pids", "pids.max", or_max(pids)));
    }
    writes
}

fn v2_writes(limits: &Limits) -> Vec<FileWrite> {
    let mut writes = Vec::new();
    if let Some(cpus) = &limits.cpuset_cpus {
        writes.push(write("cpuset", "cpuset.cpus", cpus.clone()));
    }
    if let Some(bytes) = limits.memory_bytes.filter(|bytes| *bytes != 0) {
        writes.push(write("memory", "memory.max", or_max(bytes)));
    }
    if let Some(shares) = limits.cpu_shares {
        writes.push(write("cpu", "cpu.weight", weight(shares).to_string()));
    }
    if limits.cpu_quota_us.is_some() || limits.cpu_period_us.is_some() {
        let quota = or_max(limits.cpu_quota_us.unwrap_or(-1));
        let period = limits.cpu_period_us.map(|p| format!(" {p}")).unwrap_or_default();
        writes.push(write("cpu", "cpu.max", format!("{quota}{period}")));
    }
    if let Some(pids) = limits.pids {
        writes.push(write("pids", "pids.max", or_max(pids)));
    }
    for (file, value) in &limits.unified {
        writes.push(write("", file, value.clone()));
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_both_driver_forms() {
        let tree = Tree::new(&CgroupName::root());
        let pod = tree.pod(QosClass::Burstable, "1-2");
        assert_eq!(pod.path(Driver::Cgroupfs), "/kubepods/burstable/pod1-2");
        assert_eq!(
            pod.path(Driver::Systemd),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
        );
        assert_eq!(CgroupName::parse(Driver::Systemd, &pod.path(Driver::Systemd)), pod);
        assert_eq!(CgroupName::parse(Driver::Cgroupfs, &pod.path(Driver::Cgroupfs)), pod);
        assert_eq!(pod.pod_uid(), Some("1-2"));
        assert_eq!(pod.to_string(), "[kubepods burstable pod1-2]");
        assert_eq!(tree.level(QosClass::Burstable).pod_uid(), None);
        assert_eq!(CgroupName::root().path(Driver::Systemd), "/");
    }

    #[test]
    fn the_configured_root_is_a_path_with_either_driver() {
        let path =
            |root: &str, driver| Tree::new(&CgroupName::of_root(root)).kubepods().path(driver);
        assert_eq!(path("/", Driver::Systemd), "/kubepods.slice");
        let nested = "/a.slice/a-b.slice";
        assert_eq!(path(nested, Driver::Cgroupfs), "/a.slice/a-b.slice/kubepods");
        assert_eq!(
            path(nested, Driver::Systemd),
            "/a.slice.slice/a.slice-a_b.slice.slice/a.slice-a_b.slice-kubepods.slice"
        );
    }

    #[test]
    fn shares_weight_and_quota_follow_upstream() {
        for (milli, expected) in
            [(0, 2), (1, 2), (2, 2), (10, 10), (1000, 1024), (1 << 40, 262_144)]
        {
            assert_eq!(shares(milli), expected, "{milli}m");
        }
        for (shares, expected) in [(2, 1), (1024, 39), (262_144, 10_000), (1 << 30, 10_000)] {
            assert_eq!(weight(shares), expected, "{shares} shares");
        }
        for (milli, expected) in [(0, -1), (1, 1000), (15, 1500), (500, 50_000), (2000, 200_000)] {
            assert_eq!(quota_us(milli, 100_000), expected, "{milli}m");
        }
        // Limits of 1e12, 1e13 and 1e14 CPUs, as the Go code has them.
        let huge = [1_000_000_000_000_000_i64, 10_000_000_000_000_000, 100_000_000_000_000_000];
        assert_eq!(huge.map(shares), [262_144, 2, 2]);
        assert_eq!(
            huge.map(|m| quota_us(m, 100_000)),
            [7_766_279_631_452_241, 3_875_820_019_684_212, 1_864_712_049_423_024]
        );
        assert_eq!(systemd_quota_us(1500, 100_000), 2000);
        assert_eq!(systemd_quota_us(50_000, 100_000), 50_000);
        assert_eq!(systemd_quota_us(-1, 100_000), -1);
    }

    #[test]
    fn hugetlb_sizes_without_a_limit_are_written_as_zero() {
        let limits = Limits {
            hugetlb: Some(BTreeMap::from([("2MB".to_owned(), 4096)])),
            ..Limits::default()
        };
        let sizes = ["2MB".to_owned(), "1GB".to_owned()];
        let writes = file_writes(&limits, true, &sizes);
        let pairs: Vec<_> = writes.iter().map(|w| (w.file.as_str(), w.value.as_str())).collect();
        assert_eq!(
            pairs,
            [
                ("hugetlb.2MB.max", "4096"),
                ("hugetlb.2MB.rsvd.max", "4096"),
                ("hugetlb.1GB.max", "0"),
                ("hugetlb.1GB.rsvd.max", "0"),
            ]
        );
    }

    #[test]
    fn pod_limits_as_files_of_both_versions() {
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(100_000),
            cpu_period_us: Some(100_000),
            memory_bytes: Some(1 << 20),
            pids: Some(-1),
            ..Limits::default()
        };
        let texts = |v2| -> Vec<String> {
            let writes = file_writes(&limits, v2, &[]);
            writes.iter().map(|w| format!("{}={}", w.file, w.value)).collect()
        };
        assert_eq!(
            texts(false),
            [
                "memory.limit_in_bytes=1048576",
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=100000",
                "pids.max=max",
            ]
        );
        assert_eq!(
            texts(true),
            ["memory.max=1048576", "cpu.weight=39", "cpu.max=100000 100000", "pids.max=max"]
        );
        // Upstream's library treats a memory limit of 0 as unset.
        let nothing = Limits { memory_bytes: Some(0), ..Limits::default() };
        assert!([false, true].iter().all(|v2| file_writes(&nothing, *v2, &[]).is_empty()));
    }
}
