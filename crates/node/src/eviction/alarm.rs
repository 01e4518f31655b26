//! Memory threshold notifications of the kernel, between two rounds (kubelet:
//! `memoryThresholdNotifier`).
//!
//! Only cgroup version 1 supports them; on version 2 none are registered, as upstream.

use api::stats::{MemoryStats, Summary};
use engine::eviction::{Signal, Threshold};
use futures::future::{FutureExt, select_all};
use std::path::PathBuf;
use std::time::Duration;
use sys::memcg::MemoryAlarm;
use tokio::time::Instant;
use units::Quantity;

/// How often the notifications are adjusted to the reclaimable memory.
const REARM: Duration = Duration::from_secs(10);

/// The cgroups whose memory usage is watched.
#[derive(Debug, Clone)]
pub struct AlarmPlaces {
    /// The memory controller's root.
    pub node: PathBuf,
    /// The memory cgroup of all pods.
    pub pods: PathBuf,
}

/// The registered notifications.
#[derive(Debug)]
pub(super) struct Alarms {
    places: Option<AlarmPlaces>,
    armed: Vec<MemoryAlarm>,
    next: Instant,
}

impl Alarms {
    pub(super) fn new(places: Option<AlarmPlaces>) -> Self {
        Self { places, armed: Vec::new(), next: Instant::now() }
    }

    /// Registers a notification per memory threshold at the usage at which it would be met now.
    pub(super) fn follow(&mut self, thresholds: &[Threshold], summary: &Summary) {
        let Some(places) = &self.places else { return };
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + REARM;
        let mut armed = Vec::new();
        for threshold in thresholds {
            let (place, memory) = match threshold.signal {
                Signal::MemoryAvailable => (&places.node, summary.node.memory.as_ref()),
                Signal::AllocatableMemoryAvailable => {
                    let pods = summary.node.system_containers.iter().find(|c| c.name == "pods");
                    (&places.pods, pods.and_then(|c| c.memory.as_ref()))
                }
                _ => continue,
            };
            let Some(usage) = memory.and_then(|memory| usage_at(threshold, memory)) else {
                tracing::info!(
                    signal = threshold.signal.as_str(),
                    "Eviction manager: failed to update notifier: summary was incomplete"
                );
                continue;
            };
            match MemoryAlarm::arm(place, usage) {
                Ok(alarm) => armed.push(alarm),
                Err(error) => {
                    tracing::info!(err = %error, signal = threshold.signal.as_str(), "Eviction manager: failed to update notifier");
                }
            }
        }
        self.armed = armed;
    }

    /// Waits for the next notification; forever without one. Cancel-safe: a count that was not read
    /// stays.
    pub(super) async fn rung(&mut self) {
        if self.armed.is_empty() {
            return std::future::pending().await;
        }
        let (rung, index, _) = select_all(self.armed.iter_mut().map(|a| a.rung().boxed())).await;
        if let Err(error) = rung {
            tracing::info!(err = %error, "Eviction manager: error while waiting for memcg events");
            self.armed.swap_remove(index);
        }
    }
}

/// The usage at which the working set leaves less than the threshold: capacity − threshold + the
/// usage outside the working set.
fn usage_at(threshold: &Threshold, memory: &MemoryStats) -> Option<u64> {
    let (usage, working_set) = memory.usage_bytes.zip(memory.working_set_bytes)?;
    let capacity = memory.available_bytes?.saturating_add(working_set);
    let whole = Quantity::from_bytes(i64::try_from(capacity).unwrap_or(i64::MAX));
    let wanted = u64::try_from(threshold.value.quantity(whole).value()).unwrap_or_default();
    Some(capacity.saturating_sub(wanted).saturating_add(usage.saturating_sub(working_set)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::eviction::threshold::Value;

    #[test]
    fn the_alarm_rings_where_the_working_set_meets_the_threshold() {
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: Value::Amount(Quantity::from_bytes(100)),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let memory = MemoryStats {
            available_bytes: Some(600),
            working_set_bytes: Some(400),
            usage_bytes: Some(450),
            ..MemoryStats::default()
        };
        assert_eq!(usage_at(&threshold, &memory), Some(1000 - 100 + 50));
        assert_eq!(usage_at(&threshold, &MemoryStats::default()), None);
    }
}
