//! Last stage: everybody who can be asked: the explain socket, the pods socket, the node's API.

use super::certificate::Serving;
use super::own_metrics;
use super::pods::Pods;
use super::resources::Resources;
use super::runtime::Runtime;
use super::{StartContext, Started};
use crate::cluster::Cluster;
use crate::explain::Story;
use crate::host::Host;
use crate::{AgentError, iptables, runtime, settings};
use ::server::{CheckpointQuota, HealthMetrics, ServerDeps, ServerError, Sessions};
use ::volumes::VolumesHandle;
use config::Config;
use stats::StatsHandle;
use std::sync::Arc;
use telemetry::log::LogHandle;

/// Whom the callers are told of.
pub(super) struct Inputs<'a> {
    pub(super) host: &'a Host,
    pub(super) runtime: Runtime,
    pub(super) cluster: Cluster,
    pub(super) resources: Resources,
    pub(super) volumes: VolumesHandle,
    pub(super) pods: Pods,
    pub(super) stats: StatsHandle,
    pub(super) logs: LogHandle,
    pub(super) health: Arc<HealthMetrics>,
}

pub(super) async fn start(
    cx: &StartContext<'_>,
    serving: Serving,
    inputs: Inputs<'_>,
) -> Result<Started, AgentError> {
    let StartContext { config, tasks, clock, roots, .. } = cx;
    let Inputs { host, runtime: Runtime { client, driver }, cluster, resources, .. } = inputs;
    let Pods { handle: pods, images, .. } = inputs.pods;
    let started = Started { pods: pods.clone(), devices: resources.placing.devices };
    own_metrics::register(cx, host.cgroups.is_v2(), &inputs.health);
    runtime::measure_slow_calls(&cx.registry, client.clone());
    let story = Story {
        pods: pods.clone(),
        volumes: inputs.volumes,
        devices: started.devices.clone(),
        cgroups: resources.cgroups,
        images,
        runtime: client.clone(),
        clock: Arc::clone(clock),
    };
    ::server::serve_explain(Arc::new(story), &roots.rubelet(), tasks);
    if settings::serves_pods_socket(config) {
        ::server::serve_pods(Arc::new(pods.clone()), &roots.kubelet.join("pods-api"), tasks)?;
    }
    free_of_health(config)?;
    let deps = ServerDeps {
        pods: Arc::new(pods),
        runtime: client,
        stats: Arc::new(inputs.stats),
        started: cx.began.as_second(),
        metrics: cx.registry.clone(),
        probe_metrics: cx.probe_registry.clone(),
        configz: configz(config, driver),
        version: shown_version(config),
        flags: config.flagz(),
        logs: inputs.logs,
        roots: roots.clone(),
        checks: started.checks(),
        health: inputs.health,
        clock: Arc::clone(clock),
        tasks: (*tasks).clone(),
        checkpoints: CheckpointQuota::new(config.opt_ins.checkpoint_limit),
        sessions: Sessions::default(),
    };
    let Serving { settings, certificate } = serving;
    let listening = ::server::start(settings, certificate, deps, cluster.reviews, tasks);
    listening.await.map_err(|error| match error {
        ServerError::Listen { address, source } => AgentError::Listen(format!(
            "listen tcp {address}: bind: {}",
            units::errno::go_text(&source)
        )),
        other => AgentError::Server(other),
    })?;
    if config.node.make_iptables_util_chains {
        let token = tasks.token();
        tasks.spawn_anew("iptables", move || iptables::run(token.clone()));
    }
    Ok(started)
}

/// Upstream's health endpoint is open before its servers are: one that wants the same port ends the
/// start, while the health endpoint would only be tried again.
fn free_of_health(config: &Config) -> Result<(), AgentError> {
    let Some(health) = config.server.healthz else { return Ok(()) };
    let every = |ip: std::net::IpAddr| ip.is_unspecified();
    let taken = [config.server.https, config.server.read_only].into_iter().flatten().find(|at| {
        let same = at.ip() == health.ip() || every(at.ip()) || every(health.ip());
        same && at.port() == health.port()
    });
    taken.map_or(Ok(()), |at| {
        Err(AgentError::Listen(format!("listen tcp {at}: bind: address already in use")))
    })
}

/// The version that `--version` has set, or the one that this kubelet stands in for.
fn shown_version(config: &Config) -> String {
    match config.version.as_str() {
        units::release::REPORTED_VERSION => units::release::KUBERNETES_VERSION.to_owned(),
        set => set.to_owned(),
    }
}

/// The configuration in force: with the driver that the runtime named.
fn configz(config: &Config, driver: engine::cgroup::Driver) -> String {
    config.configz(match driver {
        engine::cgroup::Driver::Cgroupfs => "cgroupfs",
        engine::cgroup::Driver::Systemd => "systemd",
    })
}
