//! The agent's cgroup tree: `kubepods`, the QoS levels and one cgroup per pod.
//!
//! Owns: the tree below the configured root. Promises: a pod's cgroup is made before its first
//! container and removed, with everything in it ended, after its last; QoS values are refreshed
//! when the set of pods changes and once a minute; nothing outside the tree is touched.
//!
//! Deliberately absent: numbers (`engine::cgroup`), files (`sys::cgroup`).

mod driver;
mod enforce;
mod none;
mod protected;

pub use driver::{CgroupDriver, DriverError};
pub use enforce::ReservedCgroup;
pub use none::NoPodCgroups;
pub use protected::ProtectedMemory;

use crate::cpus::Cpus;
use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use driver::{chain, making};
use engine::cgroup::{
    CgroupName, Limits, PodAsk, PodLimitPolicy, QosPolicy, Tree, pod_ask, pod_limits,
    pod_protection, protected_memory, qos_limits, starved,
};
use engine::resources::QosClass;
use ports::{CgroupError, CgroupValues, PodCgroups};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const REFRESH: Duration = Duration::from_secs(60);
const LEVELS: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];
const KILL_ROUNDS: usize = 5;
const KILL_PAUSE: Duration = Duration::from_millis(50);

/// What shapes the tree.
#[derive(Debug, Clone)]
pub struct CgroupTreeConfig {
    /// `cgroupRoot`, parsed with the driver's rule.
    pub root: CgroupName,
    /// Pod limits.
    pub policy: PodLimitPolicy,
    /// Limits of `kubepods` as a whole; `None` leaves them alone.
    pub kubepods: Limits,
    /// What shapes the QoS levels.
    pub qos: QosPolicy,
    /// Whether `spec.resources` of pods counts.
    pub pod_level_resources: bool,
    /// Whose own CPUs lift the quota (gate DisableCPUQuotaWithExclusiveCPUs).
    pub lifts_quota: Option<Cpus>,
    /// Where protected memory is told (gate MemoryQoS).
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
    /// What each pod with a cgroup asked for; feeds the QoS levels.
    asks: Mutex<BTreeMap<PodUid, PodAsk>>,
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
            inner: Arc::new(Inner { driver, tree, config, asks: Mutex::new(BTreeMap::new()) }),
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
            inner.driver.create(&inner.tree.level(level), &Limits::default()).await?;
        }
        self.refresh_levels().await;
        Ok(())
    }

    /// Repairs the levels once a minute until cancelled.
    pub async fn run(self, cancel: tokio_util::sync::CancellationToken) {
        let mut ticks = tokio::time::interval(REFRESH);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Cancel-safe: no state is held across the wait.
                () = cancel.cancelled() => return,
                // Cancel-safe: a tick that is dropped comes again.
                _ = ticks.tick() => self.refresh_levels().await,
            }
        }
    }

    /// Writes the QoS levels' values; failures are only logged.
    async fn refresh_levels(&self) {
        let inner = &self.inner;
        let limits = {
            let Ok(asks) = inner.asks.lock() else { return };
            if let Some(shown) = &inner.config.protected {
                shown.show(protected_memory(asks.values(), &inner.config.qos));
            }
            qos_limits(asks.values(), &inner.config.qos, inner.driver.page_sizes())
        };
        for (level, mut limits) in limits {
            let name = inner.tree.level(level);
            // What is in use already cannot be forbidden, but it shall not grow.
            if let Some(limit) = limits.memory_bytes
                && let Some(used) = self.usage(&name).await
            {
                limits.memory_bytes = Some(limit.max(i64::try_from(used).unwrap_or(i64::MAX)));
            }
            let limits = &limits;
            if let Err(error) = inner.driver.apply(&name, limits).await {
                tracing::error!(err = %error, cgroup = inner.driver.path(&name), "failed to update QoS cgroup");
            }
        }
    }

    fn ask(&self, pod: &Pod) -> PodAsk {
        let cpus = self.inner.config.lifts_quota.as_ref();
        let exclusive_cpus = cpus.is_some_and(|cpus| cpus.is_exclusive(pod));
        PodAsk { exclusive_cpus, ..pod_ask(pod, self.inner.config.pod_level_resources) }
    }

    fn name(&self, pod: &Pod) -> CgroupName {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
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
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        let name = self.inner.tree.pod(ask.level, uid.as_str());
        let mut limits = pod_limits(&ask, &self.inner.config.policy);
        limits.unified.extend(pod_protection(&ask, self.inner.config.qos.protection));
        let changed = match self.inner.asks.lock() {
            Ok(mut asks) => asks.insert(uid, ask.clone()) != Some(ask),
            Err(_) => false,
        };
        if changed {
            self.refresh_levels().await;
        }
        if self.inner.driver.exists(&name).await {
            return Ok(());
        }
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
            .map_err(|e| error("failed to update pod cgroup", &e))?;
        if let Ok(mut asks) = self.inner.asks.lock() {
            asks.insert(PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default()), ask);
        }
        self.refresh_levels().await;
        Ok(())
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
        let forgotten = match self.inner.asks.lock() {
            Ok(mut asks) => asks.remove(uid).is_some(),
            Err(_) => false,
        };
        for level in LEVELS {
            let name = self.inner.tree.pod(level, uid.as_str());
            if !self.inner.driver.is_there(&name).await {
                continue;
            }
            self.destroy(&name).await.map_err(|e| error("failed to delete pod cgroup", &e))?;
        }
        if forgotten {
            self.refresh_levels().await;
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
