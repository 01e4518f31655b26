//! When to look at which log: at least once per period, sooner when it grows so fast that it would be
//! full before that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

const SOONEST: Duration = Duration::from_secs(1);

/// A log to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) id: String,
    pub(super) path: PathBuf,
}

/// Logs of running containers.
#[derive(Debug)]
pub(super) struct Watchlist {
    max_size: u64,
    interval: Duration,
    logs: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    due: Instant,
    last: Option<(u64, Instant)>,
}

impl Watchlist {
    pub(super) fn new(max_size: u64, interval: Duration) -> Self {
        Self { max_size, interval, logs: BTreeMap::new() }
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.logs.contains_key(id)
    }

    pub(super) fn add(&mut self, id: String, path: PathBuf, now: Instant) {
        self.logs.insert(id, Entry { path, due: now, last: None });
    }

    /// Drops all others.
    pub(super) fn keep(&mut self, running: &[String]) {
        let running: BTreeSet<&String> = running.iter().collect();
        self.logs.retain(|id, _| running.contains(id));
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.logs.remove(id);
    }

    /// Logs whose time has come.
    pub(super) fn due(&self, now: Instant) -> Vec<Watched> {
        let due = self.logs.iter().filter(|(_, entry)| entry.due <= now);
        due.map(|(id, entry)| Watched { id: id.clone(), path: entry.path.clone() }).collect()
    }

    /// When the next log is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.logs.values().map(|entry| entry.due).min()
    }

    /// Notes a size and plans the next look.
    pub(super) fn seen(&mut self, id: &str, size: u64, now: Instant) {
        let (max_size, interval) = (self.max_size, self.interval);
        let Some(entry) = self.logs.get_mut(id) else { return };
        let wait = match entry.last {
            None => SOONEST,
            Some((before, at)) => {
                let grown = size.saturating_sub(before);
                time_to_fill(max_size.saturating_sub(size), grown, now.duration_since(at))
            }
        };
        entry.due = now + wait.clamp(SOONEST.min(interval), interval);
        entry.last = Some((size, now));
    }
}

/// How long until `room` is used up at the rate of `grown` in `elapsed`.
fn time_to_fill(room: u64, grown: u64, elapsed: Duration) -> Duration {
    if grown == 0 {
        return Duration::MAX;
    }
    let nanos = elapsed.as_nanos().saturating_mul(u128::from(room)) / u128::from(grown);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn quiet_logs_wait_for_the_period_and_fast_ones_do_not() {
        let mut list = Watchlist::new(1000, Duration::from_secs(10));
        let start = Instant::now();
        list.add("a".into(), "/a".into(), start);
        assert_eq!(list.due(start).len(), 1);
        list.seen("a", 100, start);
        assert_eq!(list.next(), Some(start + SOONEST), "a second look tells the rate");
        let at = start + SOONEST;
        list.seen("a", 100, at);
        assert_eq!(list.next(), Some(at + Duration::from_secs(10)));
        let at = at + Duration::from_secs(10);
        list.seen("a", 400, at);
        assert_eq!(list.next(), Some(at + Duration::from_secs(10)), "30 bytes a second");
        let at = at + Duration::from_secs(2);
        list.seen("a", 700, at);
        assert_eq!(list.next(), Some(at + Duration::from_secs(2)), "150 bytes a second");
        list.keep(&[]);
        assert_eq!(list.next(), None);
    }
}
