//! Those who follow the pods step by step (upstream: the pods API's `broadcaster`).
//!
//! Promises: telling never waits; a follower that is too slow is let go, and counted, and reads what it
//! was told before that.

use ports::{PodChange, PodChangeKind, ShownPod};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telemetry::metrics::CounterFamily;
use tokio::sync::mpsc;

/// Changes that a follower may have unread.
const UNREAD: usize = 100;

/// All followers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Followers {
    inboxes: Arc<Mutex<Vec<mpsc::Sender<PodChange>>>>,
    dropped: CounterFamily,
}

impl Followers {
    pub(crate) fn new(dropped: CounterFamily) -> Self {
        Self { inboxes: Arc::default(), dropped }
    }

    /// Every change from now on.
    pub(crate) fn add(&self) -> mpsc::Receiver<PodChange> {
        let (sender, inbox) = mpsc::channel(UNREAD);
        let mut inboxes = self.lock();
        inboxes.retain(|known| !known.is_closed());
        inboxes.push(sender);
        inbox
    }

    /// Tells everybody of a change.
    pub(crate) fn tell(&self, kind: PodChangeKind, shown: &ShownPod) {
        self.lock().retain(|inbox| {
            let change = PodChange { kind, shown: shown.clone() };
            match inbox.try_send(change) {
                Ok(()) => true,
                Err(mpsc::error::TrySendError::Closed(_)) => false,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    tracing::info!("Watch client channel is full, dropping client.");
                    self.dropped.inc(&[]);
                    false
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<mpsc::Sender<PodChange>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::StatusCache;
    use api::core::v1::{Pod, PodStatus};
    use engine::status::StatusGates;
    use telemetry::metrics::{Desc, Registry};
    use testkit::paused_clock::PausedClock;

    fn followers() -> (Followers, Registry) {
        let registry = Registry::new();
        let dropped = registry.counter(Desc::alpha("dropped_total", "Dropped."));
        (Followers::new(dropped), registry)
    }

    fn pod(name: &str) -> ShownPod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        ShownPod { pod: Arc::new(pod), status: None }
    }

    #[tokio::test]
    async fn a_follower_hears_what_happens_after_it_came_and_in_order() {
        let (followers, _) = followers();
        followers.tell(PodChangeKind::Added, &pod("before"));
        let mut inbox = followers.add();
        followers.tell(PodChangeKind::Added, &pod("a"));
        followers.tell(PodChangeKind::Deleted, &pod("a"));
        let kinds = [inbox.try_recv().unwrap().kind, inbox.try_recv().unwrap().kind];
        assert_eq!(kinds, [PodChangeKind::Added, PodChangeKind::Deleted]);
        assert!(inbox.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_status_is_told_as_added_then_modified_then_deleted_and_not_twice() {
        let (followers, registry) = followers();
        let terminated = registry.counter(Desc::alpha("t_total", "T.").labels(&["a", "b", "c"]));
        let clock = Arc::new(PausedClock::new());
        let cache = StatusCache::new(clock, StatusGates::default(), terminated, followers.clone());
        let mut inbox = followers.add();
        let pod = pod("a").pod;
        let phase = |phase: &str| PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        cache.set(&pod, None, phase("Pending"));
        cache.set(&pod, None, phase("Pending"));
        cache.set(&pod, None, phase("Running"));
        cache.finish(&pod, None);
        let heard: Vec<(PodChangeKind, String)> = std::iter::from_fn(|| inbox.try_recv().ok())
            .map(|change| (change.kind, change.shown.status.unwrap().phase.clone().unwrap()))
            .collect();
        let wanted = [
            (PodChangeKind::Added, "Pending".to_owned()),
            (PodChangeKind::Modified, "Running".to_owned()),
            (PodChangeKind::Deleted, "Failed".to_owned()),
        ];
        assert_eq!(heard, wanted);
    }

    #[tokio::test]
    async fn a_follower_that_reads_nothing_is_let_go_with_what_it_was_told() {
        let (followers, registry) = followers();
        let (mut slow, mut quick) = (followers.add(), followers.add());
        for round in 0..=UNREAD {
            followers.tell(PodChangeKind::Modified, &pod("a"));
            assert!(quick.try_recv().is_ok(), "round {round}");
        }
        let mut heard = 0;
        while slow.recv().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, UNREAD);
        assert!(registry.render().contains("dropped_total 1"), "{}", registry.render());
        followers.tell(PodChangeKind::Modified, &pod("a"));
        assert!(quick.try_recv().is_ok());
    }
}
