//! Choosing CPUs among free ones: whole NUMA nodes and sockets, whole caches, whole cores, single threads.
//!
//! Upstream: `cpuAccumulator`, `takeByTopologyNUMAPacked`. Groups are taken from those with the fewest free CPUs, so
//! that holes are filled before new groups are opened.

use super::distribute::distributed;
use super::{CpuOptions, CpuTopology, Level};
use std::collections::BTreeSet;
use units::CpuSet;

/// Why CPUs cannot be taken; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// Too few are free.
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, available={available}"
    )]
    TooFew {
        /// How many were asked for.
        requested: usize,
        /// How many are free.
        available: usize,
    },
    /// Free ones could not be taken.
    #[error("failed to allocate cpus")]
    Failed,
    /// A distribution did not add up.
    #[error("accounting error, {what} CPUs allocated, remaining: {remaining}")]
    Accounting {
        /// `not enough` or `too many`.
        what: &'static str,
        /// What is missing.
        remaining: i64,
    },
}

/// Takes `count` CPUs out of `free`.
pub fn take(
    topology: &CpuTopology,
    free: &CpuSet,
    count: usize,
    options: CpuOptions,
) -> Result<CpuSet, TakeError> {
    let order = if options.distribute_across_cores { Order::Spread } else { Order::Packed };
    if options.distribute_across_numa {
        let group = if options.full_pcpus_only { topology.per_core() } else { 1 };
        return distributed(Free::new(topology, free, order), count, group.max(1));
    }
    let uncore = if options.prefer_align_by_uncore { Caches::Aligned } else { Caches::Ignored };
    packed(&Free::new(topology, free, order), count, uncore)
}

/// How single CPUs are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Core by core.
    Packed,
    /// By number within a socket, so that siblings come late.
    Spread,
}

/// Whether shared caches matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caches {
    /// Prefer few caches.
    Aligned,
    /// They do not matter.
    Ignored,
}

/// Free CPUs of a machine.
#[derive(Debug, Clone)]
pub(super) struct Free<'a> {
    pub(super) topology: &'a CpuTopology,
    pub(super) cpus: CpuSet,
    pub(super) order: Order,
}

impl<'a> Free<'a> {
    pub(super) fn new(topology: &'a CpuTopology, free: &CpuSet, order: Order) -> Self {
        let known = |cpu: &u32| topology.cpus.contains_key(cpu);
        Self { topology, cpus: free.iter().filter(known).collect(), order }
    }

    /// Only these of them.
    pub(super) fn only(&self, cpus: CpuSet) -> Self {
        Self { cpus, ..self.clone() }
    }

    pub(super) fn of(&self, level: Level, id: i64) -> CpuSet {
        let at = |cpu: &u32| self.topology.cpus.get(cpu).is_some_and(|info| info.at(level) == id);
        self.cpus.iter().filter(at).collect()
    }

    fn count(&self, level: Level, id: i64) -> usize {
        self.of(level, id).len()
    }

    /// The groups of a level that have a free CPU (inside of another group), fewest free CPUs first.
    fn sorted(&self, level: Level, inside: Option<(Level, i64)>) -> Vec<i64> {
        let mut ids = BTreeSet::new();
        for info in self.cpus.iter().filter_map(|cpu| self.topology.cpus.get(&cpu)) {
            if inside.is_none_or(|(outer, id)| info.at(outer) == id) {
                ids.insert(info.at(level));
            }
        }
        let mut ids: Vec<i64> = ids.into_iter().collect();
        ids.sort_by_key(|id| (self.count(level, *id), *id));
        ids
    }

    fn nested(&self, outer: (Level, &[i64]), level: Level) -> Vec<i64> {
        let (outer, ids) = outer;
        ids.iter().flat_map(|id| self.sorted(level, Some((outer, *id)))).collect()
    }

    /// NUMA nodes contain sockets (or the other way round).
    fn numa_first(&self) -> bool {
        self.topology.sockets >= self.topology.ids(Level::Numa).len()
    }

    pub(super) fn numa_nodes(&self) -> Vec<i64> {
        if self.numa_first() {
            return self.sorted(Level::Numa, None);
        }
        self.nested((Level::Socket, &self.sockets()), Level::Numa)
    }

    fn sockets(&self) -> Vec<i64> {
        if self.numa_first() {
            return self.nested((Level::Numa, &self.numa_nodes()), Level::Socket);
        }
        self.sorted(Level::Socket, None)
    }

    fn cores(&self) -> Vec<i64> {
        if self.numa_first() {
            self.nested((Level::Socket, &self.sockets()), Level::Core)
        } else {
            self.nested((Level::Numa, &self.numa_nodes()), Level::Core)
        }
    }

    fn singles(&self) -> Vec<u32> {
        let (level, ids) = match self.order {
            Order::Packed => (Level::Core, self.cores()),
            Order::Spread => (Level::Socket, self.sockets()),
        };
        let cpus = |id: &i64| self.of(level, *id).iter().collect::<Vec<u32>>();
        ids.iter().flat_map(cpus).collect()
    }

    fn ids(&self, level: Level) -> Vec<i64> {
        match level {
            Level::Numa => self.numa_nodes(),
            Level::Socket => self.sockets(),
            Level::Uncore => self.nested((Level::Numa, &self.numa_nodes()), Level::Uncore),
            Level::Core => self.cores(),
        }
    }

    /// Whether nothing of a group is in use.
    fn is_whole(&self, level: Level, id: i64) -> bool {
        let whole = match level {
            Level::Socket => self.topology.per_socket(),
            Level::Core => self.topology.per_core(),
            Level::Numa | Level::Uncore => self.topology.of(level, id).len(),
        };
        self.count(level, id) == whole
    }
}

/// Free CPUs, how many are still needed, and those that were taken.
struct Taking<'a> {
    free: Free<'a>,
    needed: usize,
    taken: CpuSet,
}

impl Taking<'_> {
    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free.cpus = self.free.cpus.difference(&self.taken);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// Takes whole groups of a level as long as they are not larger than the need.
    fn take_whole(&mut self, level: Level) {
        let mut whole = self.free.ids(level);
        whole.retain(|id| self.free.is_whole(level, *id));
        for id in whole {
            let cpus = self.free.topology.of(level, id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn take_caches(&mut self) {
        for id in self.free.ids(Level::Uncore) {
            if self.needed >= self.free.topology.per_uncore() {
                self.take_whole(Level::Uncore);
            }
            if self.needed == 0 {
                return;
            }
            self.take_part_of_cache(id);
            if self.needed == 0 {
                return;
            }
        }
    }

    /// Takes the lowest cores of a cache if they are exactly what is missing.
    fn take_part_of_cache(&mut self, cache: i64) {
        let per_core = self.free.topology.per_core().max(1);
        let inside = self.free.of(Level::Uncore, cache);
        let core_of = |cpu: u32| self.free.topology.cpus.get(&cpu).map(|info| info.core);
        let cores: BTreeSet<i64> = inside.iter().filter_map(core_of).collect();
        let cores: Vec<i64> = cores.into_iter().take(self.needed.div_ceil(per_core)).collect();
        let mut cpus: CpuSet = cores
            .iter()
            .flat_map(|core| self.free.of(Level::Core, *core).iter().collect::<Vec<_>>())
            .collect();
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            let last = cpus.iter().next_back();
            last.map(|cpu| cpus.remove(cpu));
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }
}

pub(super) fn packed(free: &Free<'_>, count: usize, caches: Caches) -> Result<CpuSet, TakeError> {
    if count == 0 {
        return Ok(CpuSet::new());
    }
    if count > free.cpus.len() {
        return Err(TakeError::TooFew { requested: count, available: free.cpus.len() });
    }
    let mut taking = Taking { free: free.clone(), needed: count, taken: CpuSet::new() };
    let levels =
        if free.numa_first() { [Level::Numa, Level::Socket] } else { [Level::Socket, Level::Numa] };
    for level in levels {
        taking.take_whole(level);
        if taking.needed == 0 {
            return Ok(taking.taken);
        }
    }
    if caches == Caches::Aligned {
        taking.take_caches();
        if taking.needed == 0 {
            return Ok(taking.taken);
        }
    }
    if free.order == Order::Packed {
        taking.take_whole(Level::Core);
    }
    for cpu in taking.free.singles() {
        if taking.needed == 0 {
            break;
        }
        taking.take(&CpuSet::from_iter([cpu]));
    }
    if taking.needed == 0 { Ok(taking.taken) } else { Err(TakeError::Failed) }
}

#[cfg(test)]
mod tests;
