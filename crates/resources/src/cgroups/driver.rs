//! The cgroup drivers: cgroupfs and systemd.
//!
//! Executes only: the caller decides which cgroup and which limits. The systemd driver sets unit properties
//! first and then writes the files as well, as upstream does, so that both agree.

use engine::cgroup::{CgroupName, Driver, Limits, file_writes, systemd_quota_us, weight};
use std::sync::Arc;
use sys::cgroup::Cgroups;
use sys::fs::FsError;
use sys::systemd::{Property, Systemd, SystemdError};
use telemetry::metrics::{Desc, HistogramFamily, Registry};
use tokio::time::Instant;
use units::CpuSet;

/// A cgroup operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FsError),
    /// systemd refused or did not answer.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The blocking thread panicked.
    #[error(transparent)]
    Blocking(#[from] sys::blocking::BlockingError),
}

/// Makes, limits and removes cgroups with the configured driver.
#[derive(Debug, Clone)]
pub struct CgroupDriver {
    host: Arc<Cgroups>,
    systemd: Option<Arc<Systemd>>,
    page_sizes: Arc<Vec<String>>,
    durations: Option<HistogramFamily>,
}

/// The systemd versions that introduced `CPUQuotaPeriodUSec` and `AllowedCPUs`.
const KNOWS_QUOTA_PERIOD: u32 = 242;
const KNOWS_CPUS: u32 = 244;

const DURATION: Desc = Desc::alpha(
    "kubelet_cgroup_manager_duration_seconds",
    "Duration in seconds for cgroup manager operations. Broken down by method.",
)
.labels(&["operation_type"]);
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

impl CgroupDriver {
    /// A driver over the machine's hierarchies; `page_sizes` are its huge page sizes (`2MB`).
    pub fn new(driver: Driver, host: Arc<Cgroups>, page_sizes: Vec<String>) -> Self {
        let systemd = match driver {
            Driver::Systemd => Some(Arc::new(Systemd::new())),
            Driver::Cgroupfs => None,
        };
        Self { host, systemd, page_sizes: Arc::new(page_sizes), durations: None }
    }

    /// With metrics of the operations' durations.
    #[must_use]
    pub fn measured(mut self, registry: &Registry) -> Self {
        self.durations = Some(registry.histogram(DURATION, &BUCKETS));
        self
    }

    async fn timed<T>(&self, operation: &str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        if let Some(durations) = &self.durations {
            durations.observe_duration(&[operation], began.elapsed());
        }
        done
    }

    /// The configured driver.
    pub fn kind(&self) -> Driver {
        if self.systemd.is_some() { Driver::Systemd } else { Driver::Cgroupfs }
    }

    /// The machine's hierarchies.
    pub fn host(&self) -> &Arc<Cgroups> {
        &self.host
    }

    /// Huge page sizes of the machine.
    pub fn page_sizes(&self) -> &[String] {
        &self.page_sizes
    }

    /// The path in the hierarchy.
    pub fn path(&self, name: &CgroupName) -> String {
        name.path(self.kind())
    }

    /// Whether the cgroup exists with all its controllers.
    pub async fn exists(&self, name: &CgroupName) -> bool {
        self.missing(name).await.is_empty()
    }

    /// Whether the cgroup exists in any hierarchy.
    pub async fn is_there(&self, name: &CgroupName) -> bool {
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.is_there(&path))
            .await
            .unwrap_or(true)
    }

    /// What is missing for the cgroup to exist.
    pub async fn missing(&self, name: &CgroupName) -> Vec<String> {
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        let fallback = vec![path.clone()];
        sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.missing(&path))
            .await
            .unwrap_or(fallback)
    }

    /// Why the cgroup does not count as existing, in upstream's words (kubelet: `Validate`).
    pub async fn fault(&self, name: &CgroupName) -> Option<String> {
        let mut missing = self.missing(name).await;
        if missing.is_empty() {
            return None;
        }
        missing.sort_unstable();
        let cgroup = name.quoted();
        if !self.host.is_v2() {
            return Some(format!("cgroup {cgroup} has some missing paths: {}", missing.join(", ")));
        }
        let folder = self.host.dir("", &self.path(name)).filter(|folder| !folder.is_dir());
        Some(match folder {
            Some(folder) => format!(
                "could not read controllers for cgroup {cgroup}: open {}: no such file or directory",
                folder.join("cgroup.controllers").display()
            ),
            None => format!("cgroup {cgroup} has some missing controllers: {}", missing.join(", ")),
        })
    }

    /// Makes the cgroup with all its parents and writes its limits; a limit that could not be written is
    /// only logged, as upstream.
    pub async fn create(&self, name: &CgroupName, limits: &Limits) -> Result<(), DriverError> {
        let work = async {
            self.make(name).await?;
            if let Err(error) = self.write(name, limits).await {
                let cgroup = self.path(name);
                tracing::error!(err = %chain(&error), cgroup, "cgroup limits were not all applied");
            }
            Ok(())
        };
        self.timed("create", work).await
    }

    async fn make(&self, name: &CgroupName) -> Result<(), DriverError> {
        if let (Some(systemd), Some(unit)) = (&self.systemd, name.slice_unit()) {
            let parent = name.parent().slice_unit().unwrap_or_else(|| "-.slice".to_owned());
            systemd.start_slice(&unit, &parent).await?;
        }
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.create(&path))
            .await??;
        Ok(())
    }

    /// Writes the limits; the first failure is returned after all were tried.
    pub async fn apply(&self, name: &CgroupName, limits: &Limits) -> Result<(), DriverError> {
        self.timed("update", self.write(name, limits)).await
    }

    async fn write(&self, name: &CgroupName, limits: &Limits) -> Result<(), DriverError> {
        let mut limits = limits.clone();
        let mut properties_set = Ok(());
        if let (Some(systemd), Some(unit)) = (&self.systemd, name.slice_unit()) {
            if let (Some(quota), Some(period)) = (limits.cpu_quota_us, limits.cpu_period_us) {
                limits.cpu_quota_us = Some(systemd_quota_us(quota, period));
            }
            let properties = properties(&limits, self.host.is_v2(), systemd.version().await);
            if !properties.is_empty() {
                // A limit that systemd refuses still takes effect through the file.
                properties_set = systemd.set_properties(&unit, &properties).await;
            }
        }
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        let writes = file_writes(&limits, host.is_v2(), &self.page_sizes);
        sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || {
            let mut first = Ok(());
            for w in &writes {
                if w.optional && !host.has(w.controller, &path, &w.file) {
                    continue;
                }
                let result = host.write(w.controller, &path, &w.file, &w.value);
                first = first.and(result);
            }
            first
        })
        .await??;
        Ok(properties_set?)
    }

    /// Reads one control file.
    pub async fn read(
        &self,
        name: &CgroupName,
        controller: &'static str,
        file: &'static str,
    ) -> Result<String, DriverError> {
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        Ok(sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || {
            host.read(controller, &path, file)
        })
        .await??)
    }

    /// Cgroups directly below.
    pub async fn children(&self, name: &CgroupName) -> Vec<CgroupName> {
        let (host, path, kind) = (Arc::clone(&self.host), self.path(name), self.kind());
        let parent = name.clone();
        let found =
            sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.children(&path))
                .await
                .unwrap_or_default();
        found
            .into_iter()
            .filter_map(|folder| match kind {
                Driver::Cgroupfs => Some(parent.child(&folder)),
                Driver::Systemd => {
                    let child = CgroupName::parse(kind, &folder);
                    (folder.ends_with(".slice") && child.parent() == parent).then_some(child)
                }
            })
            .collect()
    }

    /// Whether all of a container below the cgroup is killed when it runs out of memory, rather than one process;
    /// version 1 knows only the latter. `None` if there is no such container.
    pub async fn oom_group(&self, name: &CgroupName, container_id: &str) -> Option<bool> {
        if !self.host.is_v2() {
            return Some(false);
        }
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        let id = container_id.to_owned();
        let read = move || {
            // The runtime's folder is the id, or a systemd scope with the id in its name; CRI-O has another scope
            // for conmon.
            let is_its = |folder: &String| folder.contains(&id) && !folder.contains("conmon");
            let folder = host.children(&path).into_iter().find(is_its)?;
            host.read("memory", &format!("{path}/{folder}"), "memory.oom.group").ok()
        };
        let text =
            sys::blocking::run_for(sys::blocking::Purpose::Cgroups, read).await.ok().flatten()?;
        Some(text == "1")
    }

    /// Every process in the cgroup and below.
    pub async fn pids(&self, name: &CgroupName) -> Vec<i32> {
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        let found =
            sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.pids(&path))
                .await
                .unwrap_or_default();
        found.into_iter().collect()
    }

    /// Removes the cgroup and everything below; it must be without processes.
    pub async fn remove(&self, name: &CgroupName) -> Result<(), DriverError> {
        self.timed("destroy", self.destroy(name)).await
    }

    async fn destroy(&self, name: &CgroupName) -> Result<(), DriverError> {
        if let (Some(systemd), Some(unit)) = (&self.systemd, name.slice_unit()) {
            systemd.stop(&unit).await?;
        }
        let (host, path) = (Arc::clone(&self.host), self.path(name));
        sys::blocking::run_for(sys::blocking::Purpose::Cgroups, move || host.remove(&path))
            .await??;
        Ok(())
    }
}

/// Why a cgroup could not be made, as Go says it.
pub(super) fn making(error: &DriverError) -> String {
    match error {
        DriverError::File(error) => {
            let verb = if error.operation == "create cgroup" { "mkdir" } else { "open" };
            format!("{verb} {}: {}", error.path.display(), units::errno::go_text(&error.source))
        }
        other => chain(other),
    }
}

/// The error with what caused it.
pub(super) fn chain(error: &DriverError) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

/// Unit properties equivalent to the files, as upstream's library sets them. Limits without a property (huge
/// pages), or without one in this systemd version, are in the files alone: systemd refuses all properties if it
/// does not know one.
fn properties(limits: &Limits, v2: bool, version: u32) -> Vec<Property> {
    let mut properties = Vec::new();
    let (memory, cpu) = if v2 { ("MemoryMax", "CPUWeight") } else { ("MemoryLimit", "CPUShares") };
    if let Some(bytes) = limits.memory_bytes.filter(|bytes| *bytes != 0) {
        properties.push(Property::Number(memory, or_infinity(bytes)));
    }
    if let Some(shares) = limits.cpu_shares {
        properties.push(Property::Number(cpu, if v2 { weight(shares) } else { shares }));
    }
    if let (Some(quota), Some(period)) = (limits.cpu_quota_us, limits.cpu_period_us) {
        let per_second = match u64::try_from(quota) {
            Ok(quota) if quota > 0 && period > 0 => quota.saturating_mul(1_000_000) / period,
            _ => u64::MAX,
        };
        if version >= KNOWS_QUOTA_PERIOD {
            properties.push(Property::Number("CPUQuotaPeriodUSec", period));
        }
        properties.push(Property::Number("CPUQuotaPerSecUSec", per_second));
    }
    if let Some(pids) = limits.pids {
        // systemd refuses 0.
        properties.push(Property::Number("TasksMax", or_infinity(pids).max(1)));
    }
    if version >= KNOWS_CPUS {
        // Without it systemd reverts the value in the file.
        let cpus = limits.cpuset_cpus.as_deref().and_then(|cpus| cpus.parse::<CpuSet>().ok());
        if let Some(cpus) = cpus.filter(|cpus| !cpus.is_empty()) {
            properties.push(Property::Bytes("AllowedCPUs", mask(&cpus)));
        }
    }
    if v2 {
        properties.extend(limits.unified.iter().filter_map(|(file, value)| unified(file, value)));
    }
    properties
}

/// CPUs in systemd's encoding: one bit each, lowest byte first.
fn mask(cpus: &CpuSet) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cpu in cpus.iter() {
        let at = usize::try_from(cpu / 8).unwrap_or(usize::MAX);
        if bytes.len() <= at {
            bytes.resize(at.saturating_add(1), 0_u8);
        }
        if let Some(byte) = bytes.get_mut(at) {
            *byte |= 1 << (cpu % 8);
        }
    }
    bytes
}

/// The property equivalent to a file of version 2.
fn unified(file: &str, value: &str) -> Option<Property> {
    let name = match file {
        "cpu.weight" => "CPUWeight",
        "memory.high" => "MemoryHigh",
        "memory.low" => "MemoryLow",
        "memory.max" => "MemoryMax",
        "memory.min" => "MemoryMin",
        "memory.swap.max" => "MemorySwapMax",
        "pids.max" => "TasksMax",
        _ => return None,
    };
    let number = if value == "max" { u64::MAX } else { value.parse().ok()? };
    Some(Property::Number(name, number))
}

fn or_infinity(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_dies_for_want_of_memory_is_read_from_the_containers_cgroup() {
        let root = std::env::temp_dir().join(format!("rubelet-oom-group-{}", std::process::id()));
        let folders = [
            ("cri-containerd-aa.scope", "1\n"),
            ("bb", "0\n"),
            ("crio-conmon-dd.scope", "0\n"),
            ("crio-dd.scope", "1\n"),
        ];
        for (folder, value) in folders {
            sys::fs::create_dir_all(root.join("p").join(folder), 0o755).unwrap();
            sys::fs::write(root.join("p").join(folder).join("memory.oom.group"), value).unwrap();
        }
        let host = Arc::new(Cgroups::V2 { root: root.clone() });
        let driver = CgroupDriver::new(Driver::Cgroupfs, host, Vec::new());
        let pod = CgroupName::root().child("p");
        assert_eq!(driver.oom_group(&pod, "aa").await, Some(true));
        assert_eq!(driver.oom_group(&pod, "bb").await, Some(false));
        assert_eq!(driver.oom_group(&pod, "cc").await, None);
        assert_eq!(driver.oom_group(&pod, "dd").await, Some(true), "not that of conmon");
        let old = Arc::new(Cgroups::V1 { mounts: std::collections::BTreeMap::new() });
        let driver = CgroupDriver::new(Driver::Cgroupfs, old, Vec::new());
        assert_eq!(driver.oom_group(&pod, "aa").await, Some(false));
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &root, all).unwrap();
    }

    #[tokio::test]
    async fn a_cgroup_that_is_not_there_cannot_be_read_one_without_controllers_lacks_them() {
        let root = std::env::temp_dir().join(format!("rubelet-fault-{}", std::process::id()));
        sys::fs::create_dir_all(root.join("bare"), 0o755).unwrap();
        sys::fs::write(root.join("cgroup.controllers"), "cpu io hugetlb memory pids\n").unwrap();
        sys::fs::write(root.join("bare/cgroup.controllers"), "pids\n").unwrap();
        let host = Arc::new(Cgroups::V2 { root: root.clone() });
        let driver = CgroupDriver::new(Driver::Cgroupfs, host, Vec::new());
        let fault = async |path: &str| {
            driver.fault(&CgroupName::parse(Driver::Cgroupfs, path)).await.unwrap()
        };
        assert_eq!(
            fault("/absent/one").await,
            format!(
                "could not read controllers for cgroup [\"absent\" \"one\"]: open \
                 {}/absent/one/cgroup.controllers: no such file or directory",
                root.display()
            )
        );
        let bare = "cgroup [\"bare\"] has some missing controllers: cpu, hugetlb, memory";
        assert_eq!(fault("/bare").await, bare);
        assert_eq!(driver.fault(&CgroupName::root()).await, None);
        let all = sys::removal::Contents::Everything;
        sys::removal::remove_tree(std::path::Path::new("/proc"), &root, all).unwrap();
    }

    #[test]
    fn unit_properties_say_the_same_as_the_files() {
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            memory_bytes: Some(-1),
            pids: Some(100),
            cpuset_cpus: Some("0-1,9".to_owned()),
            unified: [("memory.min", "4096"), ("memory.high", "max"), ("memory.oom.group", "1")]
                .map(|(file, value)| (file.to_owned(), value.to_owned()))
                .into(),
            ..Limits::default()
        };
        let names = |version| {
            let all = properties(&limits, true, version);
            all.iter().map(Property::name).collect::<Vec<_>>()
        };
        let old =
            ["MemoryMax", "CPUWeight", "CPUQuotaPerSecUSec", "TasksMax", "MemoryHigh", "MemoryMin"];
        assert_eq!(names(239), old, "one it does not know would cost them all");
        assert!(names(243).contains(&"CPUQuotaPeriodUSec") && !names(243).contains(&"AllowedCPUs"));
        assert_eq!(
            properties(&limits, true, 252),
            [
                Property::Number("MemoryMax", u64::MAX),
                Property::Number("CPUWeight", 39),
                Property::Number("CPUQuotaPeriodUSec", 100_000),
                Property::Number("CPUQuotaPerSecUSec", 500_000),
                Property::Number("TasksMax", 100),
                Property::Bytes("AllowedCPUs", vec![0b11, 0b10]),
                Property::Number("MemoryHigh", u64::MAX),
                Property::Number("MemoryMin", 4096),
            ]
        );
    }
}
