//! The files of cgroup version 1.

use super::held::{Controller, Files, Look};
use super::parse::{blkio_line, device, numbers, pair, pairs};
use super::{CgroupUsage, CpuUsage, DeviceIo, MemoryUsage};
use std::collections::BTreeMap;

/// Clock ticks per second of `cpuacct.stat`: fixed in the kernel's interface.
const TICK_NS: u64 = 10_000_000;

/// The memory usage of the cgroup and everything below it.
pub(super) const MEMORY_USAGE: &str = "memory.usage_in_bytes";

pub(super) fn cpu_total(files: &mut Files<'_>) -> Option<u64> {
    files.held_number(Controller::Cpuacct, "cpuacct.usage")
}

/// Reads the cgroup; values that are not read are taken from `last`.
pub(super) fn read(files: &mut Files<'_>, last: &CgroupUsage, look: Look) -> CgroupUsage {
    let mut usage = CgroupUsage {
        cpu: cpu(files, &last.cpu, look),
        memory: memory(files, &last.memory, look),
        io: if look.io { blkio(files, look.bfq) } else { Vec::new() },
        threads: files.held_number(Controller::Pids, "pids.current").unwrap_or(0),
        threads_max: last.threads_max,
        oom_kills: last.oom_kills,
        ..CgroupUsage::default()
    };
    if look.settings {
        usage.threads_max = files.limit(Controller::Pids, "pids.max");
    }
    if look.kills {
        let text = files.text(Controller::Memory, "memory.oom_control").unwrap_or_default();
        usage.oom_kills = pair(text, "oom_kill");
    }
    usage
}

fn cpu(files: &mut Files<'_>, last: &CpuUsage, look: Look) -> CpuUsage {
    let mut usage = last.clone();
    usage.total_ns = cpu_total(files).unwrap_or(0);
    let ticks = files.held(Controller::Cpuacct, "cpuacct.stat").unwrap_or_default();
    usage.user_ns = pair(ticks, "user").saturating_mul(TICK_NS);
    usage.system_ns = pair(ticks, "system").saturating_mul(TICK_NS);
    if look.settings {
        usage.shares = files.number(Controller::Cpu, "cpu.shares");
        usage.period_us = files.number(Controller::Cpu, "cpu.cfs_period_us");
        let quota = files.text(Controller::Cpu, "cpu.cfs_quota_us");
        usage.quota_us = quota.and_then(|q| q.parse().ok()).filter(|q: &i64| *q > 0);
    }
    // Without a quota nothing is throttled, and the counters are not reported.
    if usage.quota_us.is_some() {
        let text = files.text(Controller::Cpu, "cpu.stat").unwrap_or_default();
        for (key, value) in pairs(text) {
            match key {
                "nr_periods" => usage.periods = value,
                "nr_throttled" => usage.throttled_periods = value,
                "throttled_time" => usage.throttled_ns = value,
                "nr_bursts" => usage.burst_periods = value,
                "burst_time" => usage.burst_ns = value,
                _ => {}
            }
        }
    }
    usage
}

/// The last result, with the values updated that may change while nothing in the cgroup or below
/// runs: the kernel moves pages between its lists, and a zombie is reaped by its parent. (I/O is
/// counted when a process issues it.)
pub(super) fn glance(files: &mut Files<'_>, last: &CgroupUsage) -> CgroupUsage {
    let mut usage = last.clone();
    add_memory_stat(files, &mut usage.memory);
    usage.threads = files.held_number(Controller::Pids, "pids.current").unwrap_or(0);
    usage
}

fn add_memory_stat(files: &mut Files<'_>, usage: &mut MemoryUsage) {
    let names = [
        "pgfault",
        "pgmajfault",
        "total_rss",
        "total_cache",
        "total_mapped_file",
        "total_swap",
        "total_active_file",
        "total_inactive_file",
    ];
    let text = files.held(Controller::Memory, "memory.stat").unwrap_or_default();
    [
        usage.page_faults,
        usage.major_page_faults,
        usage.rss,
        usage.cache,
        usage.mapped_file,
        usage.swap,
        usage.active_file,
        usage.inactive_file,
    ] = numbers(text, names);
}

fn memory(files: &mut Files<'_>, last: &MemoryUsage, look: Look) -> MemoryUsage {
    let mut usage = MemoryUsage {
        limit: last.limit,
        swap_limit: last.swap_limit,
        reservation: last.reservation,
        fail_count: last.fail_count,
        ..MemoryUsage::default()
    };
    add_memory_stat(files, &mut usage);
    let mut number = |file| files.held_number(Controller::Memory, file).unwrap_or(0);
    usage.usage = number(MEMORY_USAGE);
    usage.working_set = usage.usage.saturating_sub(usage.inactive_file);
    usage.max_usage = number("memory.max_usage_in_bytes");
    usage.kernel = number("memory.kmem.usage_in_bytes");
    if look.settings {
        usage.limit = files.limit(Controller::Memory, "memory.limit_in_bytes");
        // The kernel accepts no memory+swap limit below the memory limit.
        usage.swap_limit = usage
            .limit
            .and_then(|_| files.limit(Controller::Memory, "memory.memsw.limit_in_bytes"));
        usage.reservation = files.limit(Controller::Memory, "memory.soft_limit_in_bytes");
    }
    // The limit can only be hit if there is one.
    if usage.limit.is_some() {
        usage.fail_count = files.number(Controller::Memory, "memory.failcnt").unwrap_or(0);
    }
    usage
}

const BFQ_BYTES: &str = "blkio.bfq.io_service_bytes_recursive";

/// Whether BFQ has counted any device.
pub(super) fn counts_by_bfq(files: &mut Files<'_>) -> bool {
    has_device(files.text(Controller::Blkio, BFQ_BYTES))
}

fn blkio(files: &mut Files<'_>, bfq: bool) -> Vec<DeviceIo> {
    let mut devices: BTreeMap<(u64, u64), DeviceIo> = BTreeMap::new();
    let mut read = |recursive, plain, counts: bool| {
        let counted = bfq && has_device(files.held(Controller::Blkio, recursive));
        let file = if counted { recursive } else { plain };
        let text = files.held(Controller::Blkio, file).unwrap_or_default();
        for (numbers, operation, value) in text.lines().filter_map(blkio_line) {
            let io = devices
                .entry(numbers)
                .or_insert_with(|| DeviceIo { device: numbers, ..DeviceIo::default() });
            let map = if counts { &mut io.operations } else { &mut io.bytes };
            map.insert(operation, value);
        }
        !devices.is_empty()
    };
    let any = read(BFQ_BYTES, "blkio.throttle.io_service_bytes", false);
    // Both files list the same devices.
    if any {
        read("blkio.bfq.io_serviced_recursive", "blkio.throttle.io_serviced", true);
    }
    devices.into_values().collect()
}

/// Whether any line is about a device.
fn has_device(text: Option<&str>) -> bool {
    let mut lines = text.unwrap_or_default().lines();
    lines.any(|line| device(line.split(' ').next().unwrap_or("")).is_some())
}
