//! Devices of device plugins: their assignments, the choice of devices, and the node's extended resources.
//!
//! Owns: every decision about devices (upstream: `devicemanager.ManagerImpl`, `podDevices`) and the form of their
//! checkpoint. Promises: same choices as upstream where it has an order, ascending ids where it has none.
//!
//! Deliberately absent: calls to plugins, files, clocks (times are durations since the agent started).

mod answers;
pub mod checkpoint;
mod choose;
mod hints;
mod names;
mod state;

pub use answers::DeviceAdditions;
pub use choose::{Choice, Question, Request};
pub use names::is_extended_resource;
pub use state::{Amounts, DeviceState, GRACE, Held, PluginOptions};

use std::collections::{BTreeMap, BTreeSet};

/// Ids of devices.
pub type DeviceIds = BTreeSet<String>;

/// Devices of one container by resource, each with the NUMA nodes it is on.
pub type DevicesOf = BTreeMap<String, BTreeMap<String, Vec<i64>>>;

/// One device as its plugin reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its id, unique within the resource.
    pub id: String,
    /// `Healthy`, `Unhealthy` or anything else, which counts as unhealthy.
    pub healthy: bool,
    /// NUMA nodes; `None` if the plugin says nothing about them.
    pub nodes: Option<Vec<i64>>,
}

impl Device {
    fn has_topology(&self) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| !nodes.is_empty())
    }

    fn nodes(&self) -> &[i64] {
        self.nodes.as_deref().unwrap_or_default()
    }
}

/// Why devices cannot be allocated. Display is upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The container has another number of devices than it requests.
    #[error(
        "pod {uid:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    Changed {
        /// Of the pod.
        uid: String,
        /// Name.
        container: String,
        /// Name.
        resource: String,
        /// What it has.
        from: usize,
        /// What it requests.
        to: usize,
    },
    /// No plugin ever offered the resource.
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    /// The plugin is gone or has no healthy device.
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    /// The container's devices are unhealthy or their plugin has not registered again.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    NoLongerHealthy(String),
    /// Too few are free.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        /// Name.
        resource: String,
        /// How many more are needed.
        requested: usize,
        /// How many are free.
        available: usize,
    },
    /// Fewer devices could be taken than were counted as available.
    #[error(
        "unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}"
    )]
    TooFew {
        /// How many.
        requested: usize,
        /// How many there were.
        got: usize,
    },
}

#[cfg(test)]
mod tests;
