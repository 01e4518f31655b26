//! Pods that use more local storage than they may (upstream: `localStorageEviction`).

use super::rank::is_local;
use super::{FsLayout, PodUsage};
use crate::resources::{Side, pod_limits, side_of};
use api::core::v1::Pod;
use units::Quantity;

/// What was exceeded: the metric's signal and the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// `emptydirfs.limit`, `ephemeralpodfs.limit` or `ephemeralcontainerfs.limit`.
    pub signal: &'static str,
    /// Message of event and status.
    pub message: String,
}

/// Whether the pod has a limit that it could exceed.
pub fn is_limited(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let sized = |volume: &api::core::v1::Volume| {
        volume.empty_dir.as_ref().is_some_and(|empty| empty.size_limit.is_some())
    };
    let limited = |container: &api::core::v1::Container| {
        side_of(container.resources.as_ref(), Side::Limits).contains_key("ephemeral-storage")
    };
    spec.volumes.iter().flatten().any(sized)
        || spec.containers.iter().any(limited)
        || pod_limits(pod).contains_key("ephemeral-storage")
}

/// The first limit that the pod exceeds.
pub fn exceeded(pod: &Pod, usage: &PodUsage, layout: FsLayout) -> Option<Exceeded> {
    empty_dir(pod, usage)
        .or_else(|| whole_pod(pod, usage))
        .or_else(|| container(pod, usage, layout))
}

fn empty_dir(pod: &Pod, usage: &PodUsage) -> Option<Exceeded> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    volumes.iter().find_map(|volume| {
        let limit: Quantity = volume.empty_dir.as_ref()?.size_limit.as_ref()?.0.parse().ok()?;
        let used = usage.volumes.get(&volume.name)?.bytes?;
        let over = limit > Quantity::ZERO && bytes(used) > limit;
        over.then(|| Exceeded {
            signal: "emptydirfs.limit",
            message: format!(
                "Usage of EmptyDir volume \"{}\" exceeds the limit \"{limit}\". ",
                volume.name
            ),
        })
    })
}

fn whole_pod(pod: &Pod, usage: &PodUsage) -> Option<Exceeded> {
    let limit = *pod_limits(pod).get("ephemeral-storage")?;
    let used = usage.ephemeral.or_else(|| Some(sum(pod, usage)))?;
    (bytes(used) > limit).then(|| Exceeded {
        signal: "ephemeralpodfs.limit",
        message: format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ),
    })
}

fn container(pod: &Pod, usage: &PodUsage, layout: FsLayout) -> Option<Exceeded> {
    let containers = &pod.spec.as_ref()?.containers;
    usage.containers.iter().find_map(|used| {
        let container = containers.iter().find(|c| c.name == used.name)?;
        let limits = side_of(container.resources.as_ref(), Side::Limits);
        let limit = *limits.get("ephemeral-storage").filter(|q| !q.is_zero())?;
        let mut total = used.logs.bytes.unwrap_or_default();
        if layout == FsLayout::One {
            total = total.saturating_add(used.root_fs.bytes.unwrap_or_default());
        }
        (bytes(total) > limit).then(|| Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
                used.name
            ),
        })
    })
}

/// Writable layers, logs and local volumes together.
fn sum(pod: &Pod, usage: &PodUsage) -> u64 {
    let containers = usage.containers.iter().flat_map(|c| [c.root_fs.bytes, c.logs.bytes]);
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    let local = volumes.into_iter().flatten().filter(|v| is_local(v) && v.host_path.is_none());
    let local = local.map(|v| usage.volumes.get(&v.name).and_then(|u| u.bytes));
    containers.chain(local).flatten().fold(0, u64::saturating_add)
}

fn bytes(value: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(value).unwrap_or(i64::MAX))
}
