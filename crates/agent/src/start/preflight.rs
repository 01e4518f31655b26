//! Third stage: everything that this machine, runtime and configuration can be refused for together; then the
//! folders, and the limits of this process.

use super::StartContext;
use super::runtime::Runtime;
use crate::host::Host;
use crate::startup_checks::{self, Accepted};
use crate::{AgentError, layout, runtime, settings};
use ::images::ProviderSetup;
use config::Config;
use engine::eviction::Threshold;
use ports::Roots;

/// A configuration that can be started with on this machine.
pub(super) struct Preflight {
    pub(super) host: Host,
    /// All eviction thresholds.
    pub(super) thresholds: Vec<Threshold>,
    /// The plugins that know registries.
    pub(super) providers: Option<ProviderSetup>,
    /// Whether the folders could be made; a fault is told as an event before it ends the start.
    pub(super) folders: Result<(), String>,
}

pub(super) async fn check(
    cx: &StartContext<'_>,
    mut host: Host,
    runtime: &Runtime,
) -> Result<Preflight, AgentError> {
    let StartContext { config, roots, .. } = cx;
    let Accepted { thresholds, providers } = startup_checks::check(config, &host, roots)?;
    let host_network_users = settings::user_namespaces_on_host_network(config)
        && runtime::user_namespaces_on_host_network(&runtime.client).await;
    host.declared_features = settings::declared_features(config, host_network_users);
    let folders = layout::make(&config.flags.root_dir, roots, settings::checkpoints(config));
    if folders.is_ok() {
        share_root(roots);
    }
    own_process(config, roots);
    Ok(Preflight { host, thresholds, providers, folders })
}

/// Makes mounts below the root directory visible to containers that ask for it.
fn share_root(roots: &Roots) {
    if let Err(error) = sys::propagation::make_shared(&roots.kubelet, &roots.proc) {
        tracing::warn!(err = %error, path = %roots.kubelet.display(), "root directory is not a shared mount; mount propagation will not work");
    }
}

/// OOM score and file limit of this process; what is not allowed is only logged.
fn own_process(config: &Config, roots: &Roots) {
    if let Err(error) = sys::process::set_own_oom_score(&roots.proc, config.node.oom_score_adj) {
        tracing::info!(err = %error.source, "Failed to ApplyOOMScoreAdj");
    }
    if let Err(error) = sys::process::set_open_files_limit(config.node.max_open_files) {
        tracing::info!(err = %error, "Failed to set rlimit on max file handles");
    }
    if !sys::process::is_root() {
        tracing::error!("Kubelet running with insufficient permissions");
    }
}
