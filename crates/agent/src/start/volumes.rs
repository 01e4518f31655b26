//! Sixth stage: volumes, and the folder in which plugins of every kind register.

use super::StartContext;
use super::resources::Resources;
use crate::cluster::Cluster;
use crate::host::Host;
use crate::settings;
use ::volumes::{PluginHandlers, VolumeMetrics, VolumesDeps, VolumesHandle};
use std::sync::Arc;

pub(super) fn start(
    cx: &StartContext<'_>,
    host: &Host,
    cluster: &Cluster,
    resources: &Resources,
) -> VolumesHandle {
    let StartContext { config, tasks, roots, .. } = cx;
    let volumes = ::volumes::start(
        settings::volumes(config, host, roots),
        VolumesDeps {
            pods: cx.listeners.pods.clone(),
            objects: Arc::clone(&cluster.objects),
            storage: cluster.storage.clone(),
            events: Arc::clone(&cluster.events),
            node: cx.listeners.node_view.clone(),
            clock: Arc::clone(&cx.clock),
            metrics: VolumeMetrics::new(&cx.registry),
            tasks: (*tasks).clone(),
        },
    );
    let placing = &resources.placing;
    let plugins = PluginHandlers::from([
        ("CSIPlugin".to_owned(), volumes.csi_plugins()),
        ("DevicePlugin".to_owned(), Arc::new(placing.devices.clone())),
        ("DRAPlugin".to_owned(), Arc::new(placing.claims.clone())),
    ]);
    volumes.watch_plugins(roots.kubelet.join("plugins_registry"), plugins, tasks);
    volumes
}
