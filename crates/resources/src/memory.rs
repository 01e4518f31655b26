//! The memory manager: memory of containers from particular NUMA nodes.
//!
//! Owns: the memory assignments and `memory_manager_state` (upstream: `memorymanager`). Decisions are in
//! `engine::memory`.
//!
//! Promises: the file is written before an allocation is returned; a change and its file are one atomic step for
//! other callers.

use crate::metrics::PlacementMetrics;
use crate::placement::{AllocateError, Provider};
use crate::state_file::{StateError, StateFile};
use api::core::v1::{Container, Pod};
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use engine::memory::checkpoint;
use engine::memory::{
    Block, MemoryAllocation, MemoryRefusal, MemorySetup, MemoryState, StaticMemory,
};
use engine::topology::{Entries, Hint, ResourceHints};
use ports::{ContainerExtras, PlacementError};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory manager policy.
#[derive(Debug, Clone)]
pub enum MemoryPolicy {
    /// From anywhere.
    None,
    /// From as few nodes as possible.
    Static(MemorySetup),
}

/// The memory manager; cheap to clone.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: StateFile,
    entries: Entries,
    held: Mutex<Held>,
    /// Allocatable memory at start.
    allocatable: Vec<Block>,
    metrics: PlacementMetrics,
}

#[derive(Debug)]
enum Held {
    /// The policy `None` changes nothing; an existing file's content applies.
    None(MemoryState),
    Static(StaticMemory),
}

impl Held {
    fn state(&self) -> &MemoryState {
        match self {
            Self::None(state) => state,
            Self::Static(memory) => memory.state(),
        }
    }

    fn policy(&self) -> &'static str {
        match self {
            Self::None(_) => "None",
            Self::Static(_) => "Static",
        }
    }
}

impl Memory {
    /// Whether the policy accepts this setup; nothing is read or written.
    pub fn check(setup: MemorySetup) -> Result<(), StateError> {
        StaticMemory::new(setup).map(drop).map_err(|e| StateError::Policy(e.0))
    }

    /// Restores the state file in `dir`, or starts empty.
    pub fn start(
        policy: MemoryPolicy,
        (dir, entries): (&Path, Entries),
        metrics: PlacementMetrics,
    ) -> Result<Self, StateError> {
        let file = StateFile::new(dir, "memory");
        let fault = |e: engine::memory::MemoryFault| StateError::Policy(e.0);
        let mut held = match policy {
            MemoryPolicy::None => Held::None(MemoryState::default()),
            MemoryPolicy::Static(setup) => Held::Static(StaticMemory::new(setup).map_err(fault)?),
        };
        let known = match file.read()? {
            Some(text) => {
                let decoded = checkpoint::decode(&text, held.policy(), entries);
                Some(decoded.map_err(|fault| file.unusable(fault.0))?)
            }
            None => None,
        };
        let restored = known.clone().unwrap_or_default();
        let allocatable = match &mut held {
            Held::None(state) => {
                *state = restored;
                Vec::new()
            }
            Held::Static(memory) => {
                memory.restore(restored).map_err(|e| file.unfit(e.0))?;
                memory.allocatable()
            }
        };
        // The file is written only if it differs.
        if known.as_ref() != Some(held.state()) {
            file.write(&checkpoint::encode(held.policy(), held.state(), entries));
        }
        let held = Mutex::new(held);
        Ok(Self { inner: Arc::new(Inner { file, entries, held, allocatable, metrics }) })
    }

    /// A container's memory blocks.
    pub fn own(&self, uid: &str, container: &str) -> Vec<Block> {
        self.inner.held().state().of(uid, container).cloned().unwrap_or_default()
    }

    /// Allocatable memory at start.
    pub fn allocatable(&self) -> &[Block] {
        &self.inner.allocatable
    }

    /// Runs a change and writes its file on a blocking thread; `None` under the policy `None`.
    async fn change<T, F>(&self, change: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut StaticMemory, &PlacementMetrics) -> T + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let work = move || {
            let mut held = inner.held();
            let Held::Static(memory) = &mut *held else { return None };
            let before = memory.state().clone();
            let result = change(memory, &inner.metrics);
            if *memory.state() != before {
                inner.file.write(&checkpoint::encode("Static", memory.state(), inner.entries));
            }
            Some(result)
        };
        match sys::blocking::run(work).await {
            Ok(result) => result,
            Err(error) => {
                tracing::error!(err = %error, "memory state was not changed");
                None
            }
        }
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(refusal: &MemoryRefusal) -> AllocateError {
    match refusal.reason() {
        Some(reason) => AllocateError::Refused { reason, message: refusal.to_string() },
        None => AllocateError::Failed(refusal.to_string()),
    }
}

#[async_trait]
impl Provider for Memory {
    async fn forget_all_but(&self, active: &BTreeSet<PodUid>) {
        let active = active.clone();
        self.change(move |memory, _| {
            if memory.keep_only(&|uid| active.contains(&PodUid::from(uid))) {
                tracing::info!("removed stale memory state of pods that are gone");
            }
        })
        .await;
    }

    async fn hints(&self, pod: &Arc<Pod>, container: &Container) -> ResourceHints {
        match &*self.inner.held() {
            Held::None(_) => ResourceHints::new(),
            Held::Static(memory) => memory.hints(pod, container),
        }
    }

    async fn pod_hints(&self, pod: &Arc<Pod>) -> ResourceHints {
        match &*self.inner.held() {
            Held::None(_) => ResourceHints::new(),
            Held::Static(memory) => memory.pod_hints(pod),
        }
    }

    async fn allocate(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        affinity: Hint,
    ) -> Result<(), AllocateError> {
        let (pod, container) = (Arc::clone(pod), container.clone());
        let allocate = move |memory: &mut StaticMemory, metrics: &PlacementMetrics| {
            if !memory.cares(&pod) {
                return Ok(());
            }
            metrics.memory_requests.inc(&[]);
            let result = memory.allocate(&pod, &container, affinity).inspect_err(|_| {
                metrics.memory_errors.inc(&[]);
                metrics.by_source(|m| m.allocation_errors.inc(&["memory", "node"]));
            })?;
            if result == MemoryAllocation::Taken {
                let kinds = memory.state().of(pod.uid_str(), &container.name).map_or(0, Vec::len);
                metrics.by_source(|m| {
                    for _ in 0..kinds {
                        m.allocations.inc(&["memory", "node"]);
                    }
                    m.assignments.inc(&["memory", "node_exclusive"]);
                });
            }
            Ok(())
        };
        let result = self.change(allocate).await.unwrap_or(Ok(()));
        result.map_err(|refusal| refused(&refusal))
    }

    async fn allocate_pod(&self, pod: &Arc<Pod>, affinity: Hint) -> Result<(), AllocateError> {
        let pod = Arc::clone(pod);
        let allocate = move |memory: &mut StaticMemory, metrics: &PlacementMetrics| {
            if !memory.cares(&pod) {
                return Ok(());
            }
            metrics.memory_requests.inc(&[]);
            let taken = memory.allocate_pod(&pod, affinity).inspect_err(|_| {
                metrics.memory_errors.inc(&[]);
                metrics.by_source(|m| m.allocation_errors.inc(&["memory", "pod"]));
            })?;
            if taken.result == MemoryAllocation::Taken {
                for _ in 0..taken.exclusive {
                    metrics.memory_requests.inc(&[]);
                }
                metrics.count_pod("memory", taken.exclusive, taken.shared);
            }
            Ok(())
        };
        let result = self.change(allocate).await.unwrap_or(Ok(()));
        result.map_err(|refusal| refused(&refusal))
    }

    async fn extras(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        extras: &mut ContainerExtras,
    ) -> Result<(), PlacementError> {
        let held = self.inner.held();
        let blocks = held.state().of(pod.uid_str(), &container.name).into_iter().flatten();
        let nodes: BTreeSet<u32> = blocks.flat_map(|block| block.nodes.iter().copied()).collect();
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        extras.cpuset_mems = nodes.join(",");
        Ok(())
    }

    async fn created(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        _id: &str,
    ) -> Result<(), PlacementError> {
        let (pod, container) = (Arc::clone(pod), container.clone());
        self.change(move |memory, _| memory.started(&pod, &container)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
