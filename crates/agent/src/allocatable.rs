//! What the node has, what it keeps from pods, and the cgroups that say so.

use crate::host::Host;
use crate::{AgentError, settings};
use config::Config;
use config::resolved::CpuManagerPolicy;
use engine::cgroup::{
    CgroupName, Driver, Enforced, MemoryProtection, PodLimitPolicy, QosPolicy, ResourceList,
    allocatable, list_limits, over_reserved,
};
use engine::eviction::{Signal, Threshold};
use ports::{
    EventSeverity, EventTarget, Events, NodeEvent, PodCgroups, PodsSnapshot, Roots, Tasks,
};
use resources::cgroups::{
    CgroupDriver, CgroupTree, CgroupTreeConfig, NoPodCgroups, ProtectedMemory, ReservedCgroup,
};
use resources::cpus::Cpus;
use resources::{TunableRule, set_kernel_tunables};
use std::sync::Arc;
use telemetry::metrics::Registry;
use tokio::sync::watch;
use units::Quantity;
use units::quantity::Format;

/// What the cgroup tree is made with.
pub(crate) struct CgroupParts<'a> {
    pub(crate) driver: Driver,
    pub(crate) thresholds: &'a [Threshold],
    pub(crate) lifts_quota: Option<Cpus>,
    pub(crate) pods: watch::Receiver<PodsSnapshot>,
    pub(crate) registry: &'a Registry,
    pub(crate) events: &'a Arc<dyn Events>,
}

/// Checks the reservation and the kernel, then makes and limits the tree. Faults are upstream's, and end
/// the start.
pub(crate) async fn set_up(
    config: &Config,
    host: &Host,
    roots: &Roots,
    parts: CgroupParts<'_>,
    tasks: &Tasks,
) -> Result<Arc<dyn PodCgroups>, AgentError> {
    let CgroupParts { driver, thresholds, lifts_quota, pods, registry, events } = parts;
    let resources = &config.resources;
    let reservations = &resources.reservations;
    let capacity = capacity(config, host, roots);
    let kept = kept_by_eviction(thresholds, &capacity);
    let mut visible = capacity.clone();
    visible.remove("pid");
    if let Some(fault) = over_reserved(&visible, &[&reservations.system, &reservations.kube, &kept])
    {
        return Err(AgentError::ContainerManager(fault));
    }
    if let Some(fault) = missing_hierarchies(host) {
        return Err(AgentError::ContainerManager(fault));
    }
    if crate::eviction_and_shutdown::may_swap_volumes(roots) {
        events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "PossibleMemoryBackedVolumesOnDisk",
            message: "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. \
                      secrets, emptyDirs, etc.) might be swapped to disk and should no longer be \
                      considered secure."
                .to_owned(),
        });
    }
    let rule = if config.node.protect_kernel_defaults {
        TunableRule::Refuse
    } else if crate::eviction_and_shutdown::tolerates_user_namespace(config, roots) {
        TunableRule::TryToChange
    } else {
        TunableRule::Change
    };
    set_kernel_tunables(&roots.proc, rule).map_err(AgentError::ContainerManager)?;
    if !resources.cgroups_per_qos {
        return Ok(Arc::new(NoPodCgroups));
    }
    let cpus = match resources.cpu_manager_policy {
        CpuManagerPolicy::None => online_cpus(roots),
        _ => None,
    };
    let maker = CgroupDriver::new(driver, Arc::clone(&host.cgroups), host.page_sizes.clone())
        .measured(registry);
    let protected = settings::memory_qos(config).then(|| ProtectedMemory::new(registry));
    let shape = CgroupTreeConfig {
        lifts_quota,
        protected,
        ..tree(config, host, &capacity, cpus.as_deref())
    };
    let tree = Box::pin(CgroupTree::set_up(maker, shape)).await?;
    let (levels, token) = (tree.clone(), tasks.token());
    tasks.spawn_anew("qos-cgroups", move || levels.clone().run(pods.clone(), token.clone()));
    let (enforcing, told, token) = (tree.clone(), Arc::clone(events), tasks.token());
    tasks.spawn_anew("node-allocatable", move || {
        enforcing.clone().enforce_pods(Arc::clone(&told), token.clone())
    });
    let reserved = reserved(config, cpus.as_deref());
    let limited = tree.enforce_reserved(&reserved, &**events).await;
    limited.map_err(AgentError::ContainerManager)?;
    Ok(Arc::new(tree))
}

/// What version 1 must have (kubelet: `validateSystemRequirements`).
fn missing_hierarchies(host: &Host) -> Option<String> {
    let sys::cgroup::Cgroups::V1 { mounts } = &*host.cgroups else { return None };
    let needed = ["cpu", "cpuacct", "cpuset", "memory"];
    let missing: Vec<&str> =
        needed.into_iter().filter(|name| !mounts.contains_key(*name)).collect();
    let text = "system validation failed - Following Cgroup subsystem not mounted";
    (!missing.is_empty()).then(|| format!("{text}: [{}]", missing.join(" ")))
}

/// Memory that is left for pods in bytes, eviction thresholds aside.
pub(crate) fn memory_for_pods(config: &Config, host: &Host) -> i64 {
    let bytes = i64::try_from(host.machine.memory_bytes).unwrap_or(i64::MAX);
    let whole = ResourceList::from([("memory".to_owned(), Quantity::from_bytes(bytes))]);
    let reservations = &config.resources.reservations;
    let left = allocatable(&whole, &reservations.system, &reservations.kube);
    left.get("memory").map_or(0, |q| q.value())
}

/// What the machine has, process ids included.
fn capacity(config: &Config, host: &Host, roots: &Roots) -> ResourceList {
    let machine = &host.machine;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let milli = count(machine.cores).saturating_mul(1000);
    let mut list = ResourceList::from([
        ("cpu".to_owned(), Quantity::from_milli(milli, Format::DecimalSi)),
        ("memory".to_owned(), Quantity::from_bytes(count(machine.memory_bytes))),
    ]);
    for pages in &machine.huge_pages {
        let page = pages.page_kib.saturating_mul(1024);
        let size = Quantity::from_bytes(count(page));
        let bytes = Quantity::from_bytes(count(page.saturating_mul(pages.count)));
        list.insert(format!("hugepages-{size}"), bytes);
    }
    if config.pods.local_storage_isolation
        && let Ok(bytes) = sys::host::filesystem_bytes(&roots.kubelet)
    {
        list.insert("ephemeral-storage".to_owned(), Quantity::from_bytes(count(bytes)));
    }
    let limit = |file: &str| -> Option<i64> {
        sys::fs::read_to_string(roots.proc.join("sys/kernel").join(file)).ok()?.trim().parse().ok()
    };
    if let Some(pids) = limit("pid_max").into_iter().chain(limit("threads-max")).min() {
        list.insert("pid".to_owned(), Quantity::new(pids, Format::DecimalSi));
    }
    list
}

/// What hard eviction thresholds keep back.
fn kept_by_eviction(thresholds: &[Threshold], capacity: &ResourceList) -> ResourceList {
    let mut kept = ResourceList::new();
    for threshold in thresholds.iter().filter(|t| t.is_hard()) {
        let resource = match threshold.signal {
            Signal::MemoryAvailable => "memory",
            Signal::NodeFsAvailable => "ephemeral-storage",
            _ => continue,
        };
        if let Some(whole) = capacity.get(resource) {
            kept.insert(resource.to_owned(), threshold.value.quantity(*whole));
        }
    }
    kept
}

fn tree(
    config: &Config,
    host: &Host,
    capacity: &ResourceList,
    cpus: Option<&str>,
) -> CgroupTreeConfig {
    let reservations = &config.resources.reservations;
    let left = allocatable(capacity, &reservations.system, &reservations.kube);
    let for_pods = if config.resources.enforcement.pods { &left } else { capacity };
    let memory = left.get("memory").map_or(0, |q| q.value());
    let protection = match settings::memory_qos(config) && host.cgroups.is_v2() {
        false => MemoryProtection::Off,
        true if config.resources.tiered_memory_reservation => MemoryProtection::Tiered,
        true => MemoryProtection::Cleared,
    };
    CgroupTreeConfig {
        root: CgroupName::of_root(&config.resources.cgroup_root),
        policy: PodLimitPolicy {
            cfs_quota: config.pods.cpu_cfs_quota,
            period_us: u64::try_from(config.pods.cpu_cfs_quota_period.as_micros())
                .unwrap_or(u64::MAX),
            pids: config.pods.pids_limit.unwrap_or(-1),
        },
        kubepods: list_limits(for_pods, Enforced::All, cpus),
        qos: QosPolicy {
            reserved: reservations.qos_memory_percent.map(|percent| (percent, memory)),
            protection,
        },
        pod_level_resources: settings::pod_level_resources(config),
        lifts_quota: None,
        protected: None,
    }
}

/// Cgroups of daemons, in the order in which upstream limits them.
fn reserved(config: &Config, cpus: Option<&str>) -> Vec<ReservedCgroup> {
    let resources = &config.resources;
    let enforcement = &resources.enforcement;
    let (system, kube) = (&resources.reservations.system, &resources.reservations.kube);
    let names = (&resources.system_reserved_cgroup, &resources.kube_reserved_cgroup);
    let all = [
        (enforcement.system, "System", names.0, system, Enforced::All),
        (enforcement.kube, "Kube", names.1, kube, Enforced::All),
        (enforcement.system_compressible, "System", names.0, system, Enforced::Compressible),
        (enforcement.kube_compressible, "Kube", names.1, kube, Enforced::Compressible),
    ];
    let protect = settings::memory_qos(config);
    let chosen = all.into_iter().filter(|(on, ..)| *on);
    chosen
        .map(|(_, whose, name, list, enforced)| {
            let limits = (!list.is_empty()).then(|| {
                let mut limits = list_limits(list, enforced, cpus);
                if let Some(bytes) = limits.memory_bytes.filter(|_| protect) {
                    limits.unified.insert("memory.min".to_owned(), bytes.to_string());
                }
                limits
            });
            ReservedCgroup {
                whose,
                compressible: enforced == Enforced::Compressible,
                name: name.clone().unwrap_or_default(),
                limits,
            }
        })
        .collect()
}

/// All CPUs, as a list of ranges.
fn online_cpus(roots: &Roots) -> Option<String> {
    let text = sys::fs::read_to_string(roots.sys.join("devices/system/cpu/online")).ok()?;
    Some(text.trim().to_owned()).filter(|cpus| !cpus.is_empty())
}
