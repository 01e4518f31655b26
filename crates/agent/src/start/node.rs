//! Seventh stage: the node object, its heart-beats, and whether the runtime is healthy.

use super::StartContext;
use super::resources::Resources;
use super::runtime::Runtime;
use crate::cluster::Cluster;
use crate::host::Host;
use crate::{eviction_and_shutdown, runtime, settings};
use ::node::{NodeHandle, NodeInputs, NodeParts};
use ::volumes::VolumesHandle;
use ports::NodeView;
use std::sync::Arc;
use tokio::sync::watch;

/// Whom the node tells of.
pub(super) struct Inputs<'a> {
    pub(super) host: &'a Host,
    pub(super) runtime: &'a Runtime,
    pub(super) cluster: &'a Cluster,
    pub(super) resources: &'a Resources,
    pub(super) volumes: &'a VolumesHandle,
}

pub(super) fn start(
    cx: &StartContext<'_>,
    view: watch::Sender<Arc<NodeView>>,
    inputs: Inputs<'_>,
) -> NodeHandle {
    let Inputs { host, runtime: Runtime { client, .. }, cluster, resources, volumes } = inputs;
    let StartContext { config, tasks, listeners, .. } = cx;
    let node = ::node::start(
        settings::node(config, host, &cx.roots),
        NodeParts {
            connection: cluster.connection.clone(),
            runtime: Arc::new(client.clone()),
            inputs: NodeInputs {
                volumes: volumes.watch_facts(tasks),
                devices: resources.placing.devices.facts(),
                pressure: listeners.pressure.clone(),
                shutting_down: listeners.shutting_down.clone(),
                runtime_fault: listeners.runtime_fault.clone(),
                soft_warning: watch::channel(eviction_and_shutdown::soft_warning(host)).1,
                slow_calls: runtime::slow_calls(config, client, tasks),
            },
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(&cx.clock),
            view,
        },
        tasks,
    );
    node.measure(&cx.registry);
    node
}
