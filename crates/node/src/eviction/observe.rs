//! Converts a summary for eviction: one observation per signal, one usage per pod (kubelet:
//! `makeSignalObservations`).

use api::ids::PodUid;
use api::stats::{FsStats, MemoryStats, Moment, Summary};
use engine::eviction::{
    ContainerUsage, FsUsage, Observation, Observations, PodUsage, PodUsages, Signal,
};
use units::{Quantity, quantity::Format};

/// The observations of a summary; missing signals are not evaluated.
pub(super) fn observations(summary: &Summary) -> Observations {
    let mut found = Observations::new();
    let node = &summary.node;
    let mut note = |signal, reading: Option<Observation>| {
        if let Some(reading) = reading {
            found.insert(signal, reading);
        }
    };
    note(Signal::MemoryAvailable, node.memory.as_ref().and_then(memory));
    let pods = node.system_containers.iter().find(|c| c.name == "pods");
    note(Signal::AllocatableMemoryAvailable, pods.and_then(|c| c.memory.as_ref()).and_then(memory));
    let runtime = node.runtime.as_ref();
    for (fs, bytes_signal, inodes_signal) in [
        (node.fs.as_ref(), Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (
            runtime.and_then(|r| r.image_fs.as_ref()),
            Signal::ImageFsAvailable,
            Signal::ImageFsInodesFree,
        ),
        (
            runtime.and_then(|r| r.container_fs.as_ref()),
            Signal::ContainerFsAvailable,
            Signal::ContainerFsInodesFree,
        ),
    ] {
        note(bytes_signal, fs.and_then(bytes));
        note(inodes_signal, fs.and_then(inodes));
    }
    if let Some(limits) = &node.rlimit
        && let (Some(max), Some(running)) = (limits.max_pid, limits.running)
    {
        let count = |n| Quantity::new(n, Format::DecimalSi);
        note(
            Signal::PidAvailable,
            Some(Observation {
                available: count(max.saturating_sub(running)),
                capacity: count(max),
                at: time(limits.time),
            }),
        );
    }
    found
}

fn memory(stats: &MemoryStats) -> Option<Observation> {
    let (available, used) = stats.available_bytes.zip(stats.working_set_bytes)?;
    Some(Observation {
        available: quantity(available, Format::BinarySi),
        capacity: quantity(available.saturating_add(used), Format::BinarySi),
        at: time(stats.time),
    })
}

fn bytes(fs: &FsStats) -> Option<Observation> {
    let (available, capacity) = fs.available_bytes.zip(fs.capacity_bytes)?;
    Some(Observation {
        available: quantity(available, Format::BinarySi),
        capacity: quantity(capacity, Format::BinarySi),
        at: time(fs.time),
    })
}

fn inodes(fs: &FsStats) -> Option<Observation> {
    let (available, capacity) = fs.inodes_free.zip(fs.inodes)?;
    Some(Observation {
        available: quantity(available, Format::DecimalSi),
        capacity: quantity(capacity, Format::DecimalSi),
        at: time(fs.time),
    })
}

fn quantity(value: u64, format: Format) -> Quantity {
    Quantity::new(i64::try_from(value).unwrap_or(i64::MAX), format)
}

fn time(moment: Moment) -> Option<jiff::Timestamp> {
    (moment != Moment::default()).then_some(moment.0)
}

/// The usage of each pod.
pub(super) fn usages(summary: &Summary) -> PodUsages {
    let fs = |stats: &FsStats| FsUsage { bytes: stats.used_bytes, inodes: stats.inodes_used };
    let pods = summary.pods.iter().map(|pod| {
        let containers = pod.containers.iter().map(|container| ContainerUsage {
            name: container.name.clone(),
            memory: container.memory.as_ref().and_then(|m| m.working_set_bytes),
            root_fs: container.rootfs.as_ref().map(fs).unwrap_or_default(),
            logs: container.logs.as_ref().map(fs).unwrap_or_default(),
        });
        let usage = PodUsage {
            memory: pod.memory.as_ref().and_then(|m| m.working_set_bytes),
            processes: pod.process_stats.as_ref().and_then(|p| p.process_count),
            ephemeral: pod.ephemeral_storage.as_ref().and_then(|e| e.used_bytes),
            containers: containers.collect(),
            volumes: pod.volumes.iter().map(|v| (v.name.clone(), fs(&v.fs))).collect(),
        };
        (PodUid::from(pod.pod_ref.uid.as_str()), usage)
    });
    pods.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::stats::{ContainerStats, NodeStats, RlimitStats, RuntimeStats};

    #[test]
    fn what_a_summary_lacks_is_not_observed() {
        let summary = Summary {
            node: NodeStats {
                memory: Some(MemoryStats {
                    time: Moment::from_seconds(5),
                    available_bytes: Some(100),
                    working_set_bytes: Some(50),
                    ..MemoryStats::default()
                }),
                system_containers: vec![ContainerStats {
                    name: "pods".to_owned(),
                    memory: Some(MemoryStats {
                        working_set_bytes: Some(1),
                        ..MemoryStats::default()
                    }),
                    ..ContainerStats::default()
                }],
                runtime: Some(RuntimeStats {
                    image_fs: Some(FsStats {
                        inodes: Some(1000),
                        inodes_free: Some(10),
                        ..FsStats::default()
                    }),
                    container_fs: None,
                }),
                rlimit: Some(RlimitStats {
                    max_pid: Some(4096),
                    running: Some(96),
                    ..RlimitStats::default()
                }),
                ..NodeStats::default()
            },
            pods: Vec::new(),
        };
        let found = observations(&summary);
        let signals: Vec<Signal> = found.keys().copied().collect();
        assert_eq!(
            signals,
            [Signal::MemoryAvailable, Signal::ImageFsInodesFree, Signal::PidAvailable]
        );
        let memory = found[&Signal::MemoryAvailable];
        assert_eq!((memory.available.value(), memory.capacity.value()), (100, 150));
        assert_eq!(found[&Signal::PidAvailable].available.value(), 4000);
        assert_eq!(found[&Signal::PidAvailable].at, None, "a time of zero is unknown");
    }
}
