//! Makes a [`Reading`]: three lists from the runtime, one walk over the agent's cgroups.

use crate::cgroup_cache::{CgroupCache, on_root};
use crate::processes::first_process;
use crate::reading::{CgroupReading, ContainerReading, Interfaces, PodReading, Reading};
use crate::task::{RETENTION, StatsConfig, StatsDeps};
use api::stats::PodReference;
use cri::RuntimeClient;
use cri::api::{
    Container, ContainerFilter, ContainerState, ContainerStateValue, ContainerStats,
    LinuxPodSandboxStats, PodSandbox, PodSandboxState, PodSandboxStats,
};
use engine::cgroup::CgroupName;
use jiff::Timestamp;
use ports::StatsError;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use sys::stats::{cgroup_usage, network_usage};

/// A base older than this is useless for the present rate.
const BASE_TOO_OLD: Duration = RETENTION;
/// The base is replaced when it is older than this.
const BASE_AGE: Duration = Duration::from_secs(10);
/// The time between the two measurements of a first reading.
const FIRST_GAP: Duration = Duration::from_millis(100);

/// CPU time of each cgroup at an earlier time: the base of rates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    at: Timestamp,
    total_ns: BTreeMap<Arc<str>, u64>,
}

impl Base {
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.at)).unwrap_or_default()
    }

    /// Nanocores since then; 0 if the cgroup is new.
    fn nano_cores(&self, path: &str, total_ns: u64, now: Timestamp) -> u64 {
        let elapsed = self.age(now).as_nanos();
        let Some(before) = self.total_ns.get(path) else { return 0 };
        if elapsed == 0 {
            return 0;
        }
        let used = u128::from(total_ns.saturating_sub(*before)) * 1_000_000_000;
        u64::try_from(used / elapsed).unwrap_or(u64::MAX)
    }
}

/// Reads everything; replaces the base when it is due.
pub(crate) async fn collect(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
    base: &mut Option<Base>,
    cgroup_cache: &mut CgroupCache,
) -> Result<Reading, StatsError> {
    let now = deps.clock.now();
    if base.as_ref().is_none_or(|base| base.age(now) > BASE_TOO_OLD) {
        let total_ns = with(config, cgroup_cache, CgroupCache::cpu_totals).await?;
        *base = Some(Base { at: deps.clock.now(), total_ns });
        tokio::time::sleep(FIRST_GAP).await;
    }
    let running = ContainerFilter {
        state: Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() }),
        ..ContainerFilter::default()
    };
    let listed = tokio::try_join!(
        deps.runtime.list_pod_sandbox(None),
        deps.runtime.list_containers(Some(running)),
        deps.runtime.list_container_stats(None),
    );
    let (sandboxes, containers, stats) =
        listed.map_err(|e| StatsError(format!("failed to list pod stats: {e}")))?;
    let cri_stats = if config.from_runtime { cri_stats(&deps.runtime).await? } else { None };
    let mut pods = pods(sandboxes, containers, stats);
    if let Some(cri_stats) = cri_stats {
        attach_cri_stats(&mut pods, cri_stats);
    }
    let before = base.clone().unwrap_or_default();
    let (clock, updates) = (Arc::clone(&deps.clock), deps.runtime.resource_updates());
    let reading = with(config, cgroup_cache, move |cgroup_cache, config| {
        let mut cgroups = cgroup_cache.read(config, clock.now(), updates);
        let at = clock.now();
        place(&mut pods, &cgroups, config);
        for pod in &mut pods {
            network(cgroup_cache, pod, &cgroups, config);
        }
        for (path, cgroup) in &mut cgroups {
            cgroup.nano_cores = before.nano_cores(path, cgroup.usage.cpu.total_ns, at);
        }
        let host_network = network_usage(&config.roots.proc, "self").unwrap_or_default().into();
        Reading { at, cgroups, pods, host_network }
    });
    let reading = reading.await?;
    if base.as_ref().is_some_and(|base| base.age(reading.at) >= BASE_AGE) {
        let totals = reading.cgroups.iter();
        let total_ns = totals.map(|(path, c)| (Arc::clone(path), c.usage.cpu.total_ns)).collect();
        *base = Some(Base { at: reading.at, total_ns });
    }
    Ok(reading)
}

/// Uses the cached cgroups on a blocking thread. If the work fails, the cache is empty, which only
/// costs opening them again.
async fn with<T: Send + 'static>(
    config: &Arc<StatsConfig>,
    cgroup_cache: &mut CgroupCache,
    work: impl FnOnce(&mut CgroupCache, &StatsConfig) -> T + Send + 'static,
) -> Result<T, StatsError> {
    let (mut held, config) = (std::mem::take(cgroup_cache), Arc::clone(config));
    let done = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
        let result = work(&mut held, &config);
        (held, result)
    });
    let (held, result) = done.await.map_err(|e| StatsError(e.to_string()))?;
    *cgroup_cache = held;
    Ok(result)
}

/// Reads the node's cgroup and that of all pods together, without the individual pods.
pub(crate) async fn node(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
) -> Result<Reading, StatsError> {
    let (reader, at) = (Arc::clone(config), deps.clock.now());
    let read = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
        let paths = std::iter::once("/").chain(reader.kubepods.as_deref());
        let found = paths.filter_map(|path| {
            let usage = Arc::new(on_root(cgroup_usage(&reader.cgroups, path)?, path, &reader));
            Some((path.into(), CgroupReading { usage, ..CgroupReading::default() }))
        });
        Reading { at, cgroups: found.collect(), ..Reading::default() }
    });
    read.await.map_err(|e| StatsError(e.to_string()))
}

/// Sandboxes with their running containers, selected as for the summary.
fn pods(
    sandboxes: Vec<PodSandbox>,
    containers: Vec<Container>,
    stats: Vec<ContainerStats>,
) -> Vec<PodReading> {
    let mut stats: HashMap<String, ContainerStats> =
        stats.into_iter().filter_map(|mut s| Some((s.attributes.take()?.id, s))).collect();
    let mut by_sandbox: HashMap<String, Vec<ContainerReading>> = HashMap::new();
    for container in containers {
        let image = container.image.map(|i| i.image).unwrap_or_default();
        by_sandbox.entry(container.pod_sandbox_id).or_default().push(ContainerReading {
            runtime: stats.remove(&container.id),
            name: container.metadata.map(|m| m.name).unwrap_or_default(),
            id: container.id,
            image,
            created_ns: container.created_at,
            cgroup: None,
        });
    }
    let mut pods: Vec<PodReading> = sandboxes
        .into_iter()
        .map(|sandbox| {
            let meta = sandbox.metadata.unwrap_or_default();
            let mut containers = by_sandbox.remove(&sandbox.id).unwrap_or_default();
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            PodReading {
                reference: PodReference {
                    name: meta.name,
                    namespace: meta.namespace,
                    uid: meta.uid,
                },
                ready: sandbox.state == i32::from(PodSandboxState::SandboxReady),
                sandbox_id: sandbox.id,
                handler: sandbox.runtime_handler,
                created_ns: sandbox.created_at,
                containers,
                ..PodReading::default()
            }
        })
        .collect();
    pods.sort_by(|a, b| {
        a.reference
            .cmp(&b.reference)
            .then(b.ready.cmp(&a.ready))
            .then(b.created_ns.cmp(&a.created_ns))
    });
    pods
}

/// The runtime's stats of its sandboxes, by id; `None` when it has none.
async fn cri_stats(
    runtime: &RuntimeClient,
) -> Result<Option<HashMap<String, LinuxPodSandboxStats>>, StatsError> {
    match runtime.list_pod_sandbox_stats(None).await {
        Ok(list) => {
            let of = |stats: PodSandboxStats| Some((stats.attributes?.id, stats.linux?));
            Ok(Some(list.into_iter().filter_map(of).collect()))
        }
        Err(error) if error.is_unimplemented() => {
            tracing::debug!(err = %error, "Runtime reports no pod stats");
            Ok(None)
        }
        Err(error) => Err(StatsError(format!("failed to list pod stats: {error}"))),
    }
}

/// Keeps only pods and containers for which the runtime has stats.
fn attach_cri_stats(
    pods: &mut Vec<PodReading>,
    mut cri_stats: HashMap<String, LinuxPodSandboxStats>,
) {
    for pod in pods.iter_mut() {
        pod.cri_stats = cri_stats.remove(&pod.sandbox_id);
        let containers = pod.cri_stats.iter().flat_map(|cri_stats| &cri_stats.containers);
        let mut stats: HashMap<&str, &ContainerStats> =
            containers.filter_map(|s| Some((s.attributes.as_ref()?.id.as_str(), s))).collect();
        for container in &mut pod.containers {
            container.runtime = stats.remove(container.id.as_str()).cloned();
        }
        pod.containers.retain(|container| container.runtime.is_some());
    }
    pods.retain(|pod| pod.cri_stats.is_some());
}

/// Assigns cgroup paths to pods, sandboxes and containers.
fn place(
    pods: &mut [PodReading],
    cgroups: &BTreeMap<Arc<str>, CgroupReading>,
    config: &StatsConfig,
) {
    let mut by_id: HashMap<&str, &Arc<str>> = HashMap::new();
    let mut by_uid: HashMap<String, &Arc<str>> = HashMap::new();
    for path in cgroups.keys() {
        let name = path.rsplit('/').next().unwrap_or_default();
        by_id.insert(id_of(name), path);
        if let Some(uid) = CgroupName::parse(config.driver, path).pod_uid() {
            by_uid.insert(uid.to_owned(), path);
        }
    }
    for pod in pods {
        pod.cgroup = by_uid.get(&pod.reference.uid).map(|p| Arc::clone(p));
        pod.sandbox_cgroup = by_id.get(pod.sandbox_id.as_str()).map(|p| Arc::clone(p));
        for container in &mut pod.containers {
            container.cgroup = by_id.get(container.id.as_str()).map(|p| Arc::clone(p));
        }
    }
}

/// The length of a container's id.
const ID: usize = 64;

/// The container id in a cgroup's name, as cadvisor finds it: the first 64 consecutive letters and
/// digits. For a shorter id the whole name, or the end of a systemd scope. CRI-O's monitor
/// processes, and mounts, have names with ids that are not theirs.
fn id_of(name: &str) -> &str {
    if name.contains("conmon") || name.ends_with(".mount") {
        return name;
    }
    let runs = name.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit()));
    if let Some(id) = runs.filter_map(|run| run.get(..ID)).next() {
        return id;
    }
    name.strip_suffix(".scope").map_or(name, |scope| scope.rsplit('-').next().unwrap_or(scope))
}

/// Sets a pod's network counters: the cached ones, if nothing in the pod has run since.
fn network(
    cgroup_cache: &mut CgroupCache,
    pod: &mut PodReading,
    cgroups: &BTreeMap<Arc<str>, CgroupReading>,
    config: &StatsConfig,
) {
    // At most one sandbox of a pod is ready: the one that runs in its cgroup.
    let path = pod.cgroup.clone().filter(|_| pod.ready);
    let (since, cached) = path.as_deref().map(|path| cgroup_cache.quiet(path)).unwrap_or_default();
    pod.quiet_since = since;
    pod.network = cached.unwrap_or_else(|| {
        let read: Interfaces = pod_network(cgroups, config, pod).unwrap_or_default().into();
        if let Some(path) = path {
            cgroup_cache.keep_network(&path, &read);
        }
        read
    });
}

/// Interfaces of the pod's network namespace, read through any of its processes.
fn pod_network(
    cgroups: &BTreeMap<Arc<str>, CgroupReading>,
    config: &StatsConfig,
    pod: &PodReading,
) -> Option<Vec<sys::stats::InterfaceUsage>> {
    let own = pod.containers.iter().filter_map(|c| c.cgroup.as_ref());
    let mut paths = pod.sandbox_cgroup.iter().chain(own);
    paths.find_map(|path| {
        let pid = first_process(config, path, &cgroups.get(path)?.usage.procs)?;
        network_usage(&config.roots.proc, &pid).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_taken_against_the_base() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let base = Base { at: at(100), total_ns: [("/a".into(), 1_000)].into() };
        assert_eq!(base.nano_cores("/a", 1_000 + 5_000_000_000, at(110)), 500_000_000);
        assert_eq!(base.nano_cores("/new", 7, at(110)), 0);
        assert_eq!(base.nano_cores("/a", 7, at(110)), 0, "a counter that fell");
        assert_eq!(base.nano_cores("/a", 7, at(100)), 0, "no time passed");
    }

    #[test]
    fn container_ids_are_found_in_names_of_either_driver() {
        assert_eq!(id_of("0123abcd"), "0123abcd");
        assert_eq!(id_of("cri-containerd-0123abcd.scope"), "0123abcd");
        assert_eq!(id_of("crio-0123abcd.scope"), "0123abcd");
        assert_ne!(id_of("crio-conmon-0123abcd.scope"), "0123abcd");
        let id = "0123456789abcdef".repeat(4);
        let named = |text: String| id_of(&text).to_owned();
        for text in ["ID", "crio-ID", "crio-ID.scope", "cri-containerd-ID.scope", "libpod-ID-x"] {
            assert_eq!(named(text.replace("ID", &id)), id, "{text}");
        }
        for text in ["crio-conmon-ID", "crio-conmon-ID.scope", "run-ID.mount"] {
            assert_ne!(named(text.replace("ID", &id)), id, "{text}");
        }
    }
}
