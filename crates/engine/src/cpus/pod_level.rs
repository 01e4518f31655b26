//! Pods with resources of their own (gate PodLevelResourceManagers): CPUs for the pod as a whole, shared out among its
//! containers.
//!
//! Upstream: `staticPolicy.AllocatePod`. Containers that ask for whole CPUs as a Guaranteed pod would get their own
//! among the pod's; init containers that end have all that sidecars before them leave; the rest shares what is left.
//! On purpose unlike upstream: a pod that has its CPUs keeps them when it is admitted again after a restart.

use super::statics::{init_of, regular_of, uid_of};
use super::{CpuRefusal, StaticCpus, take};
use crate::pod::is_sidecar;
use crate::resources::{QosClass, Side, is_guaranteed_alone, pod_level_set, qos_class, side_of};
use crate::topology::NumaMask;
use api::core::v1::{Container, Pod};
use std::collections::BTreeMap;
use units::CpuSet;

/// What came of an allocation for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAllocation {
    /// The pod shares CPUs with others.
    Shared,
    /// It has had its CPUs before.
    Kept,
    /// It has them now.
    Taken {
        /// The CPUs.
        cpus: CpuSet,
        /// They share one cache.
        one_cache: bool,
        /// Containers with some of them to themselves.
        exclusive: usize,
        /// Containers that share what is left.
        shared: usize,
    },
}

impl StaticCpus {
    /// Whether CPUs are given out to this pod as a whole.
    pub(super) fn by_pod(&self, pod: &Pod) -> bool {
        self.pod_level_managers && pod_level_set(pod)
    }

    /// How many CPUs a pod asks for by itself.
    pub(super) fn asked_for_pod(&self, pod: &Pod) -> usize {
        if qos_class(pod, self.pod_level_resources) != QosClass::Guaranteed {
            return 0;
        }
        let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let Some(cpu) = side_of(own, Side::Requests).get("cpu").cloned() else { return 0 };
        if cpu.value().saturating_mul(1000) != cpu.milli_value() {
            return 0;
        }
        usize::try_from(cpu.value()).unwrap_or_default()
    }

    /// Whether containers that share would be left without CPUs.
    pub(super) fn check_shares(&self, pod: &Pod) -> Result<(), CpuRefusal> {
        let total = self.asked_for_pod(pod);
        let (mut shares, mut taken) = (false, 0);
        let mut count = |container: &Container| match self.asked(pod, container) {
            0 => shares = true,
            asked => taken += asked,
        };
        let mut sidecars = 0;
        for container in init_of(pod) {
            let asked = self.asked(pod, container);
            if is_sidecar(container) {
                sidecars += asked;
                count(container);
            } else if asked == 0 && sidecars >= total {
                return Err(CpuRefusal::NothingForInit);
            }
        }
        regular_of(pod).for_each(count);
        if shares && taken >= total {
            return Err(CpuRefusal::NothingToShare);
        }
        Ok(())
    }

    /// Gives a pod its CPUs, and its containers their part.
    pub fn allocate_pod(
        &mut self,
        pod: &Pod,
        affinity: Option<NumaMask>,
    ) -> Result<PodAllocation, CpuRefusal> {
        let count = self.asked_for_pod(pod);
        if !self.by_pod(pod) || count == 0 {
            return Ok(PodAllocation::Shared);
        }
        let uid = uid_of(pod);
        if self.state.pods.contains_key(uid) {
            return Ok(PodAllocation::Kept);
        }
        self.check_shares(pod)?;
        self.check_cores(count)?;
        let cpus = self.choose(&self.available(), count, affinity)?;
        let (own, pool) = self.partition(pod, &cpus)?;
        self.state.shared = self.state.shared.difference(&cpus);
        self.state.pods.insert(uid.to_owned(), cpus.clone());
        let mut shared = 0;
        for container in init_of(pod).chain(regular_of(pod)) {
            if self.asked(pod, container) == 0 {
                shared += 1;
            }
            let part = own.get(container.name.as_str()).unwrap_or(&pool);
            self.state.set(uid, &container.name, part.clone());
        }
        let all = init_of(pod).chain(regular_of(pod)).count();
        let one_cache = self.topology.shares_uncore(&cpus);
        Ok(PodAllocation::Taken { cpus, one_cache, exclusive: all - shared, shared })
    }

    /// Who has which of the pod's CPUs, and what the others share.
    fn partition<'a>(
        &self,
        pod: &'a Pod,
        cpus: &CpuSet,
    ) -> Result<(BTreeMap<&'a str, CpuSet>, CpuSet), CpuRefusal> {
        let mut own = BTreeMap::new();
        let mut pool = cpus.clone();
        for container in init_of(pod) {
            let asked = self.asked(pod, container);
            let part = match (asked, is_sidecar(container)) {
                (0, true) => continue,
                (0, false) => pool.clone(),
                _ => take(&self.topology, &pool, asked, self.options)?,
            };
            if is_sidecar(container) {
                pool = pool.difference(&part);
            }
            own.insert(container.name.as_str(), part);
        }
        for container in regular_of(pod) {
            let asked = self.asked(pod, container);
            if asked > 0 {
                let part = take(&self.topology, &pool, asked, self.options)?;
                pool = pool.difference(&part);
                own.insert(container.name.as_str(), part);
            }
        }
        Ok((own, pool))
    }

    /// Whether a container's CPUs are its own, not shared with its pod or all.
    pub fn is_exclusive(&self, pod: &Pod, container: &Container) -> bool {
        let held = self.state.of(uid_of(pod), &container.name);
        held.is_some_and(|cpus| !cpus.is_empty())
            && (!self.by_pod(pod) || has_whole_limit(container))
    }
}

fn has_whole_limit(container: &Container) -> bool {
    let limits = side_of(container.resources.as_ref(), Side::Limits);
    let whole = |cpu: &units::Quantity| cpu.value().saturating_mul(1000) == cpu.milli_value();
    is_guaranteed_alone(container) && limits.get("cpu").is_none_or(whole)
}

#[cfg(test)]
mod tests;
