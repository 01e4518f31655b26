//! Usage of one cgroup, version 1 or 2 (cadvisor: `libcontainer.Handler.GetStats`).

mod cached_fd;
mod held;
mod parse;
mod v1;
mod v2;

pub(super) use cached_fd::cached_numbers;
pub use held::{HeldCgroup, Hold, Look, Pulse};

use crate::cgroup::Cgroups;
use std::collections::BTreeMap;

/// CPU time and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPU time used since the cgroup was created, in nanoseconds.
    pub total_ns: u64,
    /// Of which in user space.
    pub user_ns: u64,
    /// Of which in the kernel.
    pub system_ns: u64,
    /// CFS periods that passed.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
    /// Time throttled, in nanoseconds.
    pub throttled_ns: u64,
    /// Periods in which it used burst time.
    pub burst_periods: u64,
    /// Burst time used, in nanoseconds.
    pub burst_ns: u64,
    /// Shares on the version 1 scale.
    pub shares: Option<u64>,
    /// Quota in microseconds; absent without one.
    pub quota_us: Option<i64>,
    /// Period in microseconds.
    pub period_us: Option<u64>,
}

/// Memory in bytes.
/// Many fields: one for each number of the kernel's that somebody shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All memory charged.
    pub usage: u64,
    /// Usage less inactive file pages.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// File pages.
    pub cache: u64,
    /// Mapped file pages.
    pub mapped_file: u64,
    /// Swap used.
    pub swap: u64,
    /// Highest usage seen.
    pub max_usage: u64,
    /// Times the limit was hit.
    pub fail_count: u64,
    /// Kernel memory.
    pub kernel: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that needed I/O.
    pub major_page_faults: u64,
    /// Active and inactive file pages.
    pub active_file: u64,
    /// Inactive file pages.
    pub inactive_file: u64,
    /// Limit; absent if there is none.
    pub limit: Option<u64>,
    /// Swap limit; absent if there is none.
    pub swap_limit: Option<u64>,
    /// Memory reservation (`memory.min`, version 1 soft limit).
    pub reservation: Option<u64>,
}

/// I/O of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Major and minor number.
    pub device: (u64, u64),
    /// Amounts by operation (`Read`, `Write`, …), in bytes.
    pub bytes: BTreeMap<&'static str, u64>,
    /// Counts by operation.
    pub operations: BTreeMap<&'static str, u64>,
}

/// One line of a pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureLine {
    /// Average over 10 seconds, percent.
    pub avg10: f64,
    /// Average over 60 seconds.
    pub avg60: f64,
    /// Average over 300 seconds.
    pub avg300: f64,
    /// Total stall time in microseconds.
    pub total_us: u64,
}

/// A pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some task was stalled.
    pub some: PressureLine,
    /// All tasks were stalled.
    pub full: PressureLine,
}

/// Pressure of the three resources.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureSet {
    /// CPU.
    pub cpu: Pressure,
    /// Memory.
    pub memory: Pressure,
    /// I/O.
    pub io: Pressure,
}

/// The usage of one cgroup at one point in time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CgroupUsage {
    /// When it was created, seconds since the epoch.
    pub created: i64,
    /// CPU.
    pub cpu: CpuUsage,
    /// Memory.
    pub memory: MemoryUsage,
    /// Devices.
    pub io: Vec<DeviceIo>,
    /// Pressure; zeros where the kernel has none.
    pub pressure: PressureSet,
    /// Processes in this cgroup itself.
    pub processes: u64,
    /// Their ids, one per line.
    pub procs: String,
    /// Processes killed by the OOM killer.
    pub oom_kills: u64,
    /// Threads in it and below.
    pub threads: u64,
    /// Thread limit; absent if there is none.
    pub threads_max: Option<u64>,
}

/// Reads a cgroup completely, once; `None` if it does not exist.
pub fn cgroup_usage(host: &Cgroups, path: &str) -> Option<CgroupUsage> {
    HeldCgroup::open(host, path, Hold::Folders)?.read(Look::default(), &mut Vec::new())
}

/// Parses a text in every format that a cgroup file can have.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_any_form(text: &str) {
    let _sum = parse::pairs(text).fold(0, |sum: u64, (_, value)| sum.wrapping_add(value));
    parse::numbers(text, ["usage_usec", "user_usec"]);
    parse::pair(text, "anon");
    parse::io_stat(text);
    parse::pressure(text);
    let _lines = text.lines().filter_map(parse::blkio_line).count();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn files(root: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn reads_a_version_2_cgroup() {
        let root = std::env::temp_dir().join(format!("rubelet-v2stats-{}", std::process::id()));
        files(
            &root,
            &[
                ("p/cpu.stat", "usage_usec 3\nuser_usec 2\nsystem_usec 1\nnr_throttled 4\n"),
                ("p/cpu.max", "max 100000\n"),
                ("p/cpu.weight", "39\n"),
                ("p/memory.current", "1000\n"),
                ("p/memory.stat", "anon 300\nfile 500\ninactive_file 200\npgfault 7\n"),
                ("p/memory.max", "max\n"),
                ("p/memory.swap.max", "0\n"),
                ("p/io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
                ("p/memory.pressure", "some avg10=1.50 avg60=0.00 avg300=0.25 total=99\n"),
                ("p/cgroup.procs", "1\n2\n"),
                ("p/pids.current", "3\n"),
                ("p/pids.max", "max\n"),
            ],
        );
        let host = Cgroups::V2 { root: root.clone() };
        let usage = cgroup_usage(&host, "/p").unwrap();
        assert_eq!((usage.cpu.total_ns, usage.cpu.throttled_periods), (3000, 4));
        assert_eq!((usage.cpu.shares, usage.cpu.quota_us), (Some(998), None));
        assert_eq!(usage.cpu.period_us, Some(100_000));
        assert_eq!((usage.memory.working_set, usage.memory.rss), (800, 300));
        assert_eq!((usage.memory.limit, usage.memory.swap_limit), (None, Some(0)));
        assert_eq!(usage.io[0].bytes["Write"], 2);
        assert_eq!(usage.io[0].operations["Read"], 3);
        assert_eq!(usage.pressure.memory.some.total_us, 99);
        assert_eq!((usage.processes, usage.threads, usage.threads_max), (2, 3, None));
        assert_eq!(cgroup_usage(&host, "/absent"), None);
        // The real root has no memory counters of its own, the root inside a container has.
        files(&root, &[("memory.stat", "anon 300\nfile 500\n"), ("cgroup.procs", "")]);
        assert_eq!(cgroup_usage(&host, "/").unwrap().memory.usage, 800);
        files(&root, &[("memory.current", "1234\n")]);
        assert_eq!(cgroup_usage(&host, "/").unwrap().memory.usage, 1234);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn reads_a_version_1_cgroup() {
        let root = std::env::temp_dir().join(format!("rubelet-v1stats-{}", std::process::id()));
        files(
            &root,
            &[
                ("cpuacct/p/cpuacct.usage", "12345\n"),
                ("cpuacct/p/cpuacct.stat", "user 2\nsystem 1\n"),
                ("cpu/p/cpu.cfs_quota_us", "-1\n"),
                ("cpu/p/cpu.shares", "512\n"),
                ("memory/p/memory.usage_in_bytes", "100\n"),
                ("memory/p/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/p/memory.stat", "rss 1\ntotal_rss 30\ntotal_inactive_file 500\n"),
                (
                    "blkio/p/blkio.throttle.io_service_bytes",
                    "8:0 Read 10\n8:0 Total 10\nTotal 10\n",
                ),
                ("cpu/p/cgroup.procs", "9\n"),
                ("memory/p/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
            ],
        );
        let mounts = ["cpu", "cpuacct", "memory", "pids", "blkio"]
            .map(|c| (c.to_owned(), root.join(c)))
            .into();
        let usage = cgroup_usage(&Cgroups::V1 { mounts }, "p").unwrap();
        assert_eq!((usage.cpu.total_ns, usage.cpu.user_ns), (12345, 20_000_000));
        assert_eq!((usage.cpu.shares, usage.cpu.quota_us), (Some(512), None));
        assert_eq!((usage.memory.usage, usage.memory.working_set), (100, 0));
        assert_eq!((usage.memory.rss, usage.memory.limit), (30, None));
        assert_eq!(usage.io[0].bytes["Read"], 10);
        assert_eq!((usage.processes, usage.procs.as_str(), usage.oom_kills), (1, "9", 2));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_held_cgroup_reads_settings_only_when_asked_and_ends_with_its_folder() {
        let root = std::env::temp_dir().join(format!("rubelet-held-{}", std::process::id()));
        let stat = |quota: &str, usage: &str| {
            files(
                &root,
                &[
                    ("cpu/p/cpu.cfs_quota_us", quota),
                    ("cpu/p/cpu.stat", "nr_periods 5\n"),
                    ("cpu/p/cpuacct.usage", usage),
                    ("cpu/p/cgroup.procs", ""),
                    ("memory/p/memory.oom_control", "oom_kill 3\n"),
                ],
            );
        };
        stat("1000\n", "1\n");
        let folder = |at: &str| root.join(at);
        let mounts = [("cpu", "cpu"), ("cpuacct", "cpu"), ("memory", "memory")];
        let mounts = mounts.map(|(name, at)| (name.to_owned(), folder(at))).into();
        let host = Cgroups::V1 { mounts };
        let mut held = HeldCgroup::open(&host, "/p", Hold::Folders).unwrap();
        let mut buffer = Vec::new();
        let look = Look { settings: false, kills: false, io: false, bfq: false };
        let first = held.read(Look { kills: true, ..look }, &mut buffer).unwrap();
        assert_eq!((first.cpu.quota_us, first.cpu.periods), (Some(1000), 5), "the first look");
        assert_eq!(first.oom_kills, 3);
        stat("-1\n", "2\n");
        let second = held.read(look, &mut buffer).unwrap();
        assert_eq!((second.cpu.quota_us, second.cpu.total_ns), (Some(1000), 2));
        let third = held.read(Look::default(), &mut buffer).unwrap();
        assert_eq!(third.cpu.quota_us, None);
        assert_eq!(held.cpu_total(&mut buffer), Some(2));
        let mut open = HeldCgroup::open(&host, "/p", Hold::Files).unwrap();
        open.read(look, &mut buffer).unwrap();
        stat("7\n", "3\n");
        let later = open.read(look, &mut buffer).unwrap();
        assert_eq!((later.cpu.quota_us, later.cpu.total_ns), (None, 3), "files that stay open");
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(held.read(look, &mut buffer), None);
    }

    #[test]
    fn a_cgroup_is_reached_through_the_one_above_and_reads_no_more_than_it_must() {
        let root = std::env::temp_dir().join(format!("rubelet-leaf-{}", std::process::id()));
        let limits = |limit: &str| {
            files(
                &root,
                &[
                    ("cpu/q/p/c/cpuacct.usage", "7\n"),
                    ("cpu/q/p/c/cgroup.procs", "5\n"),
                    ("cpu/q/p/c/blkio.throttle.io_service_bytes", "8:0 Read 10\n"),
                    ("cpu/q/p/c/memory.limit_in_bytes", limit),
                    ("cpu/q/p/c/memory.memsw.limit_in_bytes", "2000\n"),
                    ("cpu/q/p/c/memory.failcnt", "4\n"),
                ],
            );
        };
        limits("9223372036854771712\n");
        let controllers = ["cpu", "cpuacct", "memory", "blkio"];
        let mounts = controllers.map(|name| (name.to_owned(), root.join("cpu"))).into();
        let host = Cgroups::V1 { mounts };
        let level = HeldCgroup::open(&host, "/q", Hold::Files).unwrap();
        let pod = level.below("p", Hold::Files).unwrap();
        let mut leaf = pod.leaf("c", Hold::Files).unwrap();
        assert!(level.below("x", Hold::Files).is_none() && pod.leaf("x", Hold::Files).is_none());
        assert_eq!(level.children(), ["p"]);
        assert_eq!((pod.children(), leaf.children().len()), (vec!["c".to_owned()], 0));
        let mut buffer = Vec::new();
        let read = leaf.read(Look { io: false, ..Look::default() }, &mut buffer).unwrap();
        assert_eq!((read.cpu.total_ns, read.procs.as_str(), read.io.len()), (7, "5", 0));
        let memory = (read.memory.limit, read.memory.swap_limit, read.memory.fail_count);
        assert_eq!(memory, (None, None, 0), "without a limit there is none with swap");
        limits("1000\n");
        let read = leaf.read(Look::default(), &mut buffer).unwrap();
        let memory = (read.memory.limit, read.memory.swap_limit, read.memory.fail_count);
        assert_eq!((memory, read.io.len()), ((Some(1000), Some(2000), 4), 1));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(pod.leaf("c", Hold::Files).map(|_| ()), None);
    }

    #[test]
    fn the_pulse_of_a_cgroup_is_its_time_and_memory() {
        let root = std::env::temp_dir().join(format!("rubelet-pulse-{}", std::process::id()));
        let make = |cpu: &str, memory: &str| {
            files(
                &root,
                &[
                    ("p/cpu.stat", cpu),
                    ("p/memory.current", memory),
                    ("p/memory.stat", "anon 1\n"),
                    ("p/cgroup.procs", ""),
                ],
            );
        };
        make("usage_usec 3\n", "100\n");
        let host = Cgroups::V2 { root: root.clone() };
        let mut held = HeldCgroup::open(&host, "/p", Hold::Files).unwrap();
        let mut buffer = Vec::new();
        let mut pulse = || held.pulse(&mut buffer).unwrap();
        let before = pulse();
        assert_eq!(pulse(), before);
        make("usage_usec 4\n", "100\n");
        let ran = pulse();
        make("usage_usec 4\n", "99\n");
        assert!(ran != before && pulse() != ran);
        std::fs::remove_dir_all(&root).unwrap();
        let mut folders = HeldCgroup::open(&host, "/", Hold::Folders);
        assert!(folders.as_mut().is_none_or(|held| held.pulse(&mut buffer).is_none()));
    }

    #[test]
    fn a_cgroup_below_changes_the_links() {
        let root = std::env::temp_dir().join(format!("rubelet-links-{}", std::process::id()));
        files(&root, &[("p/cgroup.procs", "1\n"), ("p/a/cgroup.procs", "2\n")]);
        let held = HeldCgroup::open(&Cgroups::V2 { root: root.clone() }, "/p", Hold::Files);
        let held = held.unwrap();
        let before = held.links();
        assert_eq!(held.children(), ["a"]);
        files(&root, &[("p/b/cgroup.procs", "3\n")]);
        // Not every filesystem counts subdirectories as links, but cgroup and tmpfs do.
        assert!(held.links() > before || before == Some(1), "{before:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
