//! The QoS levels' values (kubelet: `qosContainerManagerImpl.UpdateCgroups`).
//!
//! Owns: the values of `kubepods`, `burstable` and `besteffort` that depend on their pods. Promises: only one
//! task writes them, from the published pods of this node, so that a restart changes nothing; until all sources
//! are ready, values are only raised.

use super::CgroupTree;
use api::core::v1::Pod;
use api::ids::PodUid;
use engine::cgroup::{
    LevelValues, Limits, PodAsk, only_raised, pod_ask, protected_memory, qos_limits,
};
use engine::resources::QosClass;
use ports::PodsSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const REFRESH: Duration = Duration::from_secs(60);

/// The requests of the active pods, by level. Pods that are the same object as before are not computed again.
#[derive(Debug, Default)]
struct Asks(BTreeMap<PodUid, (Arc<Pod>, PodAsk)>);

impl Asks {
    /// Updates the sums to the pods of the snapshot that hold resources.
    fn follow(&mut self, snapshot: &PodsSnapshot, pod_level: bool) {
        let mut known = std::mem::take(&mut self.0);
        let active = snapshot.pods.iter().filter(|(_, entry)| entry.is_active());
        for (uid, entry) in active {
            let same = known.remove(uid).filter(|(pod, _)| Arc::ptr_eq(pod, &entry.pod));
            let summed =
                same.unwrap_or_else(|| (Arc::clone(&entry.pod), pod_ask(&entry.pod, pod_level)));
            self.0.insert(uid.clone(), summed);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &PodAsk> + Clone {
        self.0.values().map(|(_, ask)| ask)
    }
}

impl CgroupTree {
    /// Keeps the levels in line with the pods until cancelled: when the pods' sums change, and once a minute in
    /// any case.
    pub async fn run(self, mut pods: watch::Receiver<PodsSnapshot>, cancel: CancellationToken) {
        let mut asks = Asks::default();
        let mut written = None;
        let mut ticks = tokio::time::interval(REFRESH);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let anyway = tokio::select! {
                // Cancel-safe: no state is held across the waits; a dropped change or tick is seen again.
                () = cancel.cancelled() => return,
                _ = ticks.tick() => true,
                () = self.inner.kubepods_written.notified() => true,
                changed = pods.changed() => match changed {
                    Ok(()) => false,
                    // The publisher is gone: the agent is shutting down.
                    Err(_) => return,
                },
            };
            let snapshot = pods.borrow_and_update().clone();
            asks.follow(&snapshot, self.inner.config.pod_level_resources);
            let config = &self.inner.config;
            let limits = qos_limits(asks.iter(), &config.qos, self.inner.driver.page_sizes());
            let wanted = (limits, snapshot.sources_ready);
            if anyway || written.as_ref() != Some(&wanted) {
                if let Some(shown) = &config.protected {
                    shown.show(protected_memory(asks.iter(), &config.qos));
                }
                self.write_levels(&wanted.0, wanted.1).await;
                written = Some(wanted);
            }
        }
    }

    /// Writes the levels' values; failures are only logged and retried within a minute.
    async fn write_levels(&self, wanted: &BTreeMap<QosClass, Limits>, sources_ready: bool) {
        let driver = &self.inner.driver;
        for (level, limits) in wanted {
            let name = self.inner.tree.level(*level);
            let mut limits = limits.clone();
            if !sources_ready {
                limits = only_raised(limits, &self.level_values(*level).await);
            }
            // A limit below the present usage fails: limit memory to the usage, so that it does not grow.
            if let Some(limit) = limits.memory_bytes
                && let Some(used) = self.usage(&name).await
            {
                limits.memory_bytes = Some(limit.max(i64::try_from(used).unwrap_or(i64::MAX)));
            }
            if let Err(error) = driver.apply(&name, &limits).await {
                tracing::error!(err = %error, cgroup = driver.path(&name), "failed to update QoS cgroup");
            }
        }
    }

    /// The present values of a level.
    async fn level_values(&self, level: QosClass) -> LevelValues {
        let driver = &self.inner.driver;
        let name = self.inner.tree.level(level);
        let number = async |controller: &'static str, file: &'static str| {
            let text = driver.read(&name, controller, file).await.ok()?;
            if text.trim() == "max" { Some(u64::MAX) } else { text.trim().parse().ok() }
        };
        if !driver.host().is_v2() {
            let cpu_shares = number("cpu", "cpu.shares").await;
            return LevelValues { cpu_shares, ..LevelValues::default() };
        }
        let mut unified = BTreeMap::new();
        for file in ["memory.min", "memory.low"] {
            if let Some(value) = number("memory", file).await {
                unified.insert(file.to_owned(), value);
            }
        }
        LevelValues { cpu_shares: None, cpu_weight: number("cpu", "cpu.weight").await, unified }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ports::{PodEntry, PodLife, PodSource};

    fn entry(cpu: &str, life: PodLife) -> PodEntry {
        let pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}));
        PodEntry {
            pod: Arc::new(pod.unwrap()),
            given: None,
            source: PodSource::Api,
            mirror: None,
            life,
            status: None,
            evicted: false,
        }
    }

    fn snapshot(entries: &[(&str, PodEntry)]) -> PodsSnapshot {
        let pods = entries.iter().map(|(uid, entry)| (PodUid::from(*uid), entry.clone()));
        PodsSnapshot { pods: Arc::new(pods.collect()), sources_ready: true }
    }

    #[test]
    fn pods_count_from_when_they_are_known_until_their_containers_have_stopped() {
        let mut asks = Asks::default();
        let mut sum = |entries: &[(&str, PodEntry)]| {
            asks.follow(&snapshot(entries), true);
            asks.iter().map(|ask| ask.cpu_request_milli).sum::<i64>()
        };
        let (one, two) = (entry("1", PodLife::Pending), entry("2", PodLife::Terminating));
        assert_eq!(sum(&[("a", one.clone()), ("b", two.clone())]), 3000);
        let over = PodEntry { life: PodLife::Terminated, ..two.clone() };
        assert_eq!(sum(&[("a", one.clone()), ("b", over)]), 1000);
        // Resized, the pod is another object.
        assert_eq!(sum(&[("a", entry("4", PodLife::Syncing)), ("b", two)]), 6000);
        assert_eq!(sum(&[]), 0);
    }
}
