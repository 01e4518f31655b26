//! The CPUs of a machine: which thread belongs to which core, cache, NUMA node and socket.

use std::collections::{BTreeMap, BTreeSet};
use units::CpuSet;

/// Where a CPU (a hardware thread) is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuInfo {
    /// NUMA node.
    pub numa: i64,
    /// Socket.
    pub socket: i64,
    /// The lowest CPU of its core.
    pub core: i64,
    /// Last level cache shared with other cores, or the socket where there is none.
    pub uncore: i64,
}

impl CpuInfo {
    pub(super) fn at(self, level: Level) -> i64 {
        match level {
            Level::Numa => self.numa,
            Level::Socket => self.socket,
            Level::Uncore => self.uncore,
            Level::Core => self.core,
        }
    }
}

/// A kind of group of CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// NUMA nodes.
    Numa,
    /// Sockets.
    Socket,
    /// Caches shared by some cores of a node.
    Uncore,
    /// Physical cores.
    Core,
}

/// Every online CPU and the counts that group sizes are derived from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuTopology {
    /// By CPU number.
    pub cpus: BTreeMap<u32, CpuInfo>,
    /// Physical cores.
    pub cores: usize,
    /// Sockets, as the machine counts them.
    pub sockets: usize,
}

impl CpuTopology {
    /// Every CPU.
    pub fn all(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// Hardware threads of a core.
    pub fn per_core(&self) -> usize {
        self.cpus.len().checked_div(self.cores).unwrap_or_default()
    }

    pub(super) fn per_socket(&self) -> usize {
        self.cpus.len().checked_div(self.sockets).unwrap_or_default()
    }

    pub(super) fn per_uncore(&self) -> usize {
        self.cpus.len().checked_div(self.ids(Level::Uncore).len()).unwrap_or_default()
    }

    /// The groups of a level.
    pub fn ids(&self, level: Level) -> BTreeSet<i64> {
        self.cpus.values().map(|info| info.at(level)).collect()
    }

    /// NUMA nodes that have CPUs, ascending.
    pub fn numa_nodes(&self) -> Vec<u32> {
        self.ids(Level::Numa).into_iter().filter_map(|id| u32::try_from(id).ok()).collect()
    }

    /// The CPUs of a group.
    pub fn of(&self, level: Level, id: i64) -> CpuSet {
        self.cpus.iter().filter(|(_, info)| info.at(level) == id).map(|(cpu, _)| *cpu).collect()
    }

    /// The NUMA node of a CPU.
    pub fn numa_of(&self, cpu: u32) -> Option<u32> {
        self.cpus.get(&cpu).and_then(|info| u32::try_from(info.numa).ok())
    }

    /// Sockets of the CPUs of these NUMA nodes.
    pub(super) fn sockets_of(&self, nodes: impl Iterator<Item = u32>) -> BTreeSet<i64> {
        let nodes: BTreeSet<i64> = nodes.map(i64::from).collect();
        let inside = self.cpus.values().filter(|info| nodes.contains(&info.numa));
        inside.map(|info| info.socket).collect()
    }

    /// Whether all CPUs share one cache.
    pub(super) fn shares_uncore(&self, cpus: &CpuSet) -> bool {
        if cpus.len() <= 1 {
            return true;
        }
        let caches: Option<BTreeSet<i64>> =
            cpus.iter().map(|cpu| self.cpus.get(&cpu).map(|info| info.uncore)).collect();
        caches.is_some_and(|caches| caches.len() == 1)
    }
}
