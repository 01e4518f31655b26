//! Linux resources of containers and sandboxes.
//!
//! Upstream: `generateLinuxContainerResources`, `calculateSandboxResources`,
//! `configureContainerSwapResources`.

use super::amounts::{
    Amounts, has_pod_level, of_container, of_pod, of_pod_level, oom_score_adj, overhead,
};
pub(super) use super::amounts::{milli, quantity, value, zero};
use crate::admission::is_critical;
use crate::cgroup;
use crate::resources::{QosClass, Side, milli_of_shares, qos_class, side_of};
use api::core::v1::{Container, Pod};
use proto::cri_v1::{
    HugepageLimit, LinuxContainerResources, UpdateContainerResourcesRequest,
    UpdatePodSandboxResourcesRequest,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Which cgroup hierarchy the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Several hierarchies.
    V1,
    /// The unified hierarchy.
    V2,
}

/// How memory protection is spread (`memoryReservationPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryReservation {
    /// Nothing is reserved.
    None,
    /// `memory.min` for Guaranteed pods, `memory.low` for the others.
    Tiered,
}

/// The memory QoS feature's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryQos {
    /// What is reserved.
    pub reservation: MemoryReservation,
    /// `memoryThrottlingFactor`.
    pub throttling_factor: f64,
    /// The node's allocatable memory in bytes.
    pub allocatable_memory: i64,
    /// Size of a memory page in bytes.
    pub page_size: i64,
}

/// Facts and settings of the node that decide how resources are written.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSettings {
    /// The node's hierarchy.
    pub cgroup: CgroupVersion,
    /// The CFS period; `None` when `cpuCFSQuota` is off.
    pub cfs_period: Option<Duration>,
    /// `singleProcessOOMKill`: only the process at fault dies, not the container.
    pub single_process_oom_kill: bool,
    /// Whether `spec.resources` of pods counts.
    pub pod_level_resources: bool,
    /// Memory of the machine in bytes.
    pub memory_capacity: i64,
    /// Swap of the machine in bytes.
    pub swap_capacity: i64,
    /// Whether the swap controller is there.
    pub swap_controller: bool,
    /// `swapBehavior` is LimitedSwap.
    pub limited_swap: bool,
    /// Set when memory QoS is on (cgroup v2 only).
    pub memory_qos: Option<MemoryQos>,
    /// Huge page sizes the kernel offers, like `2MB`.
    pub hugepage_sizes: Vec<String>,
}

/// Whether a container or pod holds CPUs of its own, so that no quota applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuQuota {
    /// The limit is enforced.
    #[default]
    Enforced,
    /// Exclusive CPUs: no quota.
    Unlimited,
}

impl ResourceSettings {
    /// The resources of a container, as for CreateContainer and UpdateContainerResources (CPU and
    /// memory sets are added by the executor).
    pub fn container(
        &self,
        pod: &Pod,
        container: &Container,
        quota: CpuQuota,
    ) -> LinuxContainerResources {
        let requests = of_container(container, Side::Requests);
        let limits = of_container(container, Side::Limits);
        let mut effective = limits;
        if self.pod_level_resources && has_pod_level(pod) {
            let pod_level = of_pod_level(pod, Side::Limits);
            let or = |own: Option<i64>, pod: Option<i64>| own.filter(|v| *v != 0).or(pod);
            effective.cpu = or(limits.cpu, pod_level.cpu);
            effective.memory = or(limits.memory, pod_level.memory);
        }
        let mut resources = self.linux(requests.cpu, effective, quota);
        resources.oom_score_adj =
            oom_score_adj(pod, container, self.memory_capacity, self.pod_level_resources);
        resources.hugepage_limits = self.hugepages(pod, container);
        self.add_swap(&mut resources, pod, container);
        if let Some(settings) = &self.memory_qos {
            let guaranteed = qos_class(pod, self.pod_level_resources) == QosClass::Guaranteed;
            settings.add(&mut resources.unified, guaranteed, requests, limits);
        }
        resources
    }

    /// The resources of a sandbox: the whole pod without overhead.
    pub fn sandbox(&self, pod: &Pod, quota: CpuQuota) -> LinuxContainerResources {
        let requests = of_pod(pod, Side::Requests, self.pod_level_resources);
        let limits = of_pod(pod, Side::Limits, self.pod_level_resources);
        self.linux(requests.cpu, limits, quota)
    }

    /// The pod's overhead; an empty message when it has none.
    pub fn overhead(&self, pod: &Pod) -> LinuxContainerResources {
        match overhead(pod) {
            None => LinuxContainerResources::default(),
            Some(both) => self.linux(Some(both.cpu.unwrap_or(0)), both, CpuQuota::Enforced),
        }
    }

    /// The request that changes a running container.
    pub fn update_container(
        &self,
        container_id: &str,
        pod: &Pod,
        container: &Container,
        quota: CpuQuota,
    ) -> UpdateContainerResourcesRequest {
        UpdateContainerResourcesRequest {
            container_id: container_id.into(),
            linux: Some(self.container(pod, container, quota)),
            ..UpdateContainerResourcesRequest::default()
        }
    }

    /// The request that tells the runtime about a changed pod cgroup.
    pub fn update_sandbox(
        &self,
        sandbox_id: &str,
        pod: &Pod,
        cgroup: &PodCgroupValues,
    ) -> UpdatePodSandboxResourcesRequest {
        let mut values = *cgroup;
        if let Some(overhead) = overhead(pod) {
            values.subtract(overhead);
        }
        UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox_id.into(),
            overhead: Some(self.overhead(pod)),
            resources: Some(LinuxContainerResources {
                cpu_period: values.cpu_period.unwrap_or(0),
                cpu_quota: values.cpu_quota.unwrap_or(0),
                cpu_shares: values.cpu_shares.unwrap_or(0),
                memory_limit_in_bytes: values.memory.unwrap_or(0),
                ..LinuxContainerResources::default()
            }),
        }
    }

    fn linux(
        &self,
        cpu_request: Option<i64>,
        limits: Amounts,
        quota: CpuQuota,
    ) -> LinuxContainerResources {
        let cpu_limit = limits.cpu.unwrap_or(0);
        let mut resources = LinuxContainerResources {
            cpu_shares: shares_of_milli(cpu_request.unwrap_or(cpu_limit)),
            memory_limit_in_bytes: limits.memory.unwrap_or(0),
            ..LinuxContainerResources::default()
        };
        if let Some(period) = self.cfs_period {
            let period = i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
            resources.cpu_period = period;
            resources.cpu_quota = match quota {
                CpuQuota::Enforced => quota_of_milli(cpu_limit, period),
                CpuQuota::Unlimited => -1,
            };
        }
        if self.cgroup == CgroupVersion::V2 && !self.single_process_oom_kill {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        resources
    }

    fn hugepages(&self, pod: &Pod, container: &Container) -> Vec<HugepageLimit> {
        let mut limits: BTreeMap<String, u64> = BTreeMap::new();
        let pod_level = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
        let pod_level = pod_level.filter(|_| self.pod_level_resources && has_pod_level(pod));
        for resources in [pod_level, container.resources.as_ref()] {
            for (name, amount) in side_of(resources, Side::Limits) {
                let size = name.strip_prefix("hugepages-").map(|s| value(&quantity(s)));
                if let Some(size) = size.and_then(page_size_name) {
                    limits.insert(size, u64::try_from(amount.value()).unwrap_or(0));
                }
            }
        }
        let limit = |size: &String| HugepageLimit {
            page_size: size.clone(),
            limit: limits.get(size).copied().unwrap_or(0),
        };
        self.hugepage_sizes.iter().map(limit).collect()
    }

    fn add_swap(&self, resources: &mut LinuxContainerResources, pod: &Pod, container: &Container) {
        if !self.swap_controller {
            return;
        }
        if self.cgroup == CgroupVersion::V1 {
            resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
            return;
        }
        // Compared as quantities, not rounded to bytes: half a byte differs from a whole one.
        let memory = |side| {
            let own = side_of(container.resources.as_ref(), side);
            own.get("memory").copied().unwrap_or(units::Quantity::ZERO)
        };
        let request = memory(Side::Requests);
        let may_swap = self.limited_swap
            && !is_critical(pod)
            && qos_class(pod, self.pod_level_resources) == QosClass::Burstable
            && request != memory(Side::Limits);
        let amount = if may_swap { self.swap_share(request.value()) } else { 0 };
        resources.unified.insert("memory.swap.max".into(), amount.to_string());
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "upstream computes the share in floating point"
    )]
    fn swap_share(&self, request: i64) -> i64 {
        if self.memory_capacity <= 0 || request > self.memory_capacity {
            return 0;
        }
        (request as f64 / self.memory_capacity as f64 * self.swap_capacity as f64) as i64
    }
}

impl MemoryQos {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "upstream computes the threshold in floating point"
    )]
    fn add(
        &self,
        unified: &mut BTreeMap<String, String>,
        guaranteed: bool,
        requests: Amounts,
        limits: Amounts,
    ) {
        let (request, limit) = (requests.memory.unwrap_or(0), limits.memory.unwrap_or(0));
        let mut set = |key: &str, value: i64| unified.insert(key.into(), value.to_string());
        if request != 0 && self.reservation == MemoryReservation::Tiered {
            set(if guaranteed { "memory.min" } else { "memory.low" }, request);
        } else {
            set("memory.min", 0);
            set("memory.low", 0);
        }
        if request == limit {
            return;
        }
        let top = if limit == 0 { self.allocatable_memory } else { limit };
        if top <= 0 {
            return;
        }
        let wanted = request as f64 + (top as f64 - request as f64) * self.throttling_factor;
        let page = self.page_size.max(1);
        let high = ((wanted / page as f64).floor() as i64).saturating_mul(page);
        if high > request {
            set("memory.high", high);
        }
    }
}

/// Values of a pod's cgroup at one moment, overhead included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodCgroupValues {
    /// CPU period in microseconds.
    pub cpu_period: Option<i64>,
    /// CPU quota in microseconds.
    pub cpu_quota: Option<i64>,
    /// CPU shares.
    pub cpu_shares: Option<i64>,
    /// Memory limit in bytes.
    pub memory: Option<i64>,
}

impl PodCgroupValues {
    fn subtract(&mut self, overhead: Amounts) {
        if let Some(cpu) = overhead.cpu {
            if let (Some(period), Some(quota)) = (self.cpu_period, self.cpu_quota.as_mut()) {
                *quota -= quota_of_milli(cpu, period);
            }
            if let Some(shares) = &mut self.cpu_shares {
                *shares = shares_of_milli(milli_of_shares(*shares).unwrap_or(0) - cpu);
            }
        }
        if let (Some(memory), Some(limit)) = (overhead.memory, self.memory.as_mut()) {
            *limit -= memory;
        }
    }
}

/// CPU shares of a request in thousandths of a CPU.
fn shares_of_milli(milli: i64) -> i64 {
    i64::try_from(cgroup::shares(milli)).unwrap_or(i64::MAX)
}

/// CFS quota of a limit in thousandths of a CPU; 0 means none.
fn quota_of_milli(milli: i64, period: i64) -> i64 {
    match milli {
        0 => 0,
        _ => cgroup::quota_us(milli, u64::try_from(period).unwrap_or(0)),
    }
}

/// The kernel's name of a page size (`2MB`).
fn page_size_name(bytes: i64) -> Option<String> {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut number = bytes;
    let mut index = 0;
    while number > 0 && number % 1024 == 0 && index + 1 < UNITS.len() {
        number /= 1024;
        index += 1;
    }
    let whole = number > 0 && (number <= 1024 || index + 1 == UNITS.len());
    UNITS.get(index).filter(|_| whole).map(|unit| format!("{number}{unit}"))
}

#[cfg(test)]
mod tests;
