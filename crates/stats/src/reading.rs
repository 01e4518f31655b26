//! One look at everything that runs.

use api::stats::PodReference;
use jiff::Timestamp;
use std::collections::BTreeMap;
use sys::stats::{CgroupUsage, InterfaceUsage};

/// All cgroups, sandboxes and running containers at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    pub(crate) at: Timestamp,
    /// By path below the hierarchy's root, `/` first.
    pub(crate) cgroups: BTreeMap<String, CgroupReading>,
    pub(crate) pods: Vec<PodReading>,
    pub(crate) host_network: Vec<InterfaceUsage>,
}

impl Reading {
    /// The cgroup at a path, if there is one.
    pub(crate) fn cgroup(&self, path: Option<&String>) -> Option<&CgroupReading> {
        self.cgroups.get(path?)
    }
}

/// One cgroup.
#[derive(Debug, Clone, Default)]
pub(crate) struct CgroupReading {
    pub(crate) usage: CgroupUsage,
    /// CPU use lately.
    pub(crate) nano_cores: u64,
    /// The soft limit of open files of its first process; -1 is unlimited.
    pub(crate) soft_open_files: Option<f64>,
}

/// One sandbox with its running containers.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodReading {
    pub(crate) reference: PodReference,
    pub(crate) sandbox_id: String,
    pub(crate) ready: bool,
    pub(crate) created_ns: i64,
    /// The pod's cgroup.
    pub(crate) cgroup: Option<String>,
    /// The cgroup of the sandbox's own process.
    pub(crate) sandbox_cgroup: Option<String>,
    pub(crate) network: Vec<InterfaceUsage>,
    /// What the runtime says of the pod, where it is asked instead of the kernel.
    pub(crate) told: Option<cri::api::LinuxPodSandboxStats>,
    pub(crate) containers: Vec<ContainerReading>,
}

/// One running container.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerReading {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) created_ns: i64,
    pub(crate) cgroup: Option<String>,
    pub(crate) runtime: Option<cri::api::ContainerStats>,
}
