//! The `Static` policy: containers of Guaranteed pods get their memory from as few NUMA nodes as possible.
//!
//! Upstream: `memorymanager.staticPolicy`. Memory of a pod's init containers is reused by its later containers, that of
//! sidecars is not.

use super::hints::{Request, Reusable, best, breaks_group, feasible, satisfies};
use super::state::{assign, release, untouched};
use super::{Block, MemoryFault, MemoryState, NodeFacts, expected, is_memory};
use crate::resources::{QosClass, Side, is_guaranteed_alone, pod_level_set, qos_class, side_of};
use crate::topology::{Hint, NumaMask, ResourceHints};
use api::core::v1::{Container, Pod};
use api::pod::{ContainerExt, PodExt};
use std::collections::BTreeMap;

/// Settings of the policy.
#[derive(Debug, Clone)]
pub struct MemorySetup {
    /// The machine.
    pub nodes: Vec<NodeFacts>,
    /// Bytes reserved for the system, by node and resource.
    pub reserved: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Gate PodLevelResources.
    pub pod_level_resources: bool,
    /// Gate PodLevelResourceManagers.
    pub pod_level_managers: bool,
}

/// Why a container gets no memory; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryRefusal {
    /// An amount is not a number of bytes.
    #[error("[memorymanager] failed to represent quantity as int64")]
    NotBytes,
    /// No nodes have enough.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is \
         available"
    )]
    NoNodes,
    /// Only nodes that are not preferred have enough.
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    /// The chosen nodes have too little, and no larger set has enough.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NotExtensible,
    /// The chosen nodes have too little, and only sets that are not preferred have enough.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    NotExtensiblePreferred,
    /// Sidecars take all memory of the pod that an init container would share.
    #[error("pod rejected, pod has shared init containers but no {0} available for them")]
    NothingForInit(String),
    /// Containers take all memory of the pod that others would share.
    #[error(
        "pod rejected, sum of exclusive container {0} requests equals pod budget, leaving no memory for \
         shared containers"
    )]
    NothingToShare(String),
    /// The chosen nodes are used alone or in another group.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violates,
}

impl MemoryRefusal {
    /// The rejection's own reason, if it has one.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NothingForInit(_) | Self::NothingToShare(_) => Some("EmptyPodSharedPoolError"),
            _ => None,
        }
    }
}

/// The result of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryAllocation {
    /// The container gets no memory of particular nodes.
    Shared,
    /// It already had its memory.
    Kept,
    /// It was allocated memory.
    Taken,
}

/// The policy and its allocations.
#[derive(Debug, Clone)]
pub struct StaticMemory {
    pub(super) setup: MemorySetup,
    pub(super) state: MemoryState,
    /// Reusable memory of the init containers of the pod that was allocated for last.
    reusable: (String, Reusable),
}

impl StaticMemory {
    /// The policy for a machine, without allocations.
    pub fn new(setup: MemorySetup) -> Result<Self, MemoryFault> {
        let reserved = setup.reserved.values().filter_map(|kinds| kinds.get("memory"));
        if reserved.copied().fold(0, u64::saturating_add) == 0 {
            return Err(MemoryFault(
                "[memorymanager] you should specify the system reserved memory".to_owned(),
            ));
        }
        Ok(Self { setup, state: MemoryState::default(), reusable: Default::default() })
    }

    /// Restores the state of a checkpoint; an empty state means a new start.
    pub fn restore(&mut self, state: MemoryState) -> Result<(), MemoryFault> {
        let fresh = untouched(&self.setup.nodes, &self.setup.reserved);
        if state.machine.is_empty() {
            if !state.own.is_empty() {
                return Err(MemoryFault(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                        .to_owned(),
                ));
            }
            self.state = MemoryState { machine: fresh, ..MemoryState::default() };
            return Ok(());
        }
        expected::check(fresh, &state)?;
        self.state = state;
        Ok(())
    }

    /// The present assignments.
    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// Allocatable memory, one block per node and kind.
    pub fn allocatable(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (id, node) in &self.state.machine {
            for (kind, table) in node.tables.iter().filter(|(_, table)| table.allocatable > 0) {
                blocks.push(Block {
                    nodes: vec![*id],
                    kind: kind.clone(),
                    size: table.allocatable,
                });
            }
        }
        blocks
    }

    /// Whether the policy manages a pod.
    pub fn cares(&self, pod: &Pod) -> bool {
        qos_class(pod, self.setup.pod_level_resources) == QosClass::Guaranteed
            && (!pod_level_set(pod) || self.setup.pod_level_managers)
    }

    /// Allocates a container's memory.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
    ) -> Result<MemoryAllocation, MemoryRefusal> {
        if !self.cares(pod) {
            return Ok(MemoryAllocation::Shared);
        }
        let uid = pod.uid_str();
        if let Some(blocks) = self.state.of(uid, &container.name).cloned() {
            self.note_reusable(pod, container, &blocks);
            return Ok(MemoryAllocation::Kept);
        }
        let request = self.asked(pod, container)?;
        let mask = self.choose(uid, &request, hint)?;
        let nodes: Vec<u32> = mask.nodes().collect();
        let mut blocks = Vec::new();
        for (kind, size) in &request {
            let left = self.reusable_of(uid).get(&mask).and_then(|r| r.get(kind)).copied();
            let missing = size.saturating_sub(left.unwrap_or_default());
            assign(&mut self.state.machine, &nodes, kind, missing);
            blocks.push(Block { nodes: nodes.clone(), kind: kind.clone(), size: *size });
        }
        self.note_reusable(pod, container, &blocks);
        self.state.set(uid, &container.name, blocks.clone());
        self.shrink_init(pod, container, &blocks);
        Ok(MemoryAllocation::Taken)
    }

    /// The nodes to take from: those of the hint if they have enough, else more.
    pub(super) fn choose(
        &self,
        uid: &str,
        request: &Request,
        hint: Hint,
    ) -> Result<NumaMask, MemoryRefusal> {
        let machine = &self.state.machine;
        let hints = feasible(machine, request, &self.reusable_of(uid));
        let of_memory = hints.get("memory").cloned().flatten().unwrap_or_default();
        let (mask, preferred) = match hint.affinity {
            Some(mask) => (mask, hint.preferred),
            None => {
                let found = best(&of_memory).ok_or(MemoryRefusal::NoNodes)?;
                if hint.preferred && !found.1 {
                    return Err(MemoryRefusal::NotPreferred);
                }
                found
            }
        };
        let mask = if satisfies(machine, mask, request) {
            mask
        } else {
            let wider: Vec<Hint> = of_memory
                .into_iter()
                .filter(|hint| hint.affinity.is_some_and(|wider| wider.and(mask) == mask))
                .collect();
            let (wider, is_preferred) = best(&wider).ok_or(MemoryRefusal::NotExtensible)?;
            if preferred && !is_preferred {
                return Err(MemoryRefusal::NotExtensiblePreferred);
            }
            wider
        };
        if breaks_group(machine, mask) {
            return Err(MemoryRefusal::Violates);
        }
        Ok(mask)
    }

    pub(super) fn reusable_of(&self, uid: &str) -> Reusable {
        let (owner, reusable) = &self.reusable;
        if owner == uid { reusable.clone() } else { Reusable::new() }
    }

    fn note_reusable(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let uid = pod.uid_str();
        let mut reusable = self.reusable_of(uid);
        let ends =
            pod.init_containers().filter(|c| !c.is_sidecar()).any(|c| c.name == container.name);
        for block in blocks {
            let mask = NumaMask::of(block.nodes.iter().copied());
            if ends {
                let left = reusable.entry(mask).or_default().entry(block.kind.clone()).or_default();
                *left = block.size.max(*left);
            } else if let Some(left) = reusable.get_mut(&mask).and_then(|r| r.get_mut(&block.kind))
            {
                *left = left.saturating_sub(block.size);
            }
        }
        self.reusable = (uid.to_owned(), reusable);
    }

    /// Removes from earlier init containers the memory that the container reuses.
    fn shrink_init(&mut self, pod: &Pod, container: &Container, blocks: &[Block]) {
        let uid = pod.uid_str();
        let earlier: Vec<&str> = earlier_init(pod, container).collect();
        for block in blocks {
            let mut wanted = block.size;
            for name in &earlier {
                let Some(held) = self.state.own.get_mut(uid).and_then(|own| own.get_mut(*name))
                else {
                    continue;
                };
                let same = |own: &&mut Block| {
                    own.kind == block.kind
                        && NumaMask::of(own.nodes.iter().copied())
                            == NumaMask::of(block.nodes.iter().copied())
                };
                for own in held.iter_mut().filter(same) {
                    let given = wanted.min(own.size);
                    own.size -= given;
                    wanted -= given;
                }
            }
        }
    }

    /// A container starts: earlier init containers of its pod have ended. Returns whether anything changed.
    pub fn started(&mut self, pod: &Pod, container: &Container) -> bool {
        let uid = pod.uid_str();
        let mut changed = false;
        for name in earlier_init(pod, container) {
            changed |= self.remove(uid, name);
        }
        changed
    }

    /// Releases a container's memory; false if it had none.
    pub fn remove(&mut self, uid: &str, container: &str) -> bool {
        if self.state.pods.contains_key(uid) {
            // The pod's memory stays together until its last container is gone.
            let had = self.state.remove(uid, container).is_some();
            if !self.state.own.contains_key(uid)
                && let Some(blocks) = self.state.pods.remove(uid)
            {
                release(&mut self.state.machine, &blocks);
            }
            return had;
        }
        let Some(blocks) = self.state.remove(uid, container) else { return false };
        release(&mut self.state.machine, &blocks);
        true
    }

    /// Releases the memory of pods for which `stays` is false. Returns whether anything changed.
    pub fn keep_only(&mut self, stays: &dyn Fn(&str) -> bool) -> bool {
        let held = self.state.own.iter().flat_map(|(uid, containers)| {
            containers.keys().map(|container| (uid.clone(), container.clone()))
        });
        let stale: Vec<(String, String)> = held.filter(|(uid, _)| !stays(uid)).collect();
        stale.iter().for_each(|(uid, container)| {
            self.remove(uid, container);
        });
        !stale.is_empty()
    }

    /// Topology hints for a container's memory.
    pub fn hints(&self, pod: &Pod, container: &Container) -> ResourceHints {
        let Some(request) = self.asked(pod, container).ok().filter(|_| self.cares(pod)) else {
            return ResourceHints::new();
        };
        let uid = pod.uid_str();
        match self.state.of(uid, &container.name) {
            Some(blocks) => held_hints(blocks, &request),
            None => feasible(&self.state.machine, &request, &self.reusable_of(uid)),
        }
    }

    /// Topology hints for the memory of a pod as a whole.
    pub fn pod_hints(&self, pod: &Pod) -> ResourceHints {
        if !self.cares(pod) {
            return ResourceHints::new();
        }
        if self.by_pod(pod) {
            return self.whole_hints(pod);
        }
        let Some(request) = asked_by_pod(pod) else { return ResourceHints::new() };
        if request.is_empty() {
            return ResourceHints::new();
        }
        let uid = pod.uid_str();
        let mut all =
            pod.init_containers().chain(pod.spec.iter().flat_map(|spec| &spec.containers));
        match all.find_map(|container| self.state.of(uid, &container.name)) {
            Some(blocks) => held_hints(blocks, &request),
            None => feasible(&self.state.machine, &request, &self.reusable_of(uid)),
        }
    }
}

impl StaticMemory {
    /// A container's own requests.
    pub(super) fn asked(&self, pod: &Pod, container: &Container) -> Result<Request, MemoryRefusal> {
        if self.by_pod(pod) && !is_guaranteed_alone(container) {
            return Ok(Request::new());
        }
        asked(container)
    }
}

/// One preferred hint per block; empty if the blocks differ from the request.
pub(super) fn held_hints(blocks: &[Block], request: &Request) -> ResourceHints {
    let same = |block: &Block| request.get(&block.kind) == Some(&block.size);
    if blocks.len() != request.len() || !blocks.iter().all(same) {
        return ResourceHints::new();
    }
    let hint = |block: &Block| Hint::new(NumaMask::of(block.nodes.iter().copied()), true);
    blocks.iter().map(|block| (block.kind.clone(), Some(vec![hint(block)]))).collect()
}

fn asked(container: &Container) -> Result<Request, MemoryRefusal> {
    let requests = side_of(container.resources.as_ref(), Side::Requests);
    requests
        .into_iter()
        .filter(|(kind, _)| is_memory(kind))
        .map(|(kind, amount)| {
            let bytes = amount.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
            bytes.map(|bytes| (kind, bytes)).ok_or(MemoryRefusal::NotBytes)
        })
        .collect()
}

/// The pod's request, of the kinds that a regular container requests.
fn asked_by_pod(pod: &Pod) -> Option<Request> {
    let (mut at_init, mut sidecars, mut regular) = (Request::new(), Request::new(), Request::new());
    for container in pod.init_containers() {
        for (kind, bytes) in asked(container).ok()? {
            let beside = sidecars.entry(kind.clone()).or_default();
            if container.is_sidecar() {
                *beside = beside.saturating_add(bytes);
            } else {
                let most = at_init.entry(kind).or_default();
                *most = beside.saturating_add(bytes).max(*most);
            }
        }
    }
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        for (kind, bytes) in asked(container).ok()? {
            let sum = regular.entry(kind).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let of = |list: &Request, kind: &str| list.get(kind).copied().unwrap_or_default();
    let whole = |(kind, bytes): (String, u64)| {
        let running = bytes.saturating_add(of(&sidecars, &kind));
        let bytes = running.max(of(&at_init, &kind));
        (kind, bytes)
    };
    Some(regular.into_iter().map(whole).collect())
}

/// Init containers that end before this container starts.
fn earlier_init<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = &'a str> {
    let before = pod.init_containers().take_while(move |c| c.name != container.name);
    before.filter(|c| !c.is_sidecar()).map(|c| c.name.as_str())
}

#[cfg(test)]
mod tests;
