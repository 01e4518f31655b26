//! Fifth stage: the cgroup tree, and placement on CPUs, NUMA memory, devices and dynamic resources.

use super::StartContext;
use super::preflight::Preflight;
use super::runtime::Runtime;
use crate::allocatable::CgroupParts;
use crate::cluster::Cluster;
use crate::placement::{self, ChangedDevices, Placing, PlacingDeps};
use crate::resource_managers::ResourceManagers;
use crate::{AgentError, allocatable};
use ::resources::SystemCgroups;
use ports::{OnExit, PodCgroups};
use std::sync::Arc;

/// What pods are given of the machine.
pub(super) struct Resources {
    pub(super) cgroups: Arc<dyn PodCgroups>,
    pub(super) placing: Placing,
}

pub(super) async fn start(
    cx: &StartContext<'_>,
    accepted: &Preflight,
    runtime: &Runtime,
    cluster: &Cluster,
) -> Result<(Resources, ChangedDevices), AgentError> {
    let StartContext { config, tasks, roots, registry, .. } = cx;
    let (host, client) = (&accepted.host, &runtime.client);
    let resource_managers = ResourceManagers::start(config, host, roots, client, registry).await?;
    let how = CgroupParts {
        driver: runtime.driver,
        thresholds: &accepted.thresholds,
        lifts_quota: resource_managers.lifts_quota(config),
        pods: cx.listeners.pods.clone(),
        registry,
        events: &cluster.events,
    };
    let cgroups = allocatable::set_up(config, host, roots, how, tasks).await?;
    let system = SystemCgroups::new(
        Arc::clone(&host.cgroups),
        roots.proc.clone(),
        config.resources.kubelet_cgroups.clone(),
        config.resources.system_cgroups.clone(),
        config.node.oom_score_adj,
    )?;
    tasks.spawn("system-cgroups", OnExit::Fine, system.run(tasks.token()));
    resource_managers.reconcile(config, cx.listeners.pods.clone(), client.clone(), tasks);
    let running = placement::running(client).await;
    let (placing, changed) = Placing::start(
        config,
        roots,
        PlacingDeps {
            running,
            resource_managers: &resource_managers,
            pods: cx.listeners.pods.clone(),
            api: cluster.claims.clone(),
            node: cx.listeners.node_view.clone(),
            clock: Arc::clone(&cx.clock),
            registry,
            tasks,
        },
    )?;
    Ok((Resources { cgroups, placing }, changed))
}
