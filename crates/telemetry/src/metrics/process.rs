//! Resource usage of the process itself, as the Prometheus Go client's process collector reports
//! it.
//!
//! Read from `/proc/self` at each scrape. Values that cannot be read are left out.
#![expect(
    clippy::disallowed_methods,
    reason = "a value that cannot be read is left out, whatever the error"
)]

use std::fs;
use std::path::{Path, PathBuf};

use super::desc::{Desc, Kind};
use super::registry::Registry;
use super::scrape::Scrape;

const CPU: Desc =
    Desc::unstated("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
const OPEN_FDS: Desc = Desc::unstated("process_open_fds", "Number of open file descriptors.");
const MAX_FDS: Desc = Desc::unstated("process_max_fds", "Maximum number of open file descriptors.");
const VIRTUAL: Desc =
    Desc::unstated("process_virtual_memory_bytes", "Virtual memory size in bytes.");
const MAX_VIRTUAL: Desc = Desc::unstated(
    "process_virtual_memory_max_bytes",
    "Maximum amount of virtual memory available in bytes.",
);
const RESIDENT: Desc =
    Desc::unstated("process_resident_memory_bytes", "Resident memory size in bytes.");
const START: Desc = Desc::unstated(
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
);
const RECEIVED: Desc = Desc::unstated(
    "process_network_receive_bytes_total",
    "Number of bytes received by the process over the network.",
);
const SENT: Desc = Desc::unstated(
    "process_network_transmit_bytes_total",
    "Number of bytes sent by the process over the network.",
);

/// Clock ticks per second in `/proc`; the kernel's ABI fixes it.
const TICKS: f64 = 100.0;

/// Adds the process's own metrics to a registry. `proc` is the proc filesystem.
pub fn register_process(registry: &Registry, proc: PathBuf) {
    registry.collector(move |scrape| collect(&proc, scrape));
}

fn collect(proc: &Path, scrape: &mut Scrape) {
    let own = proc.join("self");
    let stat = fs::read_to_string(own.join("stat")).unwrap_or_default();
    if let Some(stat) = Stat::parse(&stat) {
        put(scrape, &CPU, Kind::Counter, Some(stat.cpu_seconds));
        put(scrape, &VIRTUAL, Kind::Gauge, Some(stat.virtual_bytes));
        let boot = fs::read_to_string(proc.join("stat")).ok().and_then(|text| boot_time(&text));
        put(scrape, &START, Kind::Gauge, boot.map(|boot| boot + stat.start_seconds));
    }
    let status = fs::read_to_string(own.join("status")).unwrap_or_default();
    put(scrape, &RESIDENT, Kind::Gauge, resident_bytes(&status));
    let open = fs::read_dir(own.join("fd")).ok().map(|entries| count(entries.count()));
    put(scrape, &OPEN_FDS, Kind::Gauge, open);
    let limits = fs::read_to_string(own.join("limits")).unwrap_or_default();
    put(scrape, &MAX_FDS, Kind::Gauge, limit(&limits, "Max open files"));
    put(scrape, &MAX_VIRTUAL, Kind::Gauge, limit(&limits, "Max address space"));
    let netstat = fs::read_to_string(own.join("net/netstat")).unwrap_or_default();
    put(scrape, &RECEIVED, Kind::Counter, octets(&netstat, "InOctets"));
    put(scrape, &SENT, Kind::Counter, octets(&netstat, "OutOctets"));
}

fn put(scrape: &mut Scrape, desc: &Desc, kind: Kind, value: Option<f64>) {
    if let Some(value) = value {
        scrape.family(desc, kind).push_values(&[], &[], value.into(), None);
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
fn count(number: usize) -> f64 {
    number as f64
}

/// The needed fields of `/proc/self/stat`.
struct Stat {
    cpu_seconds: f64,
    start_seconds: f64,
    virtual_bytes: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may contain anything; fields are counted from the state, the
        // third.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            start_seconds: field(22)? / TICKS,
            virtual_bytes: field(23)?,
        })
    }
}

fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// The soft limit of that name; unlimited is the largest 64-bit number.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(18_446_744_073_709_551_615.0),
        number => number.parse().ok(),
    }
}

fn octets(netstat: &str, name: &str) -> Option<f64> {
    let mut rows = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (rows.next()?, rows.next()?);
    let at = names.split_whitespace().position(|found| found == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 12345 1048576 321 18446744073709551615";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.cpu_seconds, stat.start_seconds), (3.0, 123.45));
        assert_eq!(stat.virtual_bytes, 1_048_576.0);
        assert_eq!(boot_time("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000.0));
        assert_eq!(resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
        let limits = "Limit   Soft Limit   Hard Limit   Units\n\
                      Max open files            1024                 524288               files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(
            limit(limits, "Max address space").map(crate::go_text::float),
            Some("1.8446744073709552e+19".into())
        );
        let netstat = "TcpExt: A\nTcpExt: 1\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 5 6\n";
        assert_eq!(
            (octets(netstat, "InOctets"), octets(netstat, "OutOctets")),
            (Some(5.0), Some(6.0))
        );
    }

    #[test]
    fn a_live_process_reports_all_nine() {
        let registry = Registry::new();
        register_process(&registry, "/proc".into());
        let text = registry.render();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("# TYPE process_")).count(),
            9,
            "{text}"
        );
    }

    #[test]
    fn a_missing_proc_reports_nothing() {
        let registry = Registry::new();
        register_process(&registry, "/nonexistent".into());
        assert_eq!(registry.render(), "");
    }
}
