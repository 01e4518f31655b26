//! Fourth stage: the way to the API server, or its stand-ins; from here on faults can be told as events.

use super::StartContext;
use crate::AgentError;
use crate::cluster::{Cluster, PodSets};
use crate::host::Host;
use ports::{EventSeverity, EventTarget, Events, NodeEvent};

pub(super) async fn join(
    cx: &StartContext<'_>,
    host: &Host,
    folders: Result<(), String>,
) -> Result<(Cluster, PodSets), AgentError> {
    let (view, clock) = (&cx.listeners.node_view, &cx.clock);
    let (cluster, pod_sets) =
        Cluster::join(cx.config, host, view, (clock, &cx.registry), cx.tasks).await?;
    let events = &*cluster.events;
    tell(events, EventSeverity::Normal, "Starting", "Starting kubelet.".to_owned());
    if let Err(fault) = folders {
        tell(events, EventSeverity::Warning, "KubeletSetupFailed", fault.clone());
        return Err(AgentError::Folders(fault));
    }
    if !host.cgroups.is_v2() {
        tell(events, EventSeverity::Warning, "CgroupV1", CGROUP_V1.to_owned());
    }
    Ok((cluster, pod_sets))
}

/// Tells something about the node.
fn tell(events: &dyn Events, severity: EventSeverity, reason: &'static str, message: String) {
    events.emit(NodeEvent { target: EventTarget::Node, severity, reason, message });
}

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
     future release. Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
