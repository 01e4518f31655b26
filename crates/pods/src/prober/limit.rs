//! A budget of probes per second over all pods.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Hands out start times no closer together than the budget allows. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    gap: Duration,
    next: Arc<Mutex<Option<Instant>>>,
}

impl Budget {
    /// So many probes per second; zero means no limit.
    pub(crate) fn per_second(probes: u32) -> Self {
        let gap = Duration::from_secs(1).checked_div(probes).unwrap_or_default();
        Self { gap, next: Arc::default() }
    }

    /// Waits for a place. An unused second is not saved up: a burst stays spread.
    pub(crate) async fn take(&self) {
        let now = Instant::now();
        let at = {
            let Ok(mut next) = self.next.lock() else { return };
            let at = next.map_or(now, |planned| planned.max(now));
            *next = Some(at + self.gap);
            at
        };
        if at > now {
            tokio::time::sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_probes_take_two_seconds_at_five_hundred_per_second() {
        let budget = Budget::per_second(500);
        let began = Instant::now();
        futures::future::join_all((0..1001).map(|_| budget.take())).await;
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2100), "{took:?}");
    }
}
