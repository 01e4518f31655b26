//! When a failed operation may be tried again (upstream: `exponentialbackoff`).

use super::world::OpKey;
use std::collections::BTreeMap;
use std::time::Duration;

const INITIAL: Duration = Duration::from_millis(500);
const MAXIMUM: Duration = Duration::from_secs(2 * 60 + 2);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    operation: &'static str,
    wait: Duration,
    until: Duration,
}

/// Back-off per operation key. Times are durations since an arbitrary start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backoffs {
    entries: BTreeMap<OpKey, Entry>,
}

impl Backoffs {
    /// Until when `operation` may not run on `key`; `None` if it may run now. Another kind of
    /// operation than the one that failed is not blocked.
    pub fn blocked_until(
        &self,
        key: &OpKey,
        operation: &'static str,
        now: Duration,
    ) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        (entry.operation == operation && entry.until > now).then_some(entry.until)
    }

    /// Until when the operation that failed last on `key` must wait.
    pub fn waits_until(&self, key: &OpKey) -> Option<Duration> {
        self.entries.get(key).map(|entry| entry.until)
    }

    /// Records a failure; returns how long the operation must wait.
    pub fn failed(&mut self, key: OpKey, operation: &'static str, now: Duration) -> Duration {
        let wait = match self.entries.get(&key) {
            Some(entry) if entry.operation == operation => (entry.wait * 2).min(MAXIMUM),
            _ => INITIAL,
        };
        self.entries.insert(key, Entry { operation, wait, until: now + wait });
        wait
    }

    /// Records a success: resets the back-off.
    pub fn succeeded(&mut self, key: &OpKey) {
        self.entries.remove(key);
    }

    /// Drops entries of volumes that are no longer relevant.
    pub fn retain(&mut self, keep: impl Fn(&OpKey) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_two_minutes_and_restart_for_another_operation() {
        let key = OpKey::Volume("v".into());
        let mut backoffs = Backoffs::default();
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..10 {
            let wait = backoffs.failed(key.clone(), "mount", now);
            assert_eq!(backoffs.blocked_until(&key, "mount", now), Some(now + wait));
            assert_eq!(backoffs.blocked_until(&key, "unmount", now), None);
            now += wait;
            assert_eq!(backoffs.blocked_until(&key, "mount", now), None);
            waits.push(wait.as_millis());
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000]);
        assert_eq!(backoffs.failed(key, "unmount", now).as_millis(), 500);
    }
}
