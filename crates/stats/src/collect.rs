//! Making a [`Reading`]: three lists from the runtime, one walk over the agent's cgroups.

use crate::reading::{CgroupReading, ContainerReading, Interfaces, PodReading, Reading};
use crate::task::{KEPT, StatsConfig, StatsDeps};
use crate::watched::{Watched, on_root};
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

/// A base older than this says nothing about the present use.
const BASE_TOO_OLD: Duration = KEPT;
/// The base is moved on when it is older than this.
const BASE_AGE: Duration = Duration::from_secs(10);
/// How far apart the two looks of a first reading are.
const FIRST_GAP: Duration = Duration::from_millis(100);

/// CPU time of each cgroup at an earlier moment: what rates are taken against.
#[derive(Debug, Clone, Default)]
pub(crate) struct Base {
    at: Timestamp,
    total_ns: BTreeMap<Arc<str>, u64>,
}

impl Base {
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.at)).unwrap_or_default()
    }

    /// Billionths of a core since then; 0 if the cgroup is new.
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

/// Reads everything; moves the base on when it is due.
pub(crate) async fn collect(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
    base: &mut Option<Base>,
    watched: &mut Watched,
) -> Result<Reading, StatsError> {
    let now = deps.clock.now();
    if base.as_ref().is_none_or(|base| base.age(now) > BASE_TOO_OLD) {
        let total_ns = with(config, watched, Watched::cpu_totals).await?;
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
    let told = if config.from_runtime { told(&deps.runtime).await? } else { None };
    let mut pods = pods(sandboxes, containers, stats);
    if let Some(told) = told {
        believe(&mut pods, told);
    }
    let before = base.clone().unwrap_or_default();
    let (clock, updates) = (Arc::clone(&deps.clock), deps.runtime.resource_updates());
    let reading = with(config, watched, move |watched, config| {
        let mut cgroups = watched.read(config, clock.now(), updates);
        let at = clock.now();
        place(&mut pods, &cgroups, config);
        for pod in &mut pods {
            network(watched, pod, &cgroups, config);
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

/// Works with the watched cgroups off the runtime's threads. Work that fails leaves none watched, which
/// only costs opening them again.
async fn with<T: Send + 'static>(
    config: &Arc<StatsConfig>,
    watched: &mut Watched,
    work: impl FnOnce(&mut Watched, &StatsConfig) -> T + Send + 'static,
) -> Result<T, StatsError> {
    let (mut held, config) = (std::mem::take(watched), Arc::clone(config));
    let done = sys::blocking::run(move || {
        let result = work(&mut held, &config);
        (held, result)
    });
    let (held, result) = done.await.map_err(|e| StatsError(e.to_string()))?;
    *watched = held;
    Ok(result)
}

/// Reads the node's cgroup and that of all pods together; nothing of each pod.
pub(crate) async fn node(
    config: &Arc<StatsConfig>,
    deps: &StatsDeps,
) -> Result<Reading, StatsError> {
    let (reader, at) = (Arc::clone(config), deps.clock.now());
    let read = sys::blocking::run(move || {
        let paths = std::iter::once("/").chain(reader.kubepods.as_deref());
        let found = paths.filter_map(|path| {
            let usage = Arc::new(on_root(cgroup_usage(&reader.cgroups, path)?, path, &reader));
            Some((path.into(), CgroupReading { usage, ..CgroupReading::default() }))
        });
        Reading { at, cgroups: found.collect(), ..Reading::default() }
    });
    read.await.map_err(|e| StatsError(e.to_string()))
}

/// Sandboxes with their running containers, chosen as the summary wants them.
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

/// What the runtime says of its sandboxes, by their ids; `None` when it cannot.
async fn told(
    runtime: &RuntimeClient,
) -> Result<Option<HashMap<String, LinuxPodSandboxStats>>, StatsError> {
    match runtime.list_pod_sandbox_stats(None).await {
        Ok(list) => {
            let of = |stats: PodSandboxStats| Some((stats.attributes?.id, stats.linux?));
            Ok(Some(list.into_iter().filter_map(of).collect()))
        }
        Err(error) if error.is_unimplemented() => {
            tracing::debug!(err = %error, "the runtime tells no statistics of pods");
            Ok(None)
        }
        Err(error) => Err(StatsError(format!("failed to list pod stats: {error}"))),
    }
}

/// Leaves only those pods and containers of which the runtime says something.
fn believe(pods: &mut Vec<PodReading>, mut told: HashMap<String, LinuxPodSandboxStats>) {
    for pod in pods.iter_mut() {
        pod.told = told.remove(&pod.sandbox_id);
        let containers = pod.told.iter().flat_map(|told| &told.containers);
        let mut stats: HashMap<&str, &ContainerStats> =
            containers.filter_map(|s| Some((s.attributes.as_ref()?.id.as_str(), s))).collect();
        for container in &mut pod.containers {
            container.runtime = stats.remove(container.id.as_str()).cloned();
        }
        pod.containers.retain(|container| container.runtime.is_some());
    }
    pods.retain(|pod| pod.told.is_some());
}

/// Finds the cgroups of pods, sandboxes and containers among the paths read.
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

/// The container id in a cgroup's name: the whole name, or the end of a systemd scope.
fn id_of(name: &str) -> &str {
    match name.strip_suffix(".scope") {
        Some(scope) if !scope.contains("conmon") => scope.rsplit('-').next().unwrap_or(scope),
        _ => name,
    }
}

/// Fills in a pod's network: as it was read before, if nothing in the pod has run since.
fn network(
    watched: &mut Watched,
    pod: &mut PodReading,
    cgroups: &BTreeMap<Arc<str>, CgroupReading>,
    config: &StatsConfig,
) {
    // Of the sandboxes of one pod at most one is ready: the one that lives in its cgroup.
    let path = pod.cgroup.clone().filter(|_| pod.ready);
    let (since, kept) = path.as_deref().map(|path| watched.quiet(path)).unwrap_or_default();
    pod.quiet_since = since;
    pod.network = kept.unwrap_or_else(|| {
        let read: Interfaces = pod_network(cgroups, config, pod).unwrap_or_default().into();
        if let Some(path) = path {
            watched.keep_network(&path, &read);
        }
        read
    });
}

/// Interfaces of the pod's network namespace, seen through any of its processes.
fn pod_network(
    cgroups: &BTreeMap<Arc<str>, CgroupReading>,
    config: &StatsConfig,
    pod: &PodReading,
) -> Option<Vec<sys::stats::InterfaceUsage>> {
    let own = pod.containers.iter().filter_map(|c| c.cgroup.as_ref());
    let mut paths = pod.sandbox_cgroup.iter().chain(own);
    paths.find_map(|path| {
        let pid = cgroups.get(path)?.usage.procs.lines().next()?;
        network_usage(&config.roots.proc, pid).ok()
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
    }
}
