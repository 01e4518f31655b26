//! The files of cgroup version 2.

use super::held::{Controller, Files, Look};
use super::parse::{io_stat, numbers, pair, pairs, pressure};
use super::{CgroupUsage, CpuUsage, DeviceIo, MemoryUsage, Pressure, PressureSet};

/// All controllers' files are in the one directory.
const ANY: Controller = Controller::Cpuacct;

/// The memory usage of the cgroup and everything below it.
pub(super) const MEMORY_USAGE: &str = "memory.current";

pub(super) fn cpu_total(files: &mut Files<'_>) -> Option<u64> {
    Some(pair(files.held(ANY, "cpu.stat")?, "usage_usec").saturating_mul(1000))
}

/// Reads the cgroup; values that are not read are taken from `last`.
pub(super) fn read(
    files: &mut Files<'_>,
    last: &CgroupUsage,
    look: Look,
    is_root: bool,
) -> CgroupUsage {
    let pressure = pressures(files);
    let mut usage = CgroupUsage {
        cpu: cpu(files, &last.cpu, look),
        memory: memory(files, &last.memory, look, is_root),
        io: if look.io { io(files) } else { Vec::new() },
        pressure,
        threads: files.held_number(ANY, "pids.current").unwrap_or(0),
        threads_max: last.threads_max,
        oom_kills: last.oom_kills,
        ..CgroupUsage::default()
    };
    if look.settings {
        usage.threads_max = files.limit(ANY, "pids.max");
    }
    if look.kills {
        usage.oom_kills = pair(files.text(ANY, "memory.events").unwrap_or_default(), "oom_kill");
    }
    usage
}

/// The last result, with the values updated that may change while nothing in the cgroup or below
/// runs: the kernel moves pages between its lists and writes them back, averages decrease, and a
/// zombie is reaped by its parent.
pub(super) fn glance(files: &mut Files<'_>, last: &CgroupUsage) -> CgroupUsage {
    let mut usage = last.clone();
    add_memory_stat(files, &mut usage.memory);
    usage.io = io(files);
    usage.pressure = pressures(files);
    usage.threads = files.held_number(ANY, "pids.current").unwrap_or(0);
    usage
}

fn io(files: &mut Files<'_>) -> Vec<DeviceIo> {
    io_stat(files.held(ANY, "io.stat").unwrap_or_default())
}

fn pressures(files: &mut Files<'_>) -> PressureSet {
    let mut stalls = |file| -> Pressure { files.held(ANY, file).map(pressure).unwrap_or_default() };
    PressureSet {
        cpu: stalls("cpu.pressure"),
        memory: stalls("memory.pressure"),
        io: stalls("io.pressure"),
    }
}

fn cpu(files: &mut Files<'_>, last: &CpuUsage, look: Look) -> CpuUsage {
    let mut usage = CpuUsage {
        shares: last.shares,
        quota_us: last.quota_us,
        period_us: last.period_us,
        ..CpuUsage::default()
    };
    for (key, value) in pairs(files.held(ANY, "cpu.stat").unwrap_or_default()) {
        let nanos = value.saturating_mul(1000);
        match key {
            "usage_usec" => usage.total_ns = nanos,
            "user_usec" => usage.user_ns = nanos,
            "system_usec" => usage.system_ns = nanos,
            "nr_periods" => usage.periods = value,
            "nr_throttled" => usage.throttled_periods = value,
            "throttled_usec" => usage.throttled_ns = nanos,
            "nr_bursts" => usage.burst_periods = value,
            "burst_usec" => usage.burst_ns = nanos,
            _ => {}
        }
    }
    if look.settings {
        let weight = files.number(ANY, "cpu.weight");
        usage.shares = weight.map(|w| 2 + w.saturating_sub(1) * 262_142 / 9_999);
        let mut quota = files.text(ANY, "cpu.max").unwrap_or_default().split_whitespace();
        usage.quota_us = quota.next().and_then(|q| q.parse().ok());
        usage.period_us = quota.next().and_then(|p| p.parse().ok());
    }
    usage
}

fn add_memory_stat(files: &mut Files<'_>, usage: &mut MemoryUsage) {
    let names =
        ["anon", "file", "file_mapped", "pgfault", "pgmajfault", "active_file", "inactive_file"];
    [
        usage.rss,
        usage.cache,
        usage.mapped_file,
        usage.page_faults,
        usage.major_page_faults,
        usage.active_file,
        usage.inactive_file,
    ] = numbers(files.held(ANY, "memory.stat").unwrap_or_default(), names);
}

fn memory(files: &mut Files<'_>, last: &MemoryUsage, look: Look, is_root: bool) -> MemoryUsage {
    let mut usage = MemoryUsage {
        limit: last.limit,
        swap_limit: last.swap_limit,
        reservation: last.reservation,
        ..MemoryUsage::default()
    };
    add_memory_stat(files, &mut usage);
    // The real root has no counters of its own; the root that a node inside a container sees has.
    let of_root = usage.cache.saturating_add(usage.rss);
    let current = files.held_number(ANY, MEMORY_USAGE);
    usage.usage = current.unwrap_or(if is_root { of_root } else { 0 });
    let mut number = |file| files.held_number(ANY, file).unwrap_or(0);
    usage.working_set = usage.usage.saturating_sub(usage.inactive_file);
    usage.swap = number("memory.swap.current");
    usage.max_usage = number("memory.peak");
    if look.settings {
        usage.limit = files.limit(ANY, "memory.max");
        usage.swap_limit = files.limit(ANY, "memory.swap.max");
        usage.reservation = files.limit(ANY, "memory.min");
    }
    usage
}
