//! Wall time that follows tokio's, so that paused time moves both.

use jiff::{SignedDuration, Timestamp};
use ports::Clock;
use tokio::time::Instant;

/// A clock that shows a chosen time at its making and then runs with `tokio::time`.
#[derive(Debug, Clone, Copy)]
pub struct PausedClock {
    base: Timestamp,
    since: Instant,
}

impl PausedClock {
    /// Shows this time now.
    pub fn at(base: Timestamp) -> Self {
        Self { base, since: Instant::now() }
    }

    /// Shows a fixed date now.
    pub fn new() -> Self {
        Self::at(Timestamp::from_second(1_700_000_000).unwrap_or_default())
    }
}

impl Default for PausedClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.since.elapsed()).unwrap_or_default();
        self.base.checked_add(elapsed).unwrap_or(self.base)
    }
}
