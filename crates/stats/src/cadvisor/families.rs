//! The families of the response: names, help texts and the source of their values.

use crate::reading::CgroupReading;
use sys::stats::{CpuUsage, InterfaceUsage, MemoryUsage, PressureSet};
use telemetry::metrics::{Desc, Kind};

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

pub(super) fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}

fn micros(micros: u64) -> f64 {
    float(micros) / 1e6
}

const fn d(name: &'static str, help: &'static str) -> Desc {
    Desc::unstated(name, help)
}

type Plain = (Desc, Kind, fn(&CgroupReading) -> f64);

/// One value per cgroup.
pub(super) static PLAIN: [Plain; 17] = [
    (
        d("container_health_state", "The result of the container's health check"),
        Kind::Gauge,
        |_| -1.0,
    ),
    (
        d("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds."),
        Kind::Counter,
        |c| seconds(c.usage.cpu.user_ns),
    ),
    (
        d("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds."),
        Kind::Counter,
        |c| seconds(c.usage.cpu.system_ns),
    ),
    (
        d(
            "container_cpu_load_average_10s",
            "Value of container cpu load average over the last 10 seconds.",
        ),
        Kind::Gauge,
        |_| 0.0,
    ),
    (
        d(
            "container_cpu_load_d_average_10s",
            "Value of container cpu load.d average over the last 10 seconds.",
        ),
        Kind::Gauge,
        |_| 0.0,
    ),
    (d("container_memory_cache", "Number of bytes of page cache memory."), Kind::Gauge, |c| {
        float(c.usage.memory.cache)
    }),
    (d("container_memory_rss", "Size of RSS in bytes."), Kind::Gauge, |c| {
        float(c.usage.memory.rss)
    }),
    (
        d("container_memory_kernel_usage", "Size of kernel memory allocated in bytes."),
        Kind::Gauge,
        |c| float(c.usage.memory.kernel),
    ),
    (
        d("container_memory_mapped_file", "Size of memory mapped files in bytes."),
        Kind::Gauge,
        |c| float(c.usage.memory.mapped_file),
    ),
    (d("container_memory_swap", "Container swap usage in bytes."), Kind::Gauge, |c| {
        float(c.usage.memory.swap)
    }),
    (d("container_memory_failcnt", "Number of memory usage hits limits"), Kind::Counter, |c| {
        float(c.usage.memory.fail_count)
    }),
    (
        d(
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
        ),
        Kind::Gauge,
        |c| float(c.usage.memory.usage),
    ),
    (
        d("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes"),
        Kind::Gauge,
        |c| float(c.usage.memory.max_usage),
    ),
    (d("container_memory_working_set_bytes", "Current working set in bytes."), Kind::Gauge, |c| {
        float(c.usage.memory.working_set)
    }),
    (
        d("container_memory_total_active_file_bytes", "Current total active file in bytes."),
        Kind::Gauge,
        |c| float(c.usage.memory.active_file),
    ),
    (
        d("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes."),
        Kind::Gauge,
        |c| float(c.usage.memory.inactive_file),
    ),
    (
        d("container_oom_events_total", "Count of out of memory events observed for the container"),
        Kind::Counter,
        |c| float(c.usage.oom_kills),
    ),
];

pub(super) static LAST_SEEN: Desc =
    d("container_last_seen", "Last time a container was seen by the exporter");
pub(super) static CPU_USAGE: Desc =
    d("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");
pub(super) static MEMORY_FAILURES: Desc =
    d("container_memory_failures_total", "Cumulative count of memory allocation failures.");
pub(super) static TASKS_STATE: Desc = d("container_tasks_state", "Number of tasks in given state");
pub(super) static ULIMITS: Desc = d(
    "container_ulimits_soft",
    "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
);
pub(super) static BLKIO: Desc = d("container_blkio_device_usage_total", "Blkio Device bytes usage");
pub(super) static START: Desc =
    d("container_start_time_seconds", "Start time of the container since unix epoch in seconds.");
pub(super) static SCRAPE_ERROR: Desc = d(
    "container_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);

type Cpu = (Desc, fn(&CpuUsage) -> f64);

/// Only with a quota.
pub(super) static CFS: [Cpu; 5] = [
    (
        d("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals."),
        |c| float(c.periods),
    ),
    (
        d("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals."),
        |c| float(c.throttled_periods),
    ),
    (
        d(
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
        ),
        |c| seconds(c.throttled_ns),
    ),
    (d("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs."), |c| {
        float(c.burst_periods)
    }),
    (
        d(
            "container_cpu_cfs_burst_seconds_total",
            "Total time duration the container has been bursted.",
        ),
        |c| seconds(c.burst_ns),
    ),
];

type SpecCpu = (Desc, fn(&CpuUsage) -> Option<f64>);

/// CPU settings.
pub(super) static SPEC_CPU: [SpecCpu; 3] = [
    (d("container_spec_cpu_period", "CPU period of the container."), |c| {
        Some(float(c.period_us.unwrap_or(0)))
    }),
    (d("container_spec_cpu_quota", "CPU quota of the container."), |c| {
        c.quota_us.map(|q| float(u64::try_from(q).unwrap_or(0)))
    }),
    (d("container_spec_cpu_shares", "CPU share of the container."), |c| {
        Some(float(c.shares.unwrap_or(0)))
    }),
];

type Limit = (Desc, fn(&MemoryUsage) -> Option<u64>);

/// Memory limits; 0 is none.
pub(super) static LIMITS: [Limit; 3] = [
    (d("container_spec_memory_limit_bytes", "Memory limit for the container."), |m| m.limit),
    (d("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container."), |m| {
        m.swap_limit
    }),
    (
        d(
            "container_spec_memory_reservation_limit_bytes",
            "Memory reservation limit for the container.",
        ),
        |m| m.reservation,
    ),
];

/// In the order in which their values are given.
pub(super) static PROCESS: [Desc; 5] = [
    d("container_processes", "Number of processes running inside the container."),
    d("container_file_descriptors", "Number of open file descriptors for the container."),
    d("container_sockets", "Number of open sockets for the container."),
    d(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
    ),
    d("container_threads", "Number of threads running inside the container"),
];

type Network = (Desc, fn(&InterfaceUsage) -> f64);

/// Per interface.
pub(super) static NETWORK: [Network; 8] = [
    (d("container_network_receive_bytes_total", "Cumulative count of bytes received"), |i| {
        float(i.rx_bytes)
    }),
    (d("container_network_receive_packets_total", "Cumulative count of packets received"), |i| {
        float(i.rx_packets)
    }),
    (
        d(
            "container_network_receive_packets_dropped_total",
            "Cumulative count of packets dropped while receiving",
        ),
        |i| float(i.rx_dropped),
    ),
    (
        d(
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
        ),
        |i| float(i.rx_errors),
    ),
    (d("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted"), |i| {
        float(i.tx_bytes)
    }),
    (
        d("container_network_transmit_packets_total", "Cumulative count of packets transmitted"),
        |i| float(i.tx_packets),
    ),
    (
        d(
            "container_network_transmit_packets_dropped_total",
            "Cumulative count of packets dropped while transmitting",
        ),
        |i| float(i.tx_dropped),
    ),
    (
        d(
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
        ),
        |i| float(i.tx_errors),
    ),
];

type Stall = (Desc, fn(&PressureSet) -> f64);

/// Where the kernel supports PSI.
pub(super) static PRESSURE: [Stall; 6] = [
    (
        d(
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
        ),
        |p| micros(p.cpu.full.total_us),
    ),
    (
        d(
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
        ),
        |p| micros(p.cpu.some.total_us),
    ),
    (
        d(
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
        ),
        |p| micros(p.memory.full.total_us),
    ),
    (
        d(
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
        ),
        |p| micros(p.memory.some.total_us),
    ),
    (
        d(
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
        ),
        |p| micros(p.io.full.total_us),
    ),
    (
        d(
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
        ),
        |p| micros(p.io.some.total_us),
    ),
];
