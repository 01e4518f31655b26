//! The dispatcher's own sign of life (`kubelet: SyncLoopHealthCheck`).
//!
//! As upstream, the loop gives none while the runtime does not answer, and a sign may be minutes old before
//! anybody worries: a runtime that is restarted is no reason for a service manager to end the agent.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// A sign of life may always be this old.
const LEAST: Duration = Duration::from_secs(5 * 60);

/// What the check says, which upstream's says too.
const TOO_OLD: &str = "sync Loop took longer than expected";

/// When the dispatcher last went round. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    last: Arc<Mutex<Option<Instant>>>,
    limit: Duration,
}

impl Heartbeat {
    pub(crate) fn new(sync_frequency: Duration) -> Self {
        Self { last: Arc::default(), limit: LEAST.max(sync_frequency.saturating_mul(2)) }
    }

    /// The loop goes round.
    pub(crate) fn beat(&self) {
        if let Ok(mut last) = self.last.lock() {
            *last = Some(Instant::now());
        }
    }

    /// Nothing is wrong with a loop that has not begun.
    pub(crate) fn check(&self) -> Result<(), String> {
        let last = self.last.lock().ok().and_then(|last| *last);
        match last {
            Some(last) if last.elapsed() > self.limit => Err(TOO_OLD.to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_shows_after_five_minutes_or_two_periods() {
        for (frequency, limit) in [(60, 300), (600, 1200)] {
            let heart = Heartbeat::new(Duration::from_secs(frequency));
            tokio::time::advance(Duration::from_secs(10_000)).await;
            assert_eq!(heart.check(), Ok(()), "it has not begun");
            heart.beat();
            tokio::time::advance(Duration::from_secs(limit)).await;
            assert_eq!(heart.check(), Ok(()));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(heart.check(), Err(TOO_OLD.to_owned()));
            heart.beat();
            assert_eq!(heart.check(), Ok(()));
        }
    }
}
