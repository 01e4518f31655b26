//! Converts readings to the types of the summary.

use crate::reading::CgroupReading;
use api::stats::{
    CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, Moment, NetworkStats, ProcessStats,
    PsiData, PsiStats, SwapStats,
};
use cri::api::{self as runtime, UInt64Value};
use sys::stats::{FolderUsage, FsUsage, InterfaceUsage, Pressure, PressureLine};

fn psi_line(line: PressureLine) -> PsiData {
    PsiData { total: line.total_us, avg10: line.avg10, avg60: line.avg60, avg300: line.avg300 }
}

fn psi(pressure: Pressure) -> Option<PsiStats> {
    Some(PsiStats { full: psi_line(pressure.full), some: psi_line(pressure.some) })
}

/// The four parts from a cgroup.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    pub(crate) cpu: Option<CpuStats>,
    pub(crate) memory: Option<MemoryStats>,
    pub(crate) io: Option<IoStats>,
    pub(crate) swap: Option<SwapStats>,
}

/// From a cgroup's files.
pub(crate) fn from_cgroup(cgroup: &CgroupReading, time: Moment) -> Parts {
    let usage = &cgroup.usage;
    let memory = &usage.memory;
    Parts {
        cpu: Some(CpuStats {
            time,
            usage_nano_cores: Some(cgroup.nano_cores),
            usage_core_nano_seconds: Some(usage.cpu.total_ns),
            psi: psi(usage.pressure.cpu),
        }),
        memory: Some(MemoryStats {
            time,
            available_bytes: memory.limit.map(|l| l.saturating_sub(memory.working_set)),
            usage_bytes: Some(memory.usage),
            working_set_bytes: Some(memory.working_set),
            rss_bytes: Some(memory.rss),
            page_faults: Some(memory.page_faults),
            major_page_faults: Some(memory.major_page_faults),
            psi: psi(usage.pressure.memory),
        }),
        io: Some(IoStats { time, psi: psi(usage.pressure.io) }),
        swap: Some(SwapStats {
            time,
            swap_available_bytes: memory.swap_limit.map(|l| l.saturating_sub(memory.swap)),
            swap_usage_bytes: Some(memory.swap),
        }),
    }
}

fn number(value: Option<&UInt64Value>) -> Option<u64> {
    value.map(|v| v.value)
}

fn runtime_psi(psi: Option<&runtime::PsiStats>) -> Option<PsiStats> {
    let line = |data: Option<&runtime::PsiData>| {
        data.map_or_else(PsiData::default, |d| PsiData {
            total: d.total,
            avg10: d.avg10,
            avg60: d.avg60,
            avg300: d.avg300,
        })
    };
    psi.map(|p| PsiStats { full: line(p.full.as_ref()), some: line(p.some.as_ref()) })
}

/// How a value that the runtime omits is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is omitted here too.
    Absent,
    /// It is zero.
    Zero,
}

impl Missing {
    fn number(self, value: Option<&UInt64Value>) -> Option<u64> {
        number(value).or(match self {
            Missing::Absent => None,
            Missing::Zero => Some(0),
        })
    }
}

/// From the runtime's stats; the main values of a part that are missing are zero.
pub(crate) fn from_runtime(
    stats: &runtime::ContainerStats,
    now: Moment,
    missing: Missing,
) -> Parts {
    let cpu = stats.cpu.as_ref().map_or_else(
        || CpuStats {
            time: now,
            usage_nano_cores: Some(0),
            usage_core_nano_seconds: Some(0),
            psi: None,
        },
        |cpu| cri_cpu(cpu, missing),
    );
    let memory = stats.memory.as_ref().map_or_else(
        || MemoryStats {
            time: now,
            available_bytes: missing.number(None),
            usage_bytes: Some(0),
            working_set_bytes: Some(0),
            rss_bytes: Some(0),
            page_faults: missing.number(None),
            major_page_faults: missing.number(None),
            psi: None,
        },
        |memory| cri_memory(memory, missing),
    );
    let swap = stats.swap.as_ref().map_or_else(
        || SwapStats { time: now, swap_available_bytes: Some(0), swap_usage_bytes: Some(0) },
        |swap| SwapStats {
            time: Moment::from_nanos(swap.timestamp),
            swap_available_bytes: missing.number(swap.swap_available_bytes.as_ref()),
            swap_usage_bytes: missing.number(swap.swap_usage_bytes.as_ref()),
        },
    );
    let io = stats.io.as_ref().map_or_else(|| IoStats { time: now, psi: None }, cri_io);
    Parts { cpu: Some(cpu), memory: Some(memory), io: Some(io), swap: Some(swap) }
}

/// CPU use; the current rate is never made up.
fn cri_cpu(cpu: &runtime::CpuUsage, missing: Missing) -> CpuStats {
    CpuStats {
        time: Moment::from_nanos(cpu.timestamp),
        usage_nano_cores: number(cpu.usage_nano_cores.as_ref()),
        usage_core_nano_seconds: missing.number(cpu.usage_core_nano_seconds.as_ref()),
        psi: runtime_psi(cpu.psi.as_ref()),
    }
}

fn cri_memory(memory: &runtime::MemoryUsage, missing: Missing) -> MemoryStats {
    MemoryStats {
        time: Moment::from_nanos(memory.timestamp),
        available_bytes: missing.number(memory.available_bytes.as_ref()),
        usage_bytes: missing.number(memory.usage_bytes.as_ref()),
        working_set_bytes: missing.number(memory.working_set_bytes.as_ref()),
        rss_bytes: missing.number(memory.rss_bytes.as_ref()),
        page_faults: missing.number(memory.page_faults.as_ref()),
        major_page_faults: missing.number(memory.major_page_faults.as_ref()),
        psi: runtime_psi(memory.psi.as_ref()),
    }
}

fn cri_io(io: &runtime::IoUsage) -> IoStats {
    IoStats { time: Moment::from_nanos(io.timestamp), psi: runtime_psi(io.psi.as_ref()) }
}

/// A pod from the runtime's stats. They have no swap of a pod: it is the sum of the containers',
/// where only CPU and memory are requested.
pub(crate) fn from_sandbox(
    cri_stats: &runtime::LinuxPodSandboxStats,
    containers: &[Parts],
    missing: Missing,
) -> Parts {
    let mut swap: Option<SwapStats> = None;
    for part in
        containers.iter().filter(|_| missing == Missing::Zero).filter_map(|p| p.swap.as_ref())
    {
        let sum = swap.get_or_insert_default();
        let add = |total: Option<u64>, more: Option<u64>| {
            Some(total.unwrap_or(0).saturating_add(more.unwrap_or(0)))
        };
        sum.time = part.time;
        sum.swap_available_bytes = add(sum.swap_available_bytes, part.swap_available_bytes);
        sum.swap_usage_bytes = add(sum.swap_usage_bytes, part.swap_usage_bytes);
    }
    Parts {
        cpu: cri_stats.cpu.as_ref().map(|cpu| cri_cpu(cpu, Missing::Absent)),
        memory: cri_stats.memory.as_ref().map(|memory| cri_memory(memory, Missing::Absent)),
        io: cri_stats.io.as_ref().map(cri_io),
        swap,
    }
}

/// A pod's interfaces from the runtime's stats.
pub(crate) fn cri_network(cri_stats: &runtime::LinuxPodSandboxStats) -> Option<NetworkStats> {
    let interface = |i: &runtime::NetworkInterfaceUsage| InterfaceStats {
        name: i.name.clone(),
        rx_bytes: number(i.rx_bytes.as_ref()),
        rx_errors: number(i.rx_errors.as_ref()),
        tx_bytes: number(i.tx_bytes.as_ref()),
        tx_errors: number(i.tx_errors.as_ref()),
    };
    cri_stats.network.as_ref().map(|network| NetworkStats {
        time: Moment::from_nanos(network.timestamp),
        default_interface: network.default_interface.as_ref().map(interface).unwrap_or_default(),
        interfaces: network.interfaces.iter().map(interface).collect(),
    })
}

/// A pod's number of processes from the runtime's stats.
pub(crate) fn cri_processes(cri_stats: &runtime::LinuxPodSandboxStats) -> Option<ProcessStats> {
    let processes = cri_stats.process.as_ref()?;
    Some(ProcessStats { process_count: number(processes.process_count.as_ref()) })
}

/// The usage of a pod without a readable cgroup: the sum of its containers.
pub(crate) fn sum(parts: &[Parts], time: Moment) -> Parts {
    fn add(total: &mut Option<u64>, value: Option<u64>) {
        if let Some(value) = value {
            *total = Some(total.unwrap_or(0).saturating_add(value));
        }
    }
    let mut cpu = CpuStats { time, ..CpuStats::default() };
    let mut memory = MemoryStats { time, ..MemoryStats::default() };
    let mut swap = SwapStats { time, ..SwapStats::default() };
    for part in parts {
        if let Some(part) = &part.cpu {
            add(&mut cpu.usage_nano_cores, part.usage_nano_cores);
            add(&mut cpu.usage_core_nano_seconds, part.usage_core_nano_seconds);
        }
        if let Some(part) = &part.memory {
            add(&mut memory.available_bytes, part.available_bytes);
            add(&mut memory.usage_bytes, part.usage_bytes);
            add(&mut memory.working_set_bytes, part.working_set_bytes);
            add(&mut memory.rss_bytes, part.rss_bytes);
            add(&mut memory.page_faults, part.page_faults);
            add(&mut memory.major_page_faults, part.major_page_faults);
        }
        if let Some(part) = &part.swap {
            add(&mut swap.swap_available_bytes, part.swap_available_bytes);
            add(&mut swap.swap_usage_bytes, part.swap_usage_bytes);
        }
    }
    let io = IoStats { time, psi: None };
    Parts { cpu: Some(cpu), memory: Some(memory), io: Some(io), swap: Some(swap) }
}

/// Interfaces; the first fields are those of `eth0`.
pub(crate) fn network(interfaces: &[InterfaceUsage], time: Moment) -> Option<NetworkStats> {
    let all: Vec<InterfaceStats> = interfaces
        .iter()
        .map(|i| InterfaceStats {
            name: i.name.clone(),
            rx_bytes: Some(i.rx_bytes),
            rx_errors: Some(i.rx_errors),
            tx_bytes: Some(i.tx_bytes),
            tx_errors: Some(i.tx_errors),
        })
        .collect();
    if all.is_empty() {
        return None;
    }
    let default_interface = all.iter().find(|i| i.name == "eth0").cloned().unwrap_or_default();
    Some(NetworkStats { time, default_interface, interfaces: all })
}

/// A complete filesystem.
pub(crate) fn filesystem(usage: &FsUsage, time: Moment) -> FsStats {
    FsStats {
        used_bytes: Some(usage.used),
        inodes_used: Some(usage.inodes_used),
        ..part_of(usage, time)
    }
}

/// A filesystem without its usage.
pub(crate) fn part_of(usage: &FsUsage, time: Moment) -> FsStats {
    FsStats {
        time,
        available_bytes: Some(usage.available),
        capacity_bytes: Some(usage.capacity),
        inodes_free: Some(usage.inodes_free),
        inodes: Some(usage.inodes),
        used_bytes: None,
        inodes_used: None,
    }
}

/// Files on a filesystem; without files, usage is omitted.
pub(crate) fn files(files: &FolderUsage, on: &FsUsage, time: Moment) -> FsStats {
    let any = files.inodes > 0;
    FsStats {
        used_bytes: any.then_some(files.bytes),
        inodes_used: any.then_some(files.inodes),
        ..part_of(on, time)
    }
}
