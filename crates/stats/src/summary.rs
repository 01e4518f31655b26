//! The summary: a pure function of a reading and the storage.

use crate::convert::{self, Missing, Parts};
use crate::reading::{ContainerReading, PodReading, Reading};
use crate::storage::{LayerUsage, Storage};
use crate::task::StatsConfig;
use api::stats::{
    ContainerStats, FsStats, Moment, NodeStats, PodStats, ProcessStats, RlimitStats, RuntimeStats,
    Summary,
};
use ports::StatsError;
use std::collections::BTreeMap;

/// Builds the summary; without storage only CPU, memory and swap.
pub(crate) fn build(
    config: &StatsConfig,
    reading: &Reading,
    storage: Option<&Storage>,
) -> Result<Summary, StatsError> {
    Ok(Summary {
        node: node(config, reading, storage)?,
        pods: chosen(&reading.pods).into_iter().map(|p| pod(reading, p, storage)).collect(),
    })
}

fn node(
    config: &StatsConfig,
    reading: &Reading,
    storage: Option<&Storage>,
) -> Result<NodeStats, StatsError> {
    let time = Moment(reading.at);
    let root = reading
        .cgroups
        .get("/")
        .ok_or_else(|| StatsError("failed to get root cgroup stats: it cannot be read".into()))?;
    let own = convert::from_cgroup(root, time);
    let mut stats = NodeStats {
        node_name: config.node_name.clone(),
        system_containers: system_containers(config, reading, storage.is_some()),
        start_time: Moment::from_seconds(config.boot_time),
        cpu: own.cpu,
        memory: own.memory,
        swap: own.swap,
        ..NodeStats::default()
    };
    if let Some(storage) = storage {
        stats.io = own.io;
        stats.network = convert::network(&reading.host_network, time);
        stats.fs = Some(convert::filesystem(&storage.root, storage.at));
        let of = |layers: &LayerUsage| FsStats {
            used_bytes: layers.used_bytes,
            inodes_used: layers.inodes_used,
            ..convert::part_of(&layers.fs, storage.at)
        };
        stats.runtime = Some(RuntimeStats {
            image_fs: storage.images.as_ref().map(of),
            container_fs: storage.containers.as_ref().map(of),
        });
        stats.rlimit = rlimit(config, time);
    }
    Ok(stats)
}

/// The node's own cgroups; those that cannot be read are left out.
fn system_containers(config: &StatsConfig, reading: &Reading, all: bool) -> Vec<ContainerStats> {
    let pods = config.kubepods.iter().map(|path| ("pods", path.as_str()));
    let named = config.system_cgroups().chain(pods);
    named
        .filter_map(|(name, path)| {
            let cgroup = reading.cgroups.get(path)?;
            let parts = convert::from_cgroup(cgroup, Moment(reading.at));
            let start_time = match name {
                "kubelet" => config.started,
                _ => Moment::from_seconds(cgroup.usage.created),
            };
            Some(ContainerStats {
                name: name.to_owned(),
                start_time,
                cpu: parts.cpu,
                memory: parts.memory,
                io: parts.io.filter(|_| all),
                swap: parts.swap,
                ..ContainerStats::default()
            })
        })
        .collect()
}

fn rlimit(config: &StatsConfig, time: Moment) -> Option<RlimitStats> {
    let number = |file: &str| -> Option<i64> {
        sys::fs::read_to_string(config.roots.proc.join(file)).ok()?.trim().parse().ok()
    };
    let max = match (number("sys/kernel/pid_max"), number("sys/kernel/threads-max")) {
        (Some(pids), Some(threads)) => Some(pids.min(threads)),
        (pids, threads) => pids.or(threads),
    };
    let load = sys::fs::read_to_string(config.roots.proc.join("loadavg")).unwrap_or_default();
    let tasks = load.split_whitespace().nth(3).and_then(|t| t.split_once('/'));
    let running = tasks.and_then(|(_, all)| all.parse().ok());
    (max.is_some() || running.is_some()).then_some(RlimitStats { time, max_pid: max, running })
}

/// Of the sandboxes of one pod name: the only one, else the ready ones, else the newest. Pods
/// without a running container are left out, unless the runtime has stats of them.
fn chosen(pods: &[PodReading]) -> Vec<&PodReading> {
    let mut named: BTreeMap<(&str, &str), Vec<&PodReading>> = BTreeMap::new();
    let mut order = Vec::new();
    for pod in pods {
        let name = (pod.reference.namespace.as_str(), pod.reference.name.as_str());
        let same = named.entry(name).or_default();
        if same.is_empty() {
            order.push(name);
        }
        same.push(pod);
    }
    let mut chosen = Vec::new();
    for same in order.iter().filter_map(|name| named.get(name)) {
        if same.len() == 1 || same.iter().all(|pod| !pod.ready) {
            chosen.extend(same.iter().copied().max_by_key(|pod| pod.created_ns));
        } else {
            chosen.extend(same.iter().copied().filter(|pod| pod.ready));
        }
    }
    chosen.retain(|pod| pod.cri_stats.is_some() || !pod.containers.is_empty());
    chosen
}

fn pod(reading: &Reading, pod: &PodReading, storage: Option<&Storage>) -> PodStats {
    let time = Moment(reading.at);
    let missing = if storage.is_some() { Missing::Absent } else { Missing::Zero };
    let strict = pod.cri_stats.is_some();
    let parts: Vec<Parts> =
        pod.containers.iter().map(|c| container_parts(reading, c, strict, missing)).collect();
    let own = match (&pod.cri_stats, reading.cgroup(pod.cgroup.as_ref())) {
        (Some(cri_stats), _) => convert::from_sandbox(cri_stats, &parts, missing),
        (None, Some(cgroup)) => convert::from_cgroup(cgroup, time),
        (None, None) => convert::sum(&parts, time),
    };
    let mut stats = PodStats {
        pod_ref: pod.reference.clone(),
        start_time: Moment::from_nanos(pod.created_ns),
        cpu: own.cpu,
        memory: own.memory,
        swap: own.swap,
        ..PodStats::default()
    };
    for (container, parts) in pod.containers.iter().zip(parts) {
        let mut of_one = ContainerStats {
            name: container.name.clone(),
            start_time: Moment::from_nanos(container.created_ns),
            cpu: parts.cpu,
            memory: parts.memory,
            swap: parts.swap,
            ..ContainerStats::default()
        };
        if let Some(storage) = storage {
            of_one.io = parts.io;
            of_one.rootfs = rootfs(container, storage, time);
            let logs = storage.pods.get(&pod.reference.uid);
            of_one.logs = logs
                .and_then(|p| p.logs.get(&container.name))
                .map(|usage| convert::files(usage, &storage.root, time));
        }
        stats.containers.push(of_one);
    }
    if let Some(storage) = storage {
        stats.io = own.io;
        (stats.network, stats.process_stats) = match &pod.cri_stats {
            Some(cri_stats) => (convert::cri_network(cri_stats), convert::cri_processes(cri_stats)),
            None => (convert::network(&pod.network, time), processes(reading, pod)),
        };
        if let Some(pod_storage) = storage.pods.get(&pod.reference.uid) {
            stats.volumes = pod_storage.volumes.iter().map(|v| v.stats.clone()).collect();
        }
        stats.ephemeral_storage = Some(ephemeral(pod, &stats, storage, time));
    }
    stats
}

/// The usage of a container: from its cgroup, unless the runtime's stats are preferred or the only
/// ones.
fn container_parts(
    reading: &Reading,
    container: &ContainerReading,
    strict: bool,
    missing: Missing,
) -> Parts {
    let time = Moment(reading.at);
    let cgroup = reading.cgroup(container.cgroup.as_ref());
    match (cgroup.filter(|_| !strict), &container.runtime) {
        (Some(found), _) => convert::from_cgroup(found, time),
        (None, Some(stats)) => {
            let mut parts = convert::from_runtime(stats, time, missing);
            if let (Some(cpu), Some(cgroup)) = (&mut parts.cpu, cgroup) {
                cpu.usage_nano_cores = cpu.usage_nano_cores.or(Some(cgroup.nano_cores));
            }
            parts
        }
        (None, None) => Parts::default(),
    }
}

fn processes(reading: &Reading, pod: &PodReading) -> Option<ProcessStats> {
    let mut cgroups =
        pod.containers.iter().filter_map(|c| reading.cgroup(c.cgroup.as_ref())).peekable();
    cgroups.peek()?;
    Some(ProcessStats { process_count: Some(cgroups.map(|c| c.usage.processes).sum()) })
}

fn rootfs(container: &ContainerReading, storage: &Storage, time: Moment) -> Option<FsStats> {
    let layer = container.runtime.as_ref()?.writable_layer.as_ref()?;
    let place = layer.fs_id.as_ref().map(|id| id.mountpoint.as_str()).unwrap_or_default();
    let on = storage.layers.get(place).map(|fs| convert::part_of(fs, time));
    Some(FsStats {
        time: if layer.timestamp > 0 { Moment::from_nanos(layer.timestamp) } else { time },
        used_bytes: layer.used_bytes.as_ref().map(|v| v.value),
        inodes_used: layer.inodes_used.as_ref().map(|v| v.value),
        ..on.unwrap_or_default()
    })
}

/// Layers, logs, the pod's own files and local ephemeral volumes.
fn ephemeral(pod: &PodReading, stats: &PodStats, storage: &Storage, time: Moment) -> FsStats {
    let pod_storage = storage.pods.get(&pod.reference.uid);
    let own_files = pod_storage.map(|pod_storage| pod_storage.own_files).unwrap_or_default();
    let (mut bytes, mut inodes) = (own_files.bytes, own_files.inodes);
    let folders = stats.containers.iter().flat_map(|c| [&c.rootfs, &c.logs]).flatten();
    let volumes = pod_storage.iter().flat_map(|pod_storage| &pod_storage.volumes);
    let volumes = volumes.filter(|v| v.ephemeral).map(|v| &v.stats.fs);
    for usage in folders.chain(volumes) {
        bytes = bytes.saturating_add(usage.used_bytes.unwrap_or(0));
        inodes = inodes.saturating_add(usage.inodes_used.unwrap_or(0));
    }
    FsStats {
        used_bytes: Some(bytes),
        inodes_used: Some(inodes),
        ..convert::part_of(&storage.root, time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::stats::PodReference;

    fn sandbox(name: &str, ready: bool, created_ns: i64) -> PodReading {
        PodReading {
            reference: PodReference { name: name.into(), ..PodReference::default() },
            sandbox_id: created_ns.to_string(),
            ready,
            created_ns,
            containers: vec![ContainerReading::default()],
            ..PodReading::default()
        }
    }

    #[test]
    fn old_sandboxes_of_a_pod_are_left_out() {
        let ids = |pods: &[PodReading]| -> Vec<String> {
            chosen(pods).into_iter().map(|p| p.sandbox_id.clone()).collect()
        };
        assert_eq!(ids(&[sandbox("a", false, 1)]), ["1"], "the only one");
        assert_eq!(ids(&[sandbox("a", true, 1), sandbox("a", false, 2)]), ["1"], "the ready one");
        assert_eq!(ids(&[sandbox("a", false, 1), sandbox("a", false, 2)]), ["2"], "the newest");
        let idle = PodReading { containers: Vec::new(), ..sandbox("a", true, 1) };
        assert!(ids(&[idle]).is_empty(), "nothing runs");
    }
}
