//! Back-off of failed pulls, per pod and image.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const INITIAL: Duration = Duration::from_secs(10);
const MAX: Duration = Duration::from_secs(300);

/// Delays after failed pulls.
#[derive(Debug, Default)]
pub(super) struct PullBackOff {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    delay: Duration,
    since: Instant,
    /// `<reason>: <message>` of the failure.
    last: String,
}

impl PullBackOff {
    /// The last failure, if the next pull must wait.
    pub(super) fn waiting(&self, key: &str, now: Instant) -> Option<&str> {
        let entry = self.entries.get(key)?;
        (now.duration_since(entry.since) < entry.delay).then_some(entry.last.as_str())
    }

    /// Notes a failure.
    pub(super) fn failed(&mut self, key: &str, now: Instant, last: String) {
        let delay = match self.entries.get(key) {
            Some(entry) if now.duration_since(entry.since) <= MAX * 2 => (entry.delay * 2).min(MAX),
            _ => INITIAL,
        };
        self.entries.insert(key.into(), Entry { delay, since: now, last });
        self.forget_old(now);
    }

    /// Drops entries that no longer matter.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.entries.retain(|_, entry| now.duration_since(entry.since) <= MAX * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_five_minutes_and_start_again_after_ten() {
        let mut back_off = PullBackOff::default();
        for want in [10, 20, 40, 80, 160, 300, 300] {
            back_off.failed("k", Instant::now(), "ErrImagePull: no".into());
            tokio::time::advance(Duration::from_secs(want) - Duration::from_millis(1)).await;
            assert_eq!(back_off.waiting("k", Instant::now()), Some("ErrImagePull: no"), "{want}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(back_off.waiting("k", Instant::now()), None, "{want}");
        }
        tokio::time::advance(Duration::from_secs(601)).await;
        back_off.failed("k", Instant::now(), String::new());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(back_off.waiting("k", Instant::now()), None);
    }
}
