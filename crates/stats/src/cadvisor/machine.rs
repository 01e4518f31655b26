//! Metrics of the machine.

use super::families::float;
use crate::task::StatsConfig;
use std::collections::BTreeSet;
use telemetry::metrics::{Desc, Kind, Scrape};

const LABELS: [&str; 3] = ["boot_id", "machine_id", "system_uuid"];

const VERSION: Desc = Desc::unstated(
    "cadvisor_version_info",
    "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
);
const CORES: Desc = Desc::unstated("machine_cpu_cores", "Number of logical CPU cores.");
const PHYSICAL: Desc =
    Desc::unstated("machine_cpu_physical_cores", "Number of physical CPU cores.");
const SOCKETS: Desc = Desc::unstated("machine_cpu_sockets", "Number of CPU sockets.");
const BOOKS: Desc = Desc::unstated("machine_cpu_books", "Number of CPU books.");
const DRAWERS: Desc = Desc::unstated("machine_cpu_drawers", "Number of CPU drawers.");
const MEMORY: Desc =
    Desc::unstated("machine_memory_bytes", "Amount of memory installed on the machine.");
const SWAP: Desc =
    Desc::unstated("machine_swap_bytes", "Amount of swap memory available on the machine.");
const NVM: Desc = Desc::unstated(
    "machine_nvm_capacity",
    "NVM capacity value labeled by NVM mode (memory mode or app direct mode).",
);
const NVM_POWER: Desc = Desc::unstated("machine_nvm_avg_power_budget_watts", "NVM power budget.");
const ERROR: Desc = Desc::unstated(
    "machine_scrape_error",
    "1 if there was an error while getting machine metrics, 0 otherwise.",
);

/// Adds the version metric; upstream reports it with the containers, not with the machine.
pub(super) fn fill_versions(scrape: &mut Scrape, config: &StatsConfig) {
    let (kernel, os) = (&config.versions.0, &config.versions.1);
    scrape.family(&VERSION, Kind::Gauge).push_values(
        &["kernelVersion", "osVersion", "dockerVersion", "cadvisorVersion", "cadvisorRevision"],
        &[kernel, os, "", "", ""],
        1.0.into(),
        None,
    );
}

/// Adds the machine's families.
pub(super) fn fill(scrape: &mut Scrape, config: &StatsConfig) {
    let machine = &config.machine;
    let cpuinfo = sys::fs::read_to_string(config.roots.proc.join("cpuinfo")).unwrap_or_default();
    let (sockets, physical) = topology(&cpuinfo, machine.cores);
    let unique = |file: &str| {
        let cpus = (0..machine.cores).map(|cpu| {
            config.roots.sys.join(format!("devices/system/cpu/cpu{cpu}/topology/{file}"))
        });
        let values: BTreeSet<String> =
            cpus.filter_map(|path| sys::fs::read_to_string(path).ok()).collect();
        u64::try_from(values.len()).unwrap_or(0)
    };
    let values = [&*machine.boot_id, &*machine.machine_id, &*machine.system_uuid];
    for (desc, number) in [
        (&CORES, machine.cores),
        (&PHYSICAL, physical),
        (&SOCKETS, sockets),
        (&BOOKS, unique("book_id")),
        (&DRAWERS, unique("drawer_id")),
        (&MEMORY, machine.memory_bytes),
        (&SWAP, machine.swap_bytes),
        (&NVM_POWER, 0),
    ] {
        let family = scrape.family(desc, Kind::Gauge);
        family.push_values(&LABELS, &values, float(number).into(), None);
    }
    for mode in ["app_direct_mode", "memory_mode"] {
        let names = [LABELS[0], LABELS[1], LABELS[2], "mode"];
        let values = [values[0], values[1], values[2], mode];
        scrape.family(&NVM, Kind::Gauge).push_values(&names, &values, 0.0.into(), None);
    }
    scrape.family(&ERROR, Kind::Gauge).push_values(&[], &[], 0.0.into(), None);
}

/// Sockets and physical cores; if the file does not name them, one thread per core.
fn topology(cpuinfo: &str, cores: u64) -> (u64, u64) {
    let mut sockets = BTreeSet::new();
    let mut physical = BTreeSet::new();
    for processor in cpuinfo.split("\n\n") {
        let value = |name: &str| {
            let line = processor.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_prefix(':').map(str::trim)
        };
        if let (Some(socket), Some(core)) = (value("physical id"), value("core id")) {
            sockets.insert(socket);
            physical.insert((socket, core));
        }
    }
    if physical.is_empty() {
        return (1, cores);
    }
    let count = |n: usize| u64::try_from(n).unwrap_or(0);
    (count(sockets.len()), count(physical.len()))
}

#[cfg(test)]
mod tests {
    use super::topology;

    #[test]
    fn threads_of_a_core_count_once() {
        let cpu = |n, core| format!("processor\t: {n}\nphysical id\t: 0\ncore id\t\t: {core}\n");
        let text = [cpu(0, 0), cpu(1, 1), cpu(2, 0), cpu(3, 1)].join("\n");
        assert_eq!(topology(&text, 4), (1, 2));
        assert_eq!(topology("processor : 0\n", 3), (1, 3));
    }
}
