//! Whether the machine has had little to do for a while.
#![expect(clippy::disallowed_methods, reason = "a developer's tool: it reads the real clock")]

use std::fs;
use std::time::{Duration, Instant};

/// How long it must last.
const LASTING: Duration = Duration::from_secs(4);

/// Jiffies of all cores since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spent {
    idle: u64,
    all: u64,
}

/// The first line of `/proc/stat`.
fn spent(stat: &str) -> Option<Spent> {
    let numbers: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        // Time in guests is part of the time in user mode.
        .take(8)
        .map_while(|number| number.parse().ok())
        .collect();
    let [_, _, _, idle, waiting, ..] = numbers.as_slice() else { return None };
    Some(Spent { idle: idle + waiting, all: numbers.iter().sum() })
}

/// Remembers since when it watches.
#[derive(Debug, Default)]
pub(crate) struct Idleness {
    since: Option<(Instant, Spent)>,
}

impl Idleness {
    /// Watch anew: what was seen no longer holds.
    pub(crate) fn forget(&mut self) {
        self.since = None;
    }

    /// Whether half of the machine idled for a while; then it is watched anew, since whoever asks
    /// gives it more to do.
    pub(crate) fn is_lasting(&mut self) -> bool {
        let now = fs::read_to_string("/proc/stat").ok().as_deref().and_then(spent);
        let Some(now) = now else { return false };
        let Some((since, before)) = self.since else {
            self.since = Some((Instant::now(), now));
            return false;
        };
        if since.elapsed() < LASTING {
            return false;
        }
        self.since = Some((Instant::now(), now));
        half_idle(before, now)
    }
}

fn half_idle(before: Spent, now: Spent) -> bool {
    let idle = now.idle.saturating_sub(before.idle);
    let all = now.all.saturating_sub(before.all);
    all > 0 && idle * 2 >= all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_guests_are_not_counted_twice() {
        let stat = "cpu  100 1 50 700 40 2 3 4 90 0\ncpu0 1 1 1 1\n";
        assert_eq!(spent(stat), Some(Spent { idle: 740, all: 900 }));
        assert_eq!(spent("cpu  1 2"), None);
        assert_eq!(spent("intr 1"), None);
    }

    #[test]
    fn half_of_the_time_must_have_passed_idly() {
        let before = Spent { idle: 100, all: 1000 };
        assert!(half_idle(before, Spent { idle: 150, all: 1100 }));
        assert!(!half_idle(before, Spent { idle: 149, all: 1100 }));
        assert!(!half_idle(before, before));
    }

    #[test]
    fn nothing_is_known_at_first() {
        let mut idleness = Idleness::default();
        assert!(!idleness.is_lasting());
        assert!(!idleness.is_lasting());
    }
}
