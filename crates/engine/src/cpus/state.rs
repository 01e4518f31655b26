//! The CPU assignments.

use std::collections::BTreeMap;
use units::CpuSet;

/// The shared CPUs and the exclusive ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuState {
    /// CPUs of containers without exclusive ones (upstream: `DefaultCPUSet`).
    pub shared: CpuSet,
    /// Exclusive CPUs by pod UID and container name.
    pub own: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// CPUs of pods as a whole, by UID; they include those of their containers.
    pub pods: BTreeMap<String, CpuSet>,
}

impl CpuState {
    /// A container's exclusive CPUs.
    pub fn of(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.own.get(uid)?.get(container)
    }

    /// The CPUs that a container runs on.
    pub fn of_or_shared(&self, uid: &str, container: &str) -> &CpuSet {
        self.of(uid, container).unwrap_or(&self.shared)
    }

    /// Every CPU that is exclusive.
    pub fn exclusive(&self) -> CpuSet {
        let own = self.own.values().flat_map(BTreeMap::values);
        own.chain(self.pods.values()).flat_map(CpuSet::iter).collect()
    }

    pub(super) fn set(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.own.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    pub(super) fn remove(&mut self, uid: &str, container: &str) -> Option<CpuSet> {
        let containers = self.own.get_mut(uid)?;
        let cpus = containers.remove(container);
        if containers.is_empty() {
            self.own.remove(uid);
        }
        cpus
    }
}
