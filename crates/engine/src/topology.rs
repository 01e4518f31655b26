//! Alignment of a container's resources to NUMA nodes: masks, hints and the policies that merge them.
//!
//! Promises: same choice as upstream (`topologymanager`: `HintMerger`, the four policies, `NUMAInfo`) for the same
//! hints, whatever their order. Deliberately absent: the hint providers (`engine::cpus`, `engine::memory`, devices)
//! and the allocation.

mod mask;
mod merge;
mod options;
pub mod outdated;

pub use mask::{NumaMask, masks_of};
pub use merge::{Numa, Policy, PolicyKind};
pub use options::{OptionFault, TopologyOptions};

use std::collections::BTreeMap;

/// One way to satisfy a request: from which NUMA nodes, and whether it needs as few as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hint {
    /// The nodes; `None` when it does not matter.
    pub affinity: Option<NumaMask>,
    /// No allocation could need fewer nodes.
    pub preferred: bool,
}

impl Hint {
    /// A hint for these nodes.
    pub fn new(affinity: NumaMask, preferred: bool) -> Self {
        Self { affinity: Some(affinity), preferred }
    }

    /// The hint of a provider without a preference.
    pub const fn any() -> Self {
        Self { affinity: None, preferred: true }
    }
}

/// The content of the state files of CPUs and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// Assignments of containers.
    Containers,
    /// Assignments of containers and of pods as a whole (gate PodLevelResourceManagers).
    Pods,
}

/// One provider's hints, by resource name: `None` without a preference, an empty list if no allocation is possible.
pub type ResourceHints = BTreeMap<String, Option<Vec<Hint>>>;
