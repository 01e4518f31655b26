//! Open files of a cgroup's own processes.

use crate::task::StatsConfig;

/// What the processes have open.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct OpenFiles {
    pub(super) descriptors: u64,
    pub(super) sockets: u64,
    /// The soft limit of the first process; -1 is unlimited.
    pub(super) soft_limit: Option<f64>,
}

/// Looks at the processes in this cgroup itself.
pub(super) fn open_files(config: &StatsConfig, path: &str) -> OpenFiles {
    let controller = if config.cgroups.is_v2() { "" } else { "cpuacct" };
    let procs = config.cgroups.read(controller, path, "cgroup.procs").unwrap_or_default();
    let mut open = OpenFiles::default();
    for pid in procs.lines().map(str::trim).filter(|pid| !pid.is_empty()) {
        let process = config.roots.proc.join(pid);
        if open.soft_limit.is_none() {
            let text = sys::fs::read_to_string(process.join("limits")).unwrap_or_default();
            open.soft_limit = soft_limit(&text);
        }
        let folder = process.join("fd");
        for descriptor in sys::fs::list_dir(&folder).unwrap_or_default() {
            open.descriptors += 1;
            let target = std::fs::read_link(folder.join(descriptor)).unwrap_or_default();
            if target.to_string_lossy().starts_with("socket:") {
                open.sockets += 1;
            }
        }
    }
    open
}

fn soft_limit(limits: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1.0),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::soft_limit;

    #[test]
    fn the_soft_limit_is_the_first_number() {
        let line = "Max open files            1024                 524288               files\n";
        assert_eq!(soft_limit(line), Some(1024.0));
        assert_eq!(soft_limit("Max open files  unlimited unlimited files\n"), Some(-1.0));
        assert_eq!(soft_limit(""), None);
    }
}
