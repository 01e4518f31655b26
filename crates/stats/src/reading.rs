//! One reading of everything that runs.

use api::stats::PodReference;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use sys::stats::{CgroupUsage, InterfaceUsage};

/// Counters of network devices.
pub(crate) type Interfaces = Arc<[InterfaceUsage]>;

/// All cgroups, sandboxes and running containers at one point in time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    pub(crate) at: Timestamp,
    /// By path below the hierarchy's root, `/` first.
    pub(crate) cgroups: BTreeMap<Arc<str>, CgroupReading>,
    pub(crate) pods: Vec<PodReading>,
    pub(crate) host_network: Interfaces,
}

impl Reading {
    /// The cgroup at a path, if there is one.
    pub(crate) fn cgroup(&self, path: Option<&Arc<str>>) -> Option<&CgroupReading> {
        self.cgroups.get(path?)
    }
}

/// One cgroup.
#[derive(Debug, Clone, Default)]
pub(crate) struct CgroupReading {
    pub(crate) usage: Arc<CgroupUsage>,
    /// The current CPU use.
    pub(crate) nano_cores: u64,
    /// The soft limit of open files of its first process; -1 is unlimited.
    pub(crate) soft_open_files: Option<f64>,
}

/// One sandbox with its running containers.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodReading {
    pub(crate) reference: PodReference,
    pub(crate) sandbox_id: String,
    /// The runtime handler of the sandbox.
    pub(crate) handler: String,
    pub(crate) ready: bool,
    pub(crate) created_ns: i64,
    /// The pod's cgroup.
    pub(crate) cgroup: Option<Arc<str>>,
    /// The cgroup of the sandbox's own process.
    pub(crate) sandbox_cgroup: Option<Arc<str>>,
    /// Since when nothing in the pod's cgroup has run, if known.
    pub(crate) quiet_since: Option<Timestamp>,
    pub(crate) network: Interfaces,
    /// The runtime's stats of the pod, where they are used instead of the kernel's.
    pub(crate) cri_stats: Option<cri::api::LinuxPodSandboxStats>,
    pub(crate) containers: Vec<ContainerReading>,
}

/// One running container.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerReading {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) created_ns: i64,
    pub(crate) cgroup: Option<Arc<str>>,
    pub(crate) runtime: Option<cri::api::ContainerStats>,
}
