//! The start, stage by stage: what one stage returns the next ones take, so that the order is checked by
//! the compiler.
//!
//! ```text
//! host → runtime → preflight → cluster → resources → volumes → node → pods → certificate → protection → server
//! ```
//!
//! Owns: the order. Each stage is a file of its own. What can be had once (the sending half of a channel,
//! a receiver of requests) is moved into the one stage that uses it; handles are lent.

mod certificate;
mod channels;
mod cluster;
mod context;
mod host;
mod node;
mod own_metrics;
mod pods;
mod preflight;
mod protection;
mod resources;
mod runtime;
mod server;
mod volumes;

pub(crate) use context::StartContext;

use crate::AgentError;
use crate::watchdog::Check;
use ::pods::PodsHandle;
use ::resources::devices::Devices;
use ::server::HealthMetrics;
use config::Config;
use futures::future::BoxFuture;
use ports::Tasks;
use std::sync::Arc;
use telemetry::log::LogHandle;

/// What runs, for those who watch over it.
#[derive(Debug)]
pub(crate) struct Started {
    pods: PodsHandle,
    devices: Devices,
}

impl Started {
    /// Checks that must pass for the service manager to hear from us.
    pub(crate) fn checks(&self) -> Vec<(&'static str, Check)> {
        let pods = self.pods.clone();
        let check: Check = Arc::new(move || pods.check_loop());
        let devices = self.devices.clone();
        let plugins: Check = Arc::new(move || devices.check());
        vec![("syncloop", check), ("device-plugin", plugins)]
    }
}

/// Builds and starts everything. Tasks that were started before a fault are ended by the caller.
pub(crate) fn start<'a>(
    config: &'a Config,
    logs: LogHandle,
    health: Arc<HealthMetrics>,
    tasks: &'a Tasks,
) -> BoxFuture<'a, Result<Started, AgentError>> {
    Box::pin(all_stages(config, logs, health, tasks))
}

async fn all_stages(
    config: &Config,
    logs: LogHandle,
    health: Arc<HealthMetrics>,
    tasks: &Tasks,
) -> Result<Started, AgentError> {
    let (listeners, senders) = channels::open();
    let context = StartContext::new(config, tasks, listeners);
    let cx = &context;
    let host = host::read(cx)?;
    let runtime = runtime::connect(cx).await?;
    let accepted = preflight::check(cx, host, &runtime).await?;
    let host = &accepted.host;
    let (cluster, pod_sets) = cluster::join(cx, host, accepted.folders.clone()).await?;
    let (resources, changed_devices) = resources::start(cx, &accepted, &runtime, &cluster).await?;
    let volumes = volumes::start(cx, host, &cluster, &resources);
    let node = node::start(
        cx,
        senders.node_view,
        node::Inputs {
            host,
            runtime: &runtime,
            cluster: &cluster,
            resources: &resources,
            volumes: &volumes,
        },
    );
    let pods = pods::start(
        cx,
        pods::Inputs {
            accepted: &accepted,
            runtime: &runtime,
            cluster: &cluster,
            resources: &resources,
            volumes: &volumes,
            node: &node,
            pod_sets,
            published: senders.pods,
            changed_devices,
        },
    )
    .await?;
    let serving = certificate::start(cx, host, &cluster)?;
    let stats = protection::start(
        cx,
        protection::Inputs {
            accepted: &accepted,
            runtime: &runtime,
            cluster: &cluster,
            volumes: &volumes,
            pods: &pods,
            pressure: senders.pressure,
            shutting_down: senders.shutting_down,
            runtime_fault: senders.runtime_fault,
        },
    )?;
    server::start(
        cx,
        serving,
        server::Inputs { host, runtime, cluster, resources, volumes, pods, stats, logs, health },
    )
    .await
}
