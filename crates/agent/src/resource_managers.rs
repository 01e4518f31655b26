//! CPUs, memory and their alignment, built from the configuration.

use crate::host::Host;
use crate::{AgentError, settings};
use async_trait::async_trait;
use config::Config;
use config::environment::OutdatedState;
use config::resolved::{CpuManagerPolicy, MemoryManagerPolicy, TopologyPolicy, TopologyScope};
use cri::RuntimeClient;
use engine::cpus::checkpoint::KnownContainers;
use engine::cpus::{CpuOptions, CpuSetup};
use engine::memory::{MemorySetup, system_reserved};
use engine::resources::Amounts;
use engine::topology::{Entries, Policy, PolicyKind};
use ports::{Placement, PodsSnapshot, Roots, Tasks};
use proto::cri_v1::LinuxContainerResources;
use resources::cpus::{ContainerCpus, CpuPolicy, Cpus};
use resources::memory::{Memory, MemoryPolicy};
use resources::placement::{Placed, PlacementConfig, Provider, Scope};
use resources::pod_resources::ExclusiveSets;
use resources::{CpusAndMemory, Outdated, PlacementMetrics, StateError, machine, start_anew};
use std::sync::Arc;
use sys::topology::MachineTopology;
use telemetry::metrics::Registry;
use tokio::sync::watch;
use units::{Quantity, strconv};

/// What places pods.
#[derive(Debug)]
pub(crate) struct ResourceManagers {
    cpus: Cpus,
    memory: Memory,
    policy: Policy,
    numa_nodes: Vec<u32>,
    metrics: PlacementMetrics,
}

impl ResourceManagers {
    /// Reads the machine and what was remembered.
    pub(crate) async fn start(
        config: &Config,
        host: &Host,
        roots: &Roots,
        client: &RuntimeClient,
        registry: &Registry,
    ) -> Result<Self, AgentError> {
        let refused = |cause: &dyn std::fmt::Display| AgentError::Placement(cause.to_string());
        let machine = sys::topology::read(&roots.sys, &roots.proc)?;
        let kind = policy_kind(config.resources.topology_policy);
        let options = &config.resources.topology_policy_options;
        let policy =
            Policy::new(kind, machine::numa(&machine), options).map_err(|e| refused(&e))?;
        let kept = kept_from_pods(config, host);
        let metrics = match PlacementMetrics::new(registry) {
            metrics if settings::pod_level_managers(config) => metrics.with_sources(registry),
            metrics => metrics,
        };
        let cpu_policy = cpu_policy(config, &machine, &kept, kind)?;
        let memory_policy = memory_policy(config, &machine, &kept)?;
        let known = known_containers(client).await;
        let dir = &config.dirs.root;
        let kinds =
            if settings::pod_level_managers(config) { Entries::Pods } else { Entries::Containers };
        let unusable = |cause: StateError| AgentError::ContainerManager(cause.to_string());
        let outdated = match config.opt_ins.outdated_state {
            OutdatedState::Refuse => Outdated::Refuse,
            OutdatedState::GiveUp => Outdated::GiveUp,
        };
        let cpus = start_anew(dir, outdated, || {
            Cpus::start(cpu_policy.clone(), (dir, kinds), &known, metrics.clone())
        });
        let cpus = cpus.map_err(unusable)?;
        let memory = start_anew(dir, outdated, || {
            Memory::start(memory_policy.clone(), (dir, kinds), metrics.clone())
        });
        let memory = memory.map_err(unusable)?;
        let numa_nodes = machine.nodes.iter().map(|node| node.id).collect();
        Ok(Self { cpus, memory, policy, numa_nodes, metrics })
    }

    /// The machine's NUMA nodes.
    pub(crate) fn numa_nodes(&self) -> Vec<u32> {
        self.numa_nodes.clone()
    }

    /// Who has what, to be shown.
    pub(crate) fn sets(&self) -> Arc<dyn ExclusiveSets> {
        Arc::new(CpusAndMemory { cpus: self.cpus.clone(), memory: self.memory.clone() })
    }

    /// Whose own CPUs lift the quota.
    pub(crate) fn lifts_quota(&self, config: &Config) -> Option<Cpus> {
        settings::exclusive_cpus_lift_quota(config).then(|| self.cpus.clone())
    }

    /// The front, with these providers before CPUs and memory.
    pub(crate) fn placement(
        &self,
        config: &Config,
        mut providers: Vec<Arc<dyn Provider>>,
    ) -> Arc<dyn Placement> {
        let scope = match config.resources.topology_scope {
            TopologyScope::Container => Scope::Container,
            TopologyScope::Pod => Scope::Pod,
        };
        providers.push(Arc::new(self.cpus.clone()));
        providers.push(Arc::new(self.memory.clone()));
        let placement = PlacementConfig {
            policy: self.policy.clone(),
            scope,
            pod_level: settings::pod_level_managers(config),
            lifts_quota: self.lifts_quota(config),
        };
        Arc::new(Placed::new(placement, providers, self.metrics.clone()))
    }

    /// Keeps running containers on the CPUs they should run on.
    pub(crate) fn reconcile(
        &self,
        config: &Config,
        pods: watch::Receiver<PodsSnapshot>,
        client: RuntimeClient,
        tasks: &Tasks,
    ) {
        let period = config.resources.cpu_manager_reconcile_period;
        let (cpus, token) = (self.cpus.clone(), tasks.token());
        tasks.spawn_anew("cpu-reconcile", move || {
            let runtime = Box::new(Runtime(client.clone()));
            cpus.clone().run(period, pods.clone(), runtime, token.clone())
        });
    }
}

/// Whether the configured policies can be had on this machine; nothing is read or written. Between
/// the alignment and what is aligned comes what is remembered of claims, as upstream has it.
pub(crate) fn check(
    config: &Config,
    host: &Host,
    machine: &MachineTopology,
    claims: impl FnOnce() -> Result<(), AgentError>,
) -> Result<(), AgentError> {
    let kind = policy_kind(config.resources.topology_policy);
    let options = &config.resources.topology_policy_options;
    Policy::new(kind, machine::numa(machine), options)
        .map_err(|e| AgentError::Placement(e.to_string()))?;
    claims()?;
    let kept = kept_from_pods(config, host);
    if let CpuPolicy::Static(setup) = cpu_policy(config, machine, &kept, kind)? {
        Cpus::check(*setup).map_err(|e| AgentError::Placement(e.to_string()))?;
    }
    if let MemoryPolicy::Static(setup) = memory_policy(config, machine, &kept)? {
        Memory::check(setup).map_err(|e| AgentError::Placement(e.to_string()))?;
    }
    Ok(())
}

fn policy_kind(policy: TopologyPolicy) -> PolicyKind {
    match policy {
        TopologyPolicy::None => PolicyKind::None,
        TopologyPolicy::BestEffort => PolicyKind::BestEffort,
        TopologyPolicy::Restricted => PolicyKind::Restricted,
        TopologyPolicy::SingleNumaNode => PolicyKind::SingleNumaNode,
    }
}

/// CPU and memory that pods cannot have; what is zero is left out (upstream: `GetNodeAllocatableReservation`).
fn kept_from_pods(config: &Config, host: &Host) -> Amounts {
    let reservation = settings::reservation(config);
    let memory = i64::try_from(host.machine.memory_bytes).unwrap_or(i64::MAX);
    let pages = reservation.system.keys().chain(reservation.kube.keys());
    let pages = pages.filter(|name| name.starts_with("hugepages-")).map(String::as_str);
    ["cpu", "memory"]
        .into_iter()
        .chain(pages)
        .map(|name| {
            let capacity = if name == "memory" { memory } else { 0 };
            (name.to_owned(), reservation.of(name, Quantity::from_bytes(capacity)))
        })
        .filter(|(_, amount)| !amount.is_zero())
        .collect()
}

fn cpu_policy(
    config: &Config,
    machine: &MachineTopology,
    kept: &Amounts,
    policy: PolicyKind,
) -> Result<CpuPolicy, AgentError> {
    let options = &config.resources.cpu_manager_policy_options;
    match &config.resources.cpu_manager_policy {
        CpuManagerPolicy::None if options.is_empty() => Ok(CpuPolicy::None),
        CpuManagerPolicy::None => {
            let shown: Vec<String> = options.iter().map(|(k, v)| format!("{k}:{v}")).collect();
            Err(AgentError::Placement(format!(
                "new none policy error: None policy: received unsupported options=map[{}]",
                shown.join(" ")
            )))
        }
        CpuManagerPolicy::Unknown(name) => {
            Err(AgentError::Placement(format!("unknown policy: \"{name}\"")))
        }
        CpuManagerPolicy::Static => Ok(CpuPolicy::Static(Box::new(CpuSetup {
            topology: machine::cpu_topology(machine),
            options: CpuOptions::parse(options, settings::cpu_option_stages(config)),
            reserved_milli: kept.get("cpu").map(|amount| amount.milli_value()),
            reserved: config.resources.reservations.cpus.clone(),
            policy,
            pod_level_resources: settings::pod_level_resources(config),
            pod_level_managers: settings::pod_level_managers(config),
        }))),
    }
}

fn memory_policy(
    config: &Config,
    machine: &MachineTopology,
    kept: &Amounts,
) -> Result<MemoryPolicy, AgentError> {
    match &config.resources.memory_manager_policy {
        MemoryManagerPolicy::None => Ok(MemoryPolicy::None),
        MemoryManagerPolicy::Unknown(name) if name == "BestEffort" => Err(AgentError::Placement(
            "policy \"BestEffort\" is not available for platform \"linux\"".to_owned(),
        )),
        MemoryManagerPolicy::Unknown(name) => {
            Err(AgentError::Placement(format!("unknown policy: {}", strconv::quote(name))))
        }
        MemoryManagerPolicy::Static => {
            let nodes = machine::node_memory(machine);
            let reserved = system_reserved(&nodes, kept, &config.resources.reservations.memory)
                .map_err(|e| AgentError::Placement(e.to_string()))?;
            let pod_level_resources = settings::pod_level_resources(config);
            Ok(MemoryPolicy::Static(MemorySetup {
                nodes,
                reserved,
                pod_level_resources,
                pod_level_managers: settings::pod_level_managers(config),
            }))
        }
    }
}

/// Containers that exist already, for state that knows them by id only.
async fn known_containers(client: &RuntimeClient) -> KnownContainers {
    match client.list_containers(None).await {
        Ok(containers) => containers
            .into_iter()
            .filter_map(|container| {
                let label = |name: &str| container.labels.get(name).cloned();
                let uid = label("io.kubernetes.pod.uid")?;
                let name = label("io.kubernetes.container.name")?;
                Some((container.id, (uid, name)))
            })
            .collect(),
        Err(error) => {
            tracing::error!(err = %error, "Failed to build map of initial containers from runtime");
            KnownContainers::new()
        }
    }
}

#[derive(Debug)]
struct Runtime(RuntimeClient);

#[async_trait]
impl ContainerCpus for Runtime {
    async fn set_cpus(&self, container_id: &str, cpus: &str) -> Result<(), String> {
        let resources =
            LinuxContainerResources { cpuset_cpus: cpus.to_owned(), ..Default::default() };
        let told = self.0.update_container_resources(container_id, resources).await;
        told.map_err(|error| error.to_string())
    }
}
