//! Pods with pod-level resources (gate PodLevelResourceManagers): CPUs for the pod as a whole, divided among its
//! containers.
//!
//! Upstream: `staticPolicy.AllocatePod`. Containers that request whole CPUs as in a Guaranteed pod get exclusive ones
//! among the pod's; init containers that end get all that the sidecars before them leave; the others share the rest.
//! Deliberately unlike upstream: a pod that has its CPUs keeps them when it is admitted again after a restart.
use super::{CpuRefusal, StaticCpus, take};
use crate::resources::{QosClass, Side, is_guaranteed_alone, pod_level_set, qos_class, side_of};
use crate::topology::NumaMask;
use api::core::v1::{Container, Pod};
use api::pod::{ContainerExt, PodExt};
use std::collections::BTreeMap;
use units::CpuSet;

/// The result of an allocation for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAllocation {
    /// The pod shares CPUs with others.
    Shared,
    /// It already had its CPUs.
    Kept,
    /// It was allocated CPUs.
    Taken {
        /// The CPUs.
        cpus: CpuSet,
        /// They share one cache.
        one_cache: bool,
        /// Containers with exclusive CPUs.
        exclusive: usize,
        /// Containers that share the rest.
        shared: usize,
    },
}

impl StaticCpus {
    /// Whether CPUs are allocated to this pod as a whole.
    pub(super) fn by_pod(&self, pod: &Pod) -> bool {
        self.pod_level_managers && pod_level_set(pod)
    }

    /// How many CPUs the pod-level resources request.
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
        for container in pod.init_containers() {
            let asked = self.asked(pod, container);
            if container.is_sidecar() {
                sidecars += asked;
                count(container);
            } else if asked == 0 && sidecars >= total {
                return Err(CpuRefusal::NothingForInit);
            }
        }
        pod.regular_containers().for_each(count);
        if shares && taken >= total {
            return Err(CpuRefusal::NothingToShare);
        }
        Ok(())
    }

    /// Allocates CPUs to a pod and divides them among its containers.
    pub fn allocate_pod(
        &mut self,
        pod: &Pod,
        affinity: Option<NumaMask>,
    ) -> Result<PodAllocation, CpuRefusal> {
        let count = self.asked_for_pod(pod);
        if !self.by_pod(pod) || count == 0 {
            return Ok(PodAllocation::Shared);
        }
        let uid = pod.uid_str();
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
        for container in pod.init_containers().chain(pod.regular_containers()) {
            if self.asked(pod, container) == 0 {
                shared += 1;
            }
            let part = own.get(container.name.as_str()).unwrap_or(&pool);
            self.state.set(uid, &container.name, part.clone());
        }
        let all = pod.init_containers().chain(pod.regular_containers()).count();
        let one_cache = self.topology.shares_uncore(&cpus);
        Ok(PodAllocation::Taken { cpus, one_cache, exclusive: all - shared, shared })
    }

    /// The containers' exclusive CPUs among the pod's, and the shared rest.
    fn partition<'a>(
        &self,
        pod: &'a Pod,
        cpus: &CpuSet,
    ) -> Result<(BTreeMap<&'a str, CpuSet>, CpuSet), CpuRefusal> {
        let mut own = BTreeMap::new();
        let mut pool = cpus.clone();
        for container in pod.init_containers() {
            let asked = self.asked(pod, container);
            let part = match (asked, container.is_sidecar()) {
                (0, true) => continue,
                (0, false) => pool.clone(),
                _ => take(&self.topology, &pool, asked, self.options)?,
            };
            if container.is_sidecar() {
                pool = pool.difference(&part);
            }
            own.insert(container.name.as_str(), part);
        }
        for container in pod.regular_containers() {
            let asked = self.asked(pod, container);
            if asked > 0 {
                let part = take(&self.topology, &pool, asked, self.options)?;
                pool = pool.difference(&part);
                own.insert(container.name.as_str(), part);
            }
        }
        Ok((own, pool))
    }

    /// Whether a container has exclusive CPUs, not those shared within its pod or on the node.
    pub fn is_exclusive(&self, pod: &Pod, container: &Container) -> bool {
        let held = self.state.of(pod.uid_str(), &container.name);
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
