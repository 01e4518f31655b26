//! Pods with pod-level resources (gate PodLevelResourceManagers): memory for the pod as a whole, divided among its
//! containers.
//!
//! Upstream: `staticPolicy.AllocatePod`. Deliberately unlike upstream: a pod that has its memory keeps it when it is
//! admitted again after a restart.

use super::hints::{Request, feasible};
use super::state::assign;
use super::statics::held_hints;
use super::{Block, MemoryAllocation, MemoryRefusal, StaticMemory, is_memory};
use crate::resources::{Side, pod_level_set, side_of};
use crate::topology::{Hint, ResourceHints};
use api::core::v1::Pod;
use api::pod::{ContainerExt, PodExt};
use std::collections::BTreeMap;

/// The result of an allocation for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodMemory {
    /// Whether the pod was allocated memory, or already had it.
    pub result: MemoryAllocation,
    /// Containers with exclusive memory.
    pub exclusive: usize,
    /// Containers that share the rest.
    pub shared: usize,
}

impl StaticMemory {
    /// Whether memory is allocated to this pod as a whole.
    pub(super) fn by_pod(&self, pod: &Pod) -> bool {
        self.setup.pod_level_managers && pod_level_set(pod)
    }

    /// Topology hints for the pod-level memory.
    pub(super) fn whole_hints(&self, pod: &Pod) -> ResourceHints {
        let Ok(request) = asked_for_pod(pod) else { return ResourceHints::new() };
        if self.check_shares(pod, &request).is_err() {
            return request.keys().map(|kind| (kind.clone(), Some(Vec::new()))).collect();
        }
        if request.is_empty() {
            return ResourceHints::new();
        }
        let uid = pod.uid_str();
        match self.state.pods.get(uid) {
            Some(blocks) => held_hints(blocks, &request),
            None => feasible(&self.state.machine, &request, &self.reusable_of(uid)),
        }
    }

    /// Whether containers that share would be left without memory.
    fn check_shares(&self, pod: &Pod, total: &Request) -> Result<(), MemoryRefusal> {
        let mut taken = Request::new();
        let mut shares = false;
        let used_up = |taken: &Request| {
            let used = |kind: &str| taken.get(kind).copied().unwrap_or_default();
            total.iter().find(|(kind, size)| used(kind) >= **size).map(|(kind, _)| kind.clone())
        };
        for container in pod.init_containers() {
            let asked = self.asked(pod, container)?;
            if container.is_sidecar() {
                shares |= asked.is_empty();
                add(&mut taken, asked);
            } else if asked.is_empty()
                && let Some(kind) = used_up(&taken)
            {
                return Err(MemoryRefusal::NothingForInit(kind));
            }
        }
        for container in pod.regular_containers() {
            let asked = self.asked(pod, container)?;
            shares |= asked.is_empty();
            add(&mut taken, asked);
        }
        match used_up(&taken).filter(|_| shares) {
            Some(kind) => Err(MemoryRefusal::NothingToShare(kind)),
            None => Ok(()),
        }
    }

    /// Allocates memory to a pod and divides it among its containers.
    pub fn allocate_pod(&mut self, pod: &Pod, hint: Hint) -> Result<PodMemory, MemoryRefusal> {
        let nothing = |result| PodMemory { result, exclusive: 0, shared: 0 };
        if !self.by_pod(pod) || !self.cares(pod) {
            return Ok(nothing(MemoryAllocation::Shared));
        }
        let uid = pod.uid_str();
        if self.state.pods.contains_key(uid) {
            return Ok(nothing(MemoryAllocation::Kept));
        }
        let Ok(total) = asked_for_pod(pod) else { return Ok(nothing(MemoryAllocation::Shared)) };
        self.check_shares(pod, &total)?;
        let mask = self.choose(uid, &total, hint)?;
        let nodes: Vec<u32> = mask.nodes().collect();
        let (own, pool) = self.partition(pod, &total)?;
        for (kind, size) in &total {
            assign(&mut self.state.machine, &nodes, kind, *size);
        }
        self.state.pods.insert(uid.to_owned(), blocks(&total, &nodes));
        let mut counted = nothing(MemoryAllocation::Taken);
        for container in pod.init_containers().chain(pod.regular_containers()) {
            if self.asked(pod, container)?.is_empty() {
                counted.shared += 1;
            } else {
                counted.exclusive += 1;
            }
            let part = own.get(container.name.as_str()).unwrap_or(&pool);
            self.state.set(uid, &container.name, blocks(part, &nodes));
        }
        Ok(counted)
    }

    /// The containers' exclusive parts of the pod's memory, and the shared rest.
    fn partition<'a>(
        &self,
        pod: &'a Pod,
        total: &Request,
    ) -> Result<(BTreeMap<&'a str, Request>, Request), MemoryRefusal> {
        let mut own = BTreeMap::new();
        let mut pool = total.clone();
        for container in pod.init_containers() {
            let asked = self.asked(pod, container)?;
            match (asked.is_empty(), container.is_sidecar()) {
                (true, true) => {}
                (true, false) => {
                    own.insert(container.name.as_str(), pool.clone());
                }
                (false, sidecar) => {
                    if sidecar {
                        subtract(&mut pool, &asked);
                    }
                    own.insert(container.name.as_str(), asked);
                }
            }
        }
        for container in pod.regular_containers() {
            let asked = self.asked(pod, container)?;
            if !asked.is_empty() {
                subtract(&mut pool, &asked);
                own.insert(container.name.as_str(), asked);
            }
        }
        Ok((own, pool))
    }
}

fn add(sum: &mut Request, more: Request) {
    for (kind, size) in more {
        let total = sum.entry(kind).or_default();
        *total = total.saturating_add(size);
    }
}

fn subtract(pool: &mut Request, taken: &Request) {
    for (kind, size) in taken {
        if let Some(left) = pool.get_mut(kind) {
            *left = left.saturating_sub(*size);
        }
    }
}

/// Blocks of everything that is not zero.
fn blocks(sizes: &Request, nodes: &[u32]) -> Vec<Block> {
    let some = sizes.iter().filter(|(_, size)| **size > 0);
    some.map(|(kind, size)| Block { nodes: nodes.to_vec(), kind: kind.clone(), size: *size })
        .collect()
}

fn asked_for_pod(pod: &Pod) -> Result<Request, MemoryRefusal> {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = side_of(own, Side::Requests).into_iter().filter(|(kind, _)| is_memory(kind));
    let mut total = Request::new();
    for (kind, amount) in requests {
        let bytes = amount.as_i64().ok_or(MemoryRefusal::NotBytes)?;
        if let Some(bytes) = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0) {
            total.insert(kind, bytes);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
