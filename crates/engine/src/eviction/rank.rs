//! The order in which pods are evicted.

use super::threshold::Signal;
use super::{FsLayout, FsUsage, PodUsage, PodUsages};
use crate::resources::compared_request;
use api::core::v1::{Pod, Volume};
use api::pod::PodExt;
use std::cmp::Reverse;

/// Indexes of the pods in the order of eviction.
pub fn rank(signal: Signal, layout: FsLayout, pods: &[&Pod], usages: &PodUsages) -> Vec<usize> {
    let mut keyed: Vec<(Key, usize)> = pods
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            let uid = pod.uid_str();
            (key(signal, layout, pod, usages.get(uid)), index)
        })
        .collect();
    keyed.sort();
    keyed.into_iter().map(|(_, index)| index).collect()
}

/// Sort key, smallest evicted first: pods without stats, then those above their request, of low priority, of high
/// usage. When process ids are short, the first two are ignored.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    has_stats: bool,
    within_request: bool,
    priority: i32,
    excess: Reverse<i128>,
}

fn key(signal: Signal, layout: FsLayout, pod: &Pod, usage: Option<&PodUsage>) -> Key {
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or_default();
    if signal.resource() == "pids" {
        // Priority comes first here, and only among equals a pod without stats.
        let excess = usage.map_or(i128::MAX, |usage| use_and_request(signal, layout, pod, usage).0);
        return Key { has_stats: true, within_request: true, priority, excess: Reverse(excess) };
    }
    let Some(usage) = usage else {
        return Key { has_stats: false, within_request: false, priority, excess: Reverse(0) };
    };
    let (amount, requested) = use_and_request(signal, layout, pod, usage);
    let excess = match signal.resource() {
        "memory" => amount - requested,
        // Upstream subtracts the storage request from inodes as well.
        _ => amount - i128::from(compared_request(pod, "ephemeral-storage").value()),
    };
    let within_request = amount <= requested;
    Key { has_stats: true, within_request, priority, excess: Reverse(excess) }
}

/// A pod's usage and request of the starved resource.
pub(super) fn use_and_request(
    signal: Signal,
    layout: FsLayout,
    pod: &Pod,
    usage: &PodUsage,
) -> (i128, i128) {
    let resource = signal.resource();
    let used = match resource {
        "memory" => usage.memory,
        "pids" => usage.processes,
        "inodes" => disk_usage(signal, layout, pod, usage).inodes,
        _ => disk_usage(signal, layout, pod, usage).bytes,
    };
    let requested = compared_request(pod, resource).value();
    (i128::from(used.unwrap_or_default()), i128::from(requested))
}

/// A pod's usage of the filesystem of the signal.
fn disk_usage(signal: Signal, layout: FsLayout, pod: &Pod, usage: &PodUsage) -> FsUsage {
    let filesystem = signal.filesystem().unwrap_or_default();
    let (root_fs, rest) = match (layout, filesystem) {
        (FsLayout::One, _) => (true, true),
        (FsLayout::DedicatedImages, "nodefs") => (false, true),
        (FsLayout::DedicatedImages, _) => (true, false),
        (FsLayout::Split, "imagefs") => (false, false),
        (FsLayout::Split, _) => (true, true),
    };
    let mut parts = Vec::new();
    for container in &usage.containers {
        if root_fs {
            parts.push(container.root_fs);
        }
        if rest {
            parts.push(container.logs);
        }
    }
    if rest {
        let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
        let local = volumes.into_iter().flatten().filter(|v| is_local(v));
        parts.extend(local.filter_map(|v| usage.volumes.get(&v.name)).copied());
    }
    let sum = |pick: fn(&FsUsage) -> Option<u64>| {
        Some(parts.iter().filter_map(pick).fold(0_u64, u64::saturating_add))
    };
    FsUsage { bytes: sum(|p| p.bytes), inodes: sum(|p| p.inodes) }
}

/// Volumes whose content is on the node's disk.
pub(super) fn is_local(volume: &Volume) -> bool {
    let on_disk = |medium: Option<&str>| medium.unwrap_or_default().is_empty();
    volume.host_path.is_some()
        || volume.config_map.is_some()
        || volume.git_repo.is_some()
        || volume.empty_dir.as_ref().is_some_and(|e| on_disk(e.medium.as_deref()))
}
