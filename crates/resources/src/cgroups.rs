//! The agent's cgroup tree: `kubepods`, the QoS levels and one cgroup per pod.
//!
//! Owns: the tree below the configured root. Promises: a pod's cgroup is made before its first
//! container and removed, with everything in it ended, after its last; QoS values follow the published
//! pods (`levels`); nothing outside the tree is touched.
//!
//! Deliberately absent: numbers (`engine::cgroup`), files (`sys::cgroup`).

mod driver;
mod enforce;
mod levels;
mod none;
mod protected;

pub use driver::{CgroupDriver, DriverError};
pub use enforce::ReservedCgroup;
pub use none::NoPodCgroups;
pub use protected::ProtectedMemory;

use crate::cpus::Cpus;
use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use async_trait::async_trait;
use driver::{chain, making};
use engine::cgroup::{
    CgroupName, Limits, PodAsk, PodLimitPolicy, QosPolicy, Tree, pod_ask, pod_limits,
    pod_protection, starved, unsummed,
};
use engine::resources::QosClass;
use ports::{CgroupError, CgroupValues, PodCgroups};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const LEVELS: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
const KILL_ROUNDS: usize = 5;
const KILL_PAUSE: Duration = Duration::from_millis(50);

/// Settings of the tree.
#[derive(Debug, Clone)]
pub struct CgroupTreeConfig {
    /// `cgroupRoot`, parsed with the driver's rule.
    pub root: CgroupName,
    /// Pod limits.
    pub policy: PodLimitPolicy,
    /// Limits of `kubepods` as a whole; `None` leaves them alone.
    pub kubepods: Limits,
    /// Settings of the QoS levels.
    pub qos: QosPolicy,
    /// Whether `spec.resources` of pods applies.
    pub pod_level_resources: bool,
    /// The CPU manager whose exclusive CPUs lift the CFS quota (gate DisableCPUQuotaWithExclusiveCPUs).
    pub lifts_quota: Option<Cpus>,
    /// Gauges of protected memory (gate MemoryQoS).
    pub protected: Option<ProtectedMemory>,
}

/// The tree; cheap to clone.
#[derive(Debug, Clone)]
pub struct CgroupTree {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    driver: CgroupDriver,
    tree: Tree,
    config: CgroupTreeConfig,
    /// Notified when the node's limits were written to `kubepods`: the task of the levels must write its values
    /// there again.
    kubepods_written: Notify,
}

impl CgroupTree {
    /// Checks the root and makes `kubepods` and the QoS levels.
    pub async fn set_up(
        driver: CgroupDriver,
        config: CgroupTreeConfig,
    ) -> Result<Self, CgroupSetupError> {
        if let Some(fault) = driver.fault(&config.root).await {
            return Err(CgroupSetupError::RootIncomplete(fault));
        }
        let tree = Tree::new(&config.root);
        let this = Self {
            inner: Arc::new(Inner { driver, tree, config, kubepods_written: Notify::new() }),
        };
        this.make_levels().await.map_err(CgroupSetupError::Levels)?;
        Ok(this)
    }

    async fn make_levels(&self) -> Result<(), DriverError> {
        let inner = &self.inner;
        let kubepods = inner.tree.kubepods();
        if !inner.driver.exists(kubepods).await {
            inner.driver.create(kubepods, &inner.config.kubepods).await?;
        }
        for level in [QosClass::Burstable, QosClass::BestEffort] {
            // Values that depend on pods are written once the pods are known (`levels`).
            let limits = unsummed(level, inner.driver.page_sizes());
            inner.driver.create(&inner.tree.level(level), &limits).await?;
        }
        Ok(())
    }

    fn ask(&self, pod: &Pod) -> PodAsk {
        let cpus = self.inner.config.lifts_quota.as_ref();
        let exclusive_cpus = cpus.is_some_and(|cpus| cpus.is_exclusive(pod));
        PodAsk { exclusive_cpus, ..pod_ask(pod, self.inner.config.pod_level_resources) }
    }

    fn name(&self, pod: &Pod) -> CgroupName {
        let uid = pod.uid_str();
        self.inner.tree.pod(self.ask(pod).level, uid)
    }

    async fn usage(&self, name: &CgroupName) -> Option<u64> {
        let file = if self.inner.driver.host().is_v2() {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        self.inner.driver.read(name, "memory", file).await.ok()?.parse().ok()
    }

    /// The limits of a cgroup (`kubelet: GetCgroupConfig`).
    async fn read_values(&self, name: &CgroupName) -> Option<CgroupValues> {
        let driver = &self.inner.driver;
        let read = async |controller: &'static str, file: &'static str| {
            driver.read(name, controller, file).await.ok().map(|text| text.trim().to_owned())
        };
        let number = |text: String| match text.as_str() {
            "max" => Some(-1),
            text => text.parse::<i64>().ok(),
        };
        if driver.host().is_v2() {
            let cpu = read("cpu", "cpu.max").await?;
            let (quota, period) = cpu.split_once(' ')?;
            let weight = u64::try_from(number(read("cpu", "cpu.weight").await?)?).ok()?;
            return Some(CgroupValues {
                cpu_period: number(period.to_owned())?,
                cpu_quota: number(quota.to_owned())?,
                cpu_shares: i64::try_from(engine::cgroup::shares_of_weight(weight)).ok()?,
                memory: number(read("memory", "memory.max").await?)?,
            });
        }
        Some(CgroupValues {
            cpu_period: number(read("cpu", "cpu.cfs_period_us").await?)?,
            cpu_quota: number(read("cpu", "cpu.cfs_quota_us").await?)?,
            cpu_shares: number(read("cpu", "cpu.shares").await?)?,
            memory: number(read("memory", "memory.limit_in_bytes").await?)?,
        })
    }

    async fn destroy(&self, name: &CgroupName) -> Result<(), DriverError> {
        let driver = &self.inner.driver;
        for _ in 0..KILL_ROUNDS {
            let pids = driver.pids(name).await;
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                if let Err(error) = sys::process::kill(pid) {
                    tracing::debug!(err = %error, pid, "process of a removed pod not killed");
                }
            }
            tokio::time::sleep(KILL_PAUSE).await;
        }
        driver.remove(name).await
    }
}

/// Why the tree could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum CgroupSetupError {
    /// `cgroupRoot` is not usable.
    #[error("invalid configuration: {0}")]
    RootIncomplete(String),
    /// `kubepods` or a level could not be made.
    #[error("failed to create top level QOS cgroups")]
    Levels(#[source] DriverError),
}

fn error(context: &str, error: &DriverError) -> CgroupError {
    CgroupError { message: format!("{context}: {}", chain(error)) }
}

#[async_trait]
impl PodCgroups for CgroupTree {
    async fn exists(&self, pod: &Pod) -> bool {
        self.inner.driver.exists(&self.name(pod)).await
    }

    async fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        let ask = self.ask(pod);
        let name = self.name(pod);
        let mut limits = pod_limits(&ask, &self.inner.config.policy);
        limits.unified.extend(pod_protection(&ask, self.inner.config.qos.protection));
        let driver = &self.inner.driver;
        driver.create(&name, &limits).await.map_err(|error| CgroupError {
            message: format!("failed to create container for {name} : {}", making(&error)),
        })
    }

    async fn resize(&self, pod: &Pod) -> Result<(), CgroupError> {
        let ask = self.ask(pod);
        let name = self.name(pod);
        let limits = pod_limits(&ask, &self.inner.config.policy);
        self.inner
            .driver
            .apply(&name, &limits)
            .await
            .map_err(|e| error("failed to update pod cgroup", &e))
    }

    async fn values(&self, pod: &Pod) -> Option<CgroupValues> {
        self.read_values(&self.name(pod)).await
    }

    async fn memory_usage(&self, pod: &Pod) -> Option<u64> {
        self.usage(&self.name(pod)).await
    }

    async fn oom_kills(&self, uid: &PodUid) -> u64 {
        if !self.inner.driver.host().is_v2() {
            return 0;
        }
        let mut kills = 0;
        for level in LEVELS {
            let name = self.inner.tree.pod(level, uid.as_str());
            let events = self.inner.driver.read(&name, "memory", "memory.events").await;
            let events = events.unwrap_or_default();
            let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
            kills += count.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        }
        kills
    }

    async fn oom_group(&self, pod: &Pod, container_id: &str) -> Option<bool> {
        self.inner.driver.oom_group(&self.name(pod), container_id).await
    }

    async fn starve(&self, uid: &PodUid) -> Result<(), CgroupError> {
        for level in LEVELS {
            let name = self.inner.tree.pod(level, uid.as_str());
            if !self.inner.driver.is_there(&name).await {
                continue;
            }
            let applied = self.inner.driver.apply(&name, &starved()).await;
            applied.map_err(|e| error("failed to update pod cgroup", &e))?;
        }
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), CgroupError> {
        for level in LEVELS {
            let name = self.inner.tree.pod(level, uid.as_str());
            if !self.inner.driver.is_there(&name).await {
                continue;
            }
            self.destroy(&name).await.map_err(|e| error("failed to delete pod cgroup", &e))?;
        }
        Ok(())
    }

    async fn all(&self) -> Vec<PodUid> {
        let inner = &self.inner;
        let mut found = Vec::new();
        for level in LEVELS {
            let children = inner.driver.children(&inner.tree.level(level)).await;
            found.extend(children.iter().filter_map(|child| child.pod_uid().map(PodUid::from)));
        }
        found
    }

    fn parent(&self, pod: &Pod) -> String {
        self.inner.driver.path(&self.name(pod))
    }
}
