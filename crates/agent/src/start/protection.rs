//! Tenth stage: usage is measured, and the node protects itself: eviction, the kernel's kills, shutdown.

use super::StartContext;
use super::pods::Pods;
use super::preflight::Preflight;
use super::runtime::Runtime;
use crate::cluster::Cluster;
use crate::reclaim::Leftovers;
use crate::{AgentError, eviction_and_shutdown, settings};
use ::node::{
    Eviction, EvictionMetrics, EvictionParts, OomWatch, Shutdown, ShutdownMetrics, ShutdownParts,
};
use ::volumes::VolumesHandle;
use ports::{OnExit, PressureCondition};
use stats::{StatsDeps, StatsHandle};
use std::sync::Arc;
use tokio::sync::watch;

/// Whom it reads, and whom it tells.
pub(super) struct Inputs<'a> {
    pub(super) accepted: &'a Preflight,
    pub(super) runtime: &'a Runtime,
    pub(super) cluster: &'a Cluster,
    pub(super) volumes: &'a VolumesHandle,
    pub(super) pods: &'a Pods,
    pub(super) pressure: watch::Sender<Vec<PressureCondition>>,
    pub(super) shutting_down: watch::Sender<bool>,
    pub(super) runtime_fault: watch::Sender<Option<String>>,
}

pub(super) fn start(cx: &StartContext<'_>, inputs: Inputs<'_>) -> Result<StatsHandle, AgentError> {
    let StartContext { config, tasks, clock, roots, registry, .. } = cx;
    let Inputs { accepted, runtime, cluster, volumes, pods, .. } = inputs;
    let (host, pods) = (&accepted.host, (&pods.handle, &pods.collector));
    let (pods, collector) = pods;
    let usage = stats::start(
        settings::stats(config, host, roots, runtime.driver, api::stats::Moment(cx.began)),
        StatsDeps {
            runtime: runtime.client.clone(),
            volumes: Arc::new(volumes.clone()),
            clock: Arc::clone(clock),
        },
        tasks,
    );
    let faults =
        eviction_and_shutdown::view_faults(pods.view_health(), inputs.runtime_fault, tasks.token());
    tasks.spawn("view-faults", OnExit::Fine, faults);
    let eviction = Eviction::new(
        eviction_and_shutdown::eviction(
            config,
            host,
            roots,
            runtime.driver,
            accepted.thresholds.clone(),
        ),
        EvictionParts {
            stats: Arc::new(usage.clone()),
            pods: Arc::new(pods.clone()),
            reclaim: Arc::new(Leftovers { pods: pods.clone(), images: Arc::clone(collector) }),
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(clock),
            metrics: EvictionMetrics::new(registry),
            pressure: inputs.pressure,
        },
    );
    tasks.spawn("eviction", OnExit::Fine, eviction.run(tasks.token()));
    if let Some(log) = eviction_and_shutdown::kernel_log(config, roots)? {
        let mut watch = OomWatch::new(log, Arc::clone(&cluster.events), Arc::clone(&host.cgroups));
        if config.opt_ins.oom_events {
            watch = watch.telling(Arc::new(pods.clone()));
        }
        tasks.spawn("oom-watch", OnExit::Fine, watch.run(tasks.token()));
    }
    let shutdown = Shutdown::new(
        eviction_and_shutdown::shutdown(config, roots),
        ShutdownParts {
            pods: Arc::new(pods.clone()),
            volumes: Arc::new(volumes.clone()),
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(clock),
            metrics: settings::keeps_shutdown_times(config).then(|| ShutdownMetrics::new(registry)),
            shutting_down: inputs.shutting_down,
            tasks: (*tasks).clone(),
        },
    );
    tasks.spawn("shutdown", OnExit::Fine, shutdown.run());
    Ok(usage)
}
