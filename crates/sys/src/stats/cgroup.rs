//! Usage of one cgroup, version 1 or 2 (cadvisor: `libcontainer.Handler.GetStats`).

use crate::cgroup::Cgroups;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Limits at or above this mean "none".
const UNLIMITED: u64 = 1 << 62;

/// CPU time and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Time used since the cgroup was made, in nanoseconds.
    pub total_ns: u64,
    /// Of it in user space.
    pub user_ns: u64,
    /// Of it in the kernel.
    pub system_ns: u64,
    /// CFS periods that passed.
    pub periods: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
    /// Time throttled, in nanoseconds.
    pub throttled_ns: u64,
    /// Periods in which it used saved-up time.
    pub burst_periods: u64,
    /// Saved-up time used, in nanoseconds.
    pub burst_ns: u64,
    /// Shares on the version 1 scale.
    pub shares: Option<u64>,
    /// Quota in microseconds; absent without one.
    pub quota_us: Option<i64>,
    /// Period in microseconds.
    pub period_us: Option<u64>,
}

/// Memory in bytes.
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
    /// Protected amount.
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

/// Everything about one cgroup at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CgroupUsage {
    /// When it was made, seconds since the epoch.
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
    /// Threads below it.
    pub threads: u64,
    /// Thread limit; absent if there is none.
    pub threads_max: Option<u64>,
}

/// Reads a cgroup; `None` if it is not there.
pub fn cgroup_usage(host: &Cgroups, path: &str) -> Option<CgroupUsage> {
    let source = Source { host, path };
    let dir = host.dir(if host.is_v2() { "" } else { "cpuacct" }, path)?;
    let created = created(&dir, host.is_v2())?;
    let mut usage = if host.is_v2() { read_v2(&source) } else { read_v1(&source) };
    usage.created = created;
    Some(usage)
}

struct Source<'a> {
    host: &'a Cgroups,
    path: &'a str,
}

impl Source<'_> {
    fn text(&self, controller: &str, file: &str) -> Option<String> {
        self.host.read(controller, self.path, file).ok()
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.parse().ok()
    }

    fn limit(&self, controller: &str, file: &str) -> Option<u64> {
        self.number(controller, file).filter(|n| *n < UNLIMITED)
    }

    fn pairs(&self, controller: &str, file: &str) -> BTreeMap<String, u64> {
        let text = self.text(controller, file).unwrap_or_default();
        text.lines()
            .filter_map(|line| {
                let (key, value) = line.split_once(' ')?;
                Some((key.to_owned(), value.trim().parse().ok()?))
            })
            .collect()
    }

    fn lines(&self, controller: &str, file: &str) -> u64 {
        let text = self.text(controller, file).unwrap_or_default();
        u64::try_from(text.lines().count()).unwrap_or(u64::MAX)
    }

    fn pressure(&self, file: &str) -> Pressure {
        parse_pressure(&self.text("", file).unwrap_or_default())
    }
}

fn created(dir: &Path, v2: bool) -> Option<i64> {
    let own = std::fs::metadata(dir).ok()?.mtime();
    let file = if v2 { "cgroup.events" } else { "cgroup.clone_children" };
    let marker = std::fs::metadata(dir.join(file)).map(|m| m.mtime()).unwrap_or(own);
    Some(own.min(marker))
}

fn get(map: &BTreeMap<String, u64>, key: &str) -> u64 {
    map.get(key).copied().unwrap_or(0)
}

fn read_v2(source: &Source<'_>) -> CgroupUsage {
    let cpu = source.pairs("", "cpu.stat");
    let stat = source.pairs("", "memory.stat");
    let root = source.path.trim_matches('/').is_empty();
    let (cache, rss) = (get(&stat, "file"), get(&stat, "anon"));
    let usage = if root { cache + rss } else { source.number("", "memory.current").unwrap_or(0) };
    let inactive = get(&stat, "inactive_file");
    let max = source.text("", "cpu.max").unwrap_or_default();
    let mut quota = max.split_whitespace();
    let weight = source.number("", "cpu.weight");
    let micros = |key: &str| get(&cpu, key).saturating_mul(1000);
    CgroupUsage {
        cpu: CpuUsage {
            total_ns: micros("usage_usec"),
            user_ns: micros("user_usec"),
            system_ns: micros("system_usec"),
            periods: get(&cpu, "nr_periods"),
            throttled_periods: get(&cpu, "nr_throttled"),
            throttled_ns: micros("throttled_usec"),
            burst_periods: get(&cpu, "nr_bursts"),
            burst_ns: micros("burst_usec"),
            shares: weight.map(|w| 2 + w.saturating_sub(1) * 262_142 / 9_999),
            quota_us: quota.next().and_then(|q| q.parse().ok()),
            period_us: quota.next().and_then(|p| p.parse().ok()),
        },
        memory: MemoryUsage {
            usage,
            working_set: usage.saturating_sub(inactive),
            rss,
            cache,
            mapped_file: get(&stat, "file_mapped"),
            swap: source.number("", "memory.swap.current").unwrap_or(0),
            max_usage: source.number("", "memory.peak").unwrap_or(0),
            fail_count: 0,
            kernel: 0,
            page_faults: get(&stat, "pgfault"),
            major_page_faults: get(&stat, "pgmajfault"),
            active_file: get(&stat, "active_file"),
            inactive_file: inactive,
            limit: source.limit("", "memory.max"),
            swap_limit: source.limit("", "memory.swap.max"),
            reservation: source.limit("", "memory.min"),
        },
        io: parse_io_stat(&source.text("", "io.stat").unwrap_or_default()),
        pressure: PressureSet {
            cpu: source.pressure("cpu.pressure"),
            memory: source.pressure("memory.pressure"),
            io: source.pressure("io.pressure"),
        },
        processes: source.lines("", "cgroup.procs"),
        threads: source.number("", "pids.current").unwrap_or(0),
        threads_max: source.limit("", "pids.max"),
        created: 0,
    }
}

fn read_v1(source: &Source<'_>) -> CgroupUsage {
    /// Clock ticks per second of `cpuacct.stat`: fixed in the kernel's interface.
    const TICK_NS: u64 = 10_000_000;
    let stat = source.pairs("memory", "memory.stat");
    let ticks = source.pairs("cpuacct", "cpuacct.stat");
    let throttling = source.pairs("cpu", "cpu.stat");
    let usage = source.number("memory", "memory.usage_in_bytes").unwrap_or(0);
    let inactive = get(&stat, "total_inactive_file");
    let quota: Option<i64> =
        source.text("cpu", "cpu.cfs_quota_us").and_then(|q| q.parse().ok()).filter(|q| *q > 0);
    CgroupUsage {
        cpu: CpuUsage {
            total_ns: source.number("cpuacct", "cpuacct.usage").unwrap_or(0),
            user_ns: get(&ticks, "user").saturating_mul(TICK_NS),
            system_ns: get(&ticks, "system").saturating_mul(TICK_NS),
            periods: get(&throttling, "nr_periods"),
            throttled_periods: get(&throttling, "nr_throttled"),
            throttled_ns: get(&throttling, "throttled_time"),
            burst_periods: get(&throttling, "nr_bursts"),
            burst_ns: get(&throttling, "burst_time"),
            shares: source.number("cpu", "cpu.shares"),
            quota_us: quota,
            period_us: source.number("cpu", "cpu.cfs_period_us"),
        },
        memory: MemoryUsage {
            usage,
            working_set: usage.saturating_sub(inactive),
            rss: get(&stat, "total_rss"),
            cache: get(&stat, "total_cache"),
            mapped_file: get(&stat, "total_mapped_file"),
            swap: get(&stat, "total_swap"),
            max_usage: source.number("memory", "memory.max_usage_in_bytes").unwrap_or(0),
            fail_count: source.number("memory", "memory.failcnt").unwrap_or(0),
            kernel: source.number("memory", "memory.kmem.usage_in_bytes").unwrap_or(0),
            page_faults: get(&stat, "pgfault"),
            major_page_faults: get(&stat, "pgmajfault"),
            active_file: get(&stat, "total_active_file"),
            inactive_file: inactive,
            limit: source.limit("memory", "memory.limit_in_bytes"),
            swap_limit: source.limit("memory", "memory.memsw.limit_in_bytes"),
            reservation: source.limit("memory", "memory.soft_limit_in_bytes"),
        },
        io: read_blkio(source),
        pressure: PressureSet::default(),
        processes: source.lines("pids", "cgroup.procs"),
        threads: source.number("pids", "pids.current").unwrap_or(0),
        threads_max: source.limit("pids", "pids.max"),
        created: 0,
    }
}

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`
fn parse_io_stat(text: &str) -> Vec<DeviceIo> {
    let mut devices = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let Some(numbers) = fields.next().and_then(device) else { continue };
        let mut io = DeviceIo { device: numbers, ..DeviceIo::default() };
        for field in fields {
            let Some((key, value)) = field.split_once('=') else { continue };
            let Ok(value) = value.parse() else { continue };
            match key {
                "rbytes" => io.bytes.insert("Read", value),
                "wbytes" => io.bytes.insert("Write", value),
                "rios" => io.operations.insert("Read", value),
                "wios" => io.operations.insert("Write", value),
                _ => None,
            };
        }
        devices.push(io);
    }
    devices
}

fn read_blkio(source: &Source<'_>) -> Vec<DeviceIo> {
    let mut devices: BTreeMap<(u64, u64), DeviceIo> = BTreeMap::new();
    let mut read = |recursive: &str, plain: &str, counts: bool| {
        let text = source
            .text("blkio", recursive)
            .filter(|t| t.lines().any(|l| device(l.split(' ').next().unwrap_or("")).is_some()))
            .or_else(|| source.text("blkio", plain))
            .unwrap_or_default();
        for (numbers, operation, value) in text.lines().filter_map(blkio_line) {
            let io = devices
                .entry(numbers)
                .or_insert_with(|| DeviceIo { device: numbers, ..DeviceIo::default() });
            let map = if counts { &mut io.operations } else { &mut io.bytes };
            map.insert(operation, value);
        }
    };
    read("blkio.bfq.io_service_bytes_recursive", "blkio.throttle.io_service_bytes", false);
    read("blkio.bfq.io_serviced_recursive", "blkio.throttle.io_serviced", true);
    devices.into_values().collect()
}

/// `8:0 Read 1234`
fn blkio_line(line: &str) -> Option<((u64, u64), &'static str, u64)> {
    const OPERATIONS: [&str; 6] = ["Read", "Write", "Sync", "Async", "Discard", "Total"];
    let mut fields = line.split_whitespace();
    let numbers = device(fields.next()?)?;
    let word = fields.next()?;
    let operation = OPERATIONS.iter().find(|o| **o == word)?;
    Some((numbers, operation, fields.next()?.parse().ok()?))
}

fn parse_pressure(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let target = match fields.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for field in fields {
            let Some((key, value)) = field.split_once('=') else { continue };
            match key {
                "avg10" => target.avg10 = value.parse().unwrap_or(0.0),
                "avg60" => target.avg60 = value.parse().unwrap_or(0.0),
                "avg300" => target.avg300 = value.parse().unwrap_or(0.0),
                "total" => target.total_us = value.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
    pressure
}

#[cfg(test)]
mod tests {
    use super::*;

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
                ("pids/p/cgroup.procs", "9\n"),
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
        assert_eq!(usage.processes, 1);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
