//! Available memory as the kernel estimates it: page cache that it can drop counts as available.
//!
//! Opt-in. Upstream uses capacity minus working set, and recently used page cache belongs to the working set:
//! a node that reads many files evicts pods although memory is available.

use super::{Observation, Observations, Signal};
use jiff::Timestamp;
use units::Quantity;

/// The kernel's memory statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMemory {
    total: u64,
    available: u64,
    /// Page cache of pods that is in their working set.
    pods_cache: u64,
}

impl KernelMemory {
    /// Reads `/proc/meminfo`, and `memory.stat` of the pods' cgroup (either version; empty if there is none).
    pub fn parse(meminfo: &str, pods_stat: &str) -> Option<Self> {
        let kib = |name: &str| number(meminfo, &format!("{name}:"));
        let (total, available) = kib("MemTotal").zip(kib("MemAvailable"))?;
        let cache =
            number(pods_stat, "total_active_file").or_else(|| number(pods_stat, "active_file"));
        Some(Self {
            total: total.saturating_mul(1024),
            available: available.saturating_mul(1024),
            pods_cache: cache.unwrap_or_default(),
        })
    }

    /// Replaces the observations by working set with these.
    pub fn apply(self, observed: &mut Observations, at: Timestamp) {
        let node = Observation {
            available: bytes(self.available),
            capacity: bytes(self.total),
            at: Some(at),
        };
        observed.insert(Signal::MemoryAvailable, node);
        if let Some(pods) = observed.get_mut(&Signal::AllocatableMemoryAvailable) {
            let with_cache = pods.available.saturating_add(bytes(self.pods_cache));
            pods.available = with_cache.min(pods.capacity);
        }
    }
}

/// An additional sentence for the eviction message: how memory was measured, and what upstream's measure would
/// have been. `None` if upstream's measure was used.
pub fn measured(
    signal: Signal,
    observed: &Observations,
    by_working_set: &Observations,
) -> Option<String> {
    let (ours, usual) = observed.get(&signal).zip(by_working_set.get(&signal))?;
    (ours != usual).then(|| {
        format!(
            "Measured by what the kernel can free; by working set {} are available. ",
            usual.available
        )
    })
}

/// The number behind a name at the start of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

fn bytes(value: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:        8388608 kB\nMemFree:          102400 kB\n\
                           MemAvailable:    4194304 kB\n";
    const MIB: u64 = 1 << 20;

    fn by_working_set() -> Observations {
        let reading = |available: u64, capacity: u64| Observation {
            available: bytes(available),
            capacity: bytes(capacity),
            at: None,
        };
        Observations::from([
            (Signal::MemoryAvailable, reading(60 * MIB, 8192 * MIB)),
            (Signal::AllocatableMemoryAvailable, reading(50 * MIB, 6000 * MIB)),
            (Signal::PidAvailable, reading(7, 9)),
        ])
    }

    #[test]
    fn page_cache_counts_as_available_on_the_node_and_for_pods() {
        let stat = "anon 1\nactive_file 3145728000\ninactive_file 5\n";
        let kernel = KernelMemory::parse(MEMINFO, stat).unwrap();
        let mut observed = by_working_set();
        kernel.apply(&mut observed, Timestamp::UNIX_EPOCH);
        let shown = |signal| {
            let Observation { available, capacity, .. } = observed[&signal];
            (available.to_string(), capacity.to_string())
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(shown(Signal::MemoryAvailable), pair("4Gi", "8Gi"));
        assert_eq!(shown(Signal::AllocatableMemoryAvailable), pair("3050Mi", "6000Mi"));
        assert_eq!(observed[&Signal::PidAvailable], by_working_set()[&Signal::PidAvailable]);
        let told = |signal| measured(signal, &observed, &by_working_set());
        assert_eq!(
            told(Signal::MemoryAvailable).unwrap(),
            "Measured by what the kernel can free; by working set 60Mi are available. "
        );
        assert_eq!(told(Signal::PidAvailable), None);
    }

    #[test]
    fn version_1_counts_the_whole_tree_and_more_than_all_is_not_available() {
        let stat = "active_file 1\ntotal_active_file 9000000000\n";
        let kernel = KernelMemory::parse(MEMINFO, stat).unwrap();
        let mut observed = by_working_set();
        kernel.apply(&mut observed, Timestamp::UNIX_EPOCH);
        let pods = observed[&Signal::AllocatableMemoryAvailable];
        assert_eq!(pods.available, pods.capacity);
    }

    #[test]
    fn a_kernel_that_does_not_say_is_not_guessed_at() {
        assert_eq!(KernelMemory::parse("MemTotal: 5 kB\nMemFree: 1 kB\n", ""), None);
        assert_eq!(KernelMemory::parse("", "active_file 1\n"), None);
        assert_eq!(KernelMemory::parse("MemTotal: 5 kB\nMemAvailable: x kB\n", ""), None);
    }
}
