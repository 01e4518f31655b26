//! Crash-loop back-off as a value.
//!
//! Owns: one entry per container definition that was restarted, with the delay that its *next* restart must
//! respect. Same arithmetic as upstream (`flowcontrol.Backoff`): doubling up to a maximum, counted from the end
//! of the last run, reset when a run lasted longer than ten minutes, whatever the maximum. Also owns the pause
//! after a failed start that left its instance behind, which no delay covers because it never ran.
//!
//! Deliberately absent: jitter and a clock.

use api::core::v1::{Container, Pod};
use api::ids::ContainerId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Names one container definition: another image or other resources are another key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackOffKey(String);

impl BackOffKey {
    /// The key of a container of a pod.
    pub fn of(pod: &Pod, container: &Container) -> Self {
        let meta = &pod.metadata;
        let resources = container
            .resources
            .as_ref()
            .and_then(|r| serde_json::to_string(r).ok())
            .unwrap_or_default();
        let parts = [
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default(),
            &container.name,
            container.image.as_deref().unwrap_or_default(),
            &resources,
        ];
        Self(parts.join("/"))
    }
}

/// A run that lasted longer resets the back-off (upstream sets this for containers only, and does not derive it
/// from the maximum).
const GOOD_RUN: Duration = Duration::from_secs(600);

/// Pause between a failed start and the next, if the runtime keeps the created container: as after any failed
/// sync (upstream: `backOffPeriod`; a container that is only created does not trigger a sync there).
const FAILED_START_PAUSE: Duration = Duration::from_secs(10);

/// First and largest delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackOffCurve {
    initial: Duration,
    max: Duration,
}

impl BackOffCurve {
    /// A curve; the first delay is never above the maximum.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial: initial.min(max), max }
    }
}

impl Default for BackOffCurve {
    fn default() -> Self {
        Self::new(Duration::from_secs(10), Duration::from_secs(300))
    }
}

/// One remembered delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    delay: Duration,
    updated: Timestamp,
}

/// Delays of all containers that were restarted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackOff {
    curve: BackOffCurve,
    entries: BTreeMap<BackOffKey, Entry>,
    /// Instances that did not start, and when that was.
    failed: BTreeMap<ContainerId, Timestamp>,
}

impl BackOff {
    /// An empty one with this curve.
    pub fn new(curve: BackOffCurve) -> Self {
        Self { curve, entries: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Records that an instance was created and did not start.
    pub fn start_failed(&mut self, id: ContainerId, now: Timestamp) {
        self.failed.retain(|_, at| now < later(*at, FAILED_START_PAUSE));
        self.failed.insert(id, now);
    }

    /// When an instance that did not start may be created again, if not now.
    pub fn paused(&self, id: &ContainerId, now: Timestamp) -> Option<Timestamp> {
        let at = *self.failed.get(id)?;
        let until = later(at, FAILED_START_PAUSE);
        (at <= now && now < until).then_some(until)
    }

    /// If a container whose last run ended at `finished` must still wait: the whole delay and when it is over.
    pub fn waiting(
        &self,
        key: &BackOffKey,
        finished: Timestamp,
        now: Timestamp,
    ) -> Option<(Duration, Timestamp)> {
        let entry = self.entries.get(key)?;
        if expired(finished, entry) {
            return None;
        }
        let until = later(finished, entry.delay);
        // An end in the future means that the clock was set back since: how long ago it was is unknown, so do not wait.
        (finished <= now && now < until).then_some((entry.delay, until))
    }

    /// Records that the container is being started again after a run that ended at `finished`.
    pub fn advance(&mut self, key: &BackOffKey, finished: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !expired(finished, entry) => {
                entry.delay.saturating_mul(2).min(self.curve.max)
            }
            _ => self.curve.initial,
        };
        self.entries.insert(key.clone(), Entry { delay, updated: now });
    }

    /// Drops entries that no longer matter.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.entries.retain(|_, entry| !expired(now, entry));
    }

    /// The entries in a form that can be stored and read back by [`BackOff::restore`].
    pub fn save(&self) -> serde_json::Value {
        let rows: Vec<_> = self.entries.iter().collect();
        serde_json::to_value(rows).unwrap_or_default()
    }

    /// Takes over stored entries; unreadable ones are ignored.
    pub fn restore(&mut self, saved: &serde_json::Value) {
        for row in saved.as_array().into_iter().flatten() {
            if let Ok((key, entry)) = serde_json::from_value::<(BackOffKey, Entry)>(row.clone()) {
                self.entries.insert(key, entry);
            }
        }
    }
}

fn expired(at: Timestamp, entry: &Entry) -> bool {
    at > later(entry.updated, GOOD_RUN)
}

/// `at` plus `by`, or the end of time.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> BackOffKey {
        BackOffKey("p/ns/u/c/image/".to_owned())
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// Runs a container that fails at once until it was restarted `n` times; the delays it waited.
    fn delays(curve: BackOffCurve, n: usize) -> Vec<u64> {
        let mut back_off = BackOff::new(curve);
        let mut now = at(1_000);
        let mut seen = Vec::new();
        for _ in 0..n {
            let finished = now;
            let wait = back_off.waiting(&key(), finished, now).map_or(Duration::ZERO, |w| w.0);
            seen.push(wait.as_secs());
            now = later(now, wait);
            assert_eq!(back_off.waiting(&key(), finished, now), None);
            back_off.advance(&key(), finished, now);
        }
        seen
    }

    #[test]
    fn restarts_wait_0_10_20_40_80_160_300_300() {
        assert_eq!(delays(BackOffCurve::default(), 8), [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_small_maximum_lowers_the_first_delay() {
        let curve = BackOffCurve::new(Duration::from_secs(10), Duration::from_secs(1));
        assert_eq!(delays(curve, 4), [0, 1, 1, 1]);
    }

    #[test]
    fn a_long_run_starts_the_sequence_again() {
        let mut back_off = BackOff::default();
        back_off.advance(&key(), at(0), at(0));
        back_off.advance(&key(), at(10), at(20));
        let long = at(20 + 601);
        assert_eq!(back_off.waiting(&key(), long, long), None);
        back_off.advance(&key(), long, long);
        assert_eq!(back_off.waiting(&key(), long, long).map(|w| w.0.as_secs()), Some(10));
    }

    #[test]
    fn a_run_longer_than_a_small_maximum_does_not_start_the_sequence_again() {
        let mut back_off =
            BackOff::new(BackOffCurve::new(Duration::from_secs(10), Duration::from_secs(2)));
        back_off.advance(&key(), at(0), at(0));
        let ended = at(30);
        assert_eq!(back_off.waiting(&key(), ended, ended).map(|w| w.0.as_secs()), Some(2));
        back_off.forget_old(at(600));
        assert_eq!(back_off.entries.len(), 1);
    }

    #[test]
    fn entries_are_dropped_after_ten_minutes() {
        let mut back_off = BackOff::default();
        back_off.advance(&key(), at(0), at(0));
        back_off.forget_old(at(600));
        assert_eq!(back_off.entries.len(), 1);
        back_off.forget_old(at(601));
        assert!(back_off.entries.is_empty());
    }

    #[test]
    fn survives_a_restart_of_the_agent() {
        let mut back_off = BackOff::default();
        back_off.advance(&key(), at(0), at(5));
        let mut read = BackOff::default();
        read.restore(&back_off.save());
        assert_eq!(read, back_off);
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_up() {
        let mut back_off = BackOff::default();
        back_off.advance(&key(), at(10_000), at(10_000));
        back_off.start_failed("c".into(), at(10_000));
        assert!(back_off.waiting(&key(), at(10_001), at(10_001)).is_some());
        assert_eq!(back_off.waiting(&key(), at(10_001), at(6_400)), None);
        assert!(back_off.paused(&"c".into(), at(10_001)).is_some());
        assert_eq!(back_off.paused(&"c".into(), at(6_400)), None);
    }
}
