//! Aligning what a container gets to NUMA nodes: masks, hints and the policies that merge them.
//!
//! Promises: same choice as upstream (`topologymanager`: `HintMerger`, the four policies, `NUMAInfo`) for the same
//! hints, whatever their order. Deliberately absent: where hints come from (`engine::cpus`, `engine::memory`, devices)
//! and who allocates.

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

    /// The hint of somebody who does not mind.
    pub const fn any() -> Self {
        Self { affinity: None, preferred: true }
    }
}

/// What the state files of CPUs and memory remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// What containers have.
    Containers,
    /// What containers and what pods as a whole have (gate PodLevelResourceManagers).
    Pods,
}

/// What one provider says, by resource name: `None` if it does not mind, an empty list if no allocation is possible.
pub type ResourceHints = BTreeMap<String, Option<Vec<Hint>>>;
