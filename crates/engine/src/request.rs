//! CRI requests for pods: all that is sent to the runtime about a sandbox or container.
//!
//! Owns: the mapping of a pod to `PodSandboxConfig`, `ContainerConfig` and resource updates, the
//! files we make for containers (hosts file text), and the labels by which we recognise our own
//! containers again.
//!
//! Promises: field for field what the Go kubelet sends (`fixtures/golden/pods`), so that either
//! agent adopts the other's containers; deterministic, lists ordered.
//!
//! Deliberately absent: I/O. Config maps, secrets, files, bound `subPath`s, image users and id
//! ranges come in as values; what must be fetched first is answered by [`env::references`] and
//! [`mounts::sub_paths`].

mod amounts;
pub mod calls;
pub mod container;
pub mod dns;
pub mod downward;
pub mod env;
pub mod env_file;
mod error;
pub mod expand;
pub mod hostname;
pub mod hosts;
pub mod labels;
pub mod mounts;
pub(crate) mod names;
pub mod paths;
pub mod resources;
pub mod sandbox;
pub mod security;
mod services;

pub use container::{ContainerInput, container_config, create_container};
pub use error::RequestError;
pub use sandbox::{SandboxInput, run_sandbox, sandbox_config};

/// Settings of the node that requests depend on, resolved once.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSettings {
    /// The kubelet root directory.
    pub kubelet_root: String,
    /// Where pod logs are.
    pub pod_logs_dir: String,
    /// `clusterDomain`.
    pub cluster_domain: String,
    /// Whether `spec.hostnameOverride` counts.
    pub hostname_override: hostname::HostnameOverride,
    /// Whether `lifecycle.stopSignal` counts.
    pub stop_signals: bool,
    /// Whether SELinux is on.
    pub selinux_enabled: bool,
    /// How resources are written.
    pub resources: resources::ResourceSettings,
    /// Defaults of security contexts.
    pub security: security::SecuritySettings,
}
