//! What the machine is, read once at start, and the checks that refuse to start on it.

use config::Config;
use engine::cgroup::Driver;
use engine::volumes::selinux_setting;
use ports::Roots;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use sys::cgroup::Cgroups;
use sys::host::Machine;

/// The machine at start.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) machine: Machine,
    pub(crate) hostname: String,
    /// Huge page sizes as the kernel's files name them (`2MB`).
    pub(crate) page_sizes: Vec<String>,
    pub(crate) selinux: bool,
    /// The policy's contexts of containers, if SELinux is on.
    pub(crate) selinux_contexts: String,
    pub(crate) swap_controller: bool,
    pub(crate) thermal_throttle: Vec<String>,
    /// What the node declares; set once the runtime was asked.
    pub(crate) declared_features: Option<Vec<String>>,
}

/// Why this machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No usable cgroups.
    #[error(transparent)]
    Cgroups(#[from] sys::cgroup::CgroupHostError),
    /// A fact could not be read.
    #[error("cannot read machine facts")]
    Facts(#[from] sys::fs::FsError),
    /// The host name is empty.
    #[error("empty hostname is invalid")]
    NoHostname,
}

impl Host {
    /// Reads the machine.
    pub(crate) fn read(config: &Config, roots: &Roots) -> Result<Self, HostError> {
        let cgroups = Arc::new(Cgroups::detect(&roots.sys, &roots.proc)?);
        let machine = sys::host::machine(&roots.proc, &roots.sys, &roots.etc)?;
        let hostname = match &config.node.hostname_override {
            Some(name) => name.clone(),
            None => sys::host::hostname(),
        };
        let hostname = hostname.trim().to_lowercase();
        if hostname.is_empty() {
            return Err(HostError::NoHostname);
        }
        let swap_controller = if cgroups.is_v2() {
            let own = own_cgroup(roots);
            cgroups.has("", &own, "memory.swap.max")
        } else {
            cgroups.has("memory", "/", "memory.memsw.limit_in_bytes")
        };
        let selinux = roots.sys.join("fs/selinux/enforce").is_file();
        Ok(Self {
            page_sizes: page_sizes(roots),
            selinux_contexts: if selinux { selinux_contexts(roots) } else { String::new() },
            selinux,
            thermal_throttle: thermal_throttle(roots, machine.cores),
            swap_controller,
            declared_features: None,
            cgroups,
            machine,
            hostname,
        })
    }
}

/// What the SELinux policy says about containers; of the first file that is there.
fn selinux_contexts(roots: &Roots) -> String {
    const SHARED: &str = "/usr/share/containers/selinux/contexts";
    let folder = roots.etc.join("selinux");
    let settings = sys::fs::read_to_string(folder.join("config")).unwrap_or_default();
    let policy = selinux_setting(&settings, "SELINUXTYPE").unwrap_or_default();
    let files = [PathBuf::from(SHARED), folder.join(policy).join("contexts/lxc_contexts")];
    files.iter().find_map(|file| sys::fs::read_to_string(file).ok()).unwrap_or_default()
}

/// The machine's processors, as pods that are to start see them.
#[derive(Debug)]
pub(crate) struct HostProcessors {
    pub(crate) cores: u64,
    pub(crate) proc: PathBuf,
}

impl pods::Processors for HostProcessors {
    fn count(&self) -> usize {
        usize::try_from(self.cores).unwrap_or(usize::MAX)
    }

    fn idle(&self) -> Option<Duration> {
        sys::host::idle_time(&self.proc)
    }
}

/// Whether the machine swaps: the list has more than its heading.
pub(crate) fn swap_is_on(roots: &Roots) -> bool {
    let swaps = sys::fs::read_to_string(roots.proc.join("swaps")).unwrap_or_default();
    swaps.lines().filter(|line| !line.trim().is_empty()).count() > 1
}

/// The driver as the configuration names it.
pub(crate) fn configured_driver(config: &Config) -> Driver {
    match config.resources.cgroup_driver {
        config::resolved::CgroupDriver::Cgroupfs => Driver::Cgroupfs,
        config::resolved::CgroupDriver::Systemd => Driver::Systemd,
    }
}

/// Our own cgroup on the unified hierarchy.
fn own_cgroup(roots: &Roots) -> String {
    let text = sys::fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("0::"));
    line.unwrap_or("/").to_owned()
}

/// The cgroup that this process is in, if its controllers agree on it.
pub(crate) fn own_cgroup_of(roots: &Roots, cgroups: &Cgroups) -> Option<String> {
    if cgroups.is_v2() {
        return Some(own_cgroup(roots));
    }
    let text = sys::fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
    let of = |wanted: &str| {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|c| c == wanted).then(|| path.to_owned())
        })
    };
    of("cpu").filter(|path| of("memory").as_ref() == Some(path))
}

/// When the machine booted, in seconds since the epoch.
pub(crate) fn boot_time(roots: &Roots) -> i64 {
    let text = sys::fs::read_to_string(roots.proc.join("stat")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0)
}

fn page_sizes(roots: &Roots) -> Vec<String> {
    let folder = roots.sys.join("kernel/mm/hugepages");
    let names = sys::fs::list_dir(folder).unwrap_or_default();
    names.iter().filter_map(|n| page_size_name(n)).collect()
}

/// `hugepages-2048kB` is `2MB`.
fn page_size_name(folder: &str) -> Option<String> {
    let kib: u64 = folder.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    Some(match kib {
        k if k % (1024 * 1024) == 0 => format!("{}GB", k / (1024 * 1024)),
        k if k % 1024 == 0 => format!("{}MB", k / 1024),
        k => format!("{k}KB"),
    })
}

fn thermal_throttle(roots: &Roots, cores: u64) -> Vec<String> {
    (0..cores)
        .map(|cpu| format!("devices/system/cpu/cpu{cpu}/thermal_throttle"))
        .filter(|path| roots.sys.join(path).is_dir())
        .map(|path| format!("/sys/{path}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::page_size_name;

    #[test]
    fn page_sizes_are_named_as_the_kernel_names_their_files() {
        let name = |folder| page_size_name(folder).unwrap_or_default();
        assert_eq!(name("hugepages-64kB"), "64KB");
        assert_eq!(name("hugepages-2048kB"), "2MB");
        assert_eq!(name("hugepages-1048576kB"), "1GB");
        assert_eq!(name("other"), "");
    }
}
