//! The slots of pulls, and who gets the next one.
//!
//! Owns: how many pulls run, and the line of those that wait. Promises: no slot is lost, also when one who
//! waits gives up; whoever is next by the order gets a slot as soon as one is free.

use engine::image::pull_order::{PullOrder, Waiting, next};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// The slots.
#[derive(Debug)]
pub(super) struct PullSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    order: PullOrder,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    free: usize,
    /// Pulls under way by registry.
    busy: BTreeMap<String, usize>,
    waiting: Vec<(Waiting, oneshot::Sender<Slot>)>,
}

/// The right to pull; given back when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    shared: Arc<Shared>,
    registry: String,
}

impl PullSlots {
    /// So many slots, `None` for no limit.
    pub(super) fn new(slots: Option<usize>, order: PullOrder) -> Self {
        let free = slots.unwrap_or(usize::MAX).max(1);
        let line = Line { free, busy: BTreeMap::new(), waiting: Vec::new() };
        Self(Arc::new(Shared { order, line: Mutex::new(line) }))
    }

    /// Waits for a slot. `None` only if a task failed while it held the line.
    pub(super) async fn take(&self, who: Waiting) -> Option<Slot> {
        let (give, get) = oneshot::channel();
        self.0.line.lock().ok()?.waiting.push((who, give));
        self.0.serve();
        get.await.ok()
    }
}

impl Shared {
    /// Gives free slots to those who are next.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some((slot, give)) = self.pick() else { return };
            // Outside of the lock: the slot of one who gave up comes back here and is free again.
            drop(give.send(slot));
        }
    }

    fn pick(self: &Arc<Self>) -> Option<(Slot, oneshot::Sender<Slot>)> {
        let mut line = self.line.lock().ok()?;
        if line.free == 0 {
            return None;
        }
        line.waiting.retain(|(_, give)| !give.is_closed());
        let index = next(self.order, line.waiting.iter().map(|(who, _)| who), &line.busy)?;
        let (who, give) = line.waiting.remove(index);
        line.free -= 1;
        *line.busy.entry(who.registry.clone()).or_default() += 1;
        Some((Slot { shared: Arc::clone(self), registry: who.registry }, give))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Ok(mut line) = self.shared.line.lock() {
            line.free = line.free.saturating_add(1);
            if let Some(running) = line.busy.get_mut(&self.registry) {
                *running -= 1;
                if *running == 0 {
                    line.busy.remove(&self.registry);
                }
            }
        }
        self.shared.serve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn who(priority: i32, registry: &str) -> Waiting {
        Waiting { priority, registry: registry.to_owned() }
    }

    #[test]
    fn slots_come_back_also_from_one_who_gave_up() {
        let pull_slots = PullSlots::new(Some(1), PullOrder::Arrival);
        let first = pull_slots.take(who(0, "a")).now_or_never().unwrap().unwrap();
        let mut second = Box::pin(pull_slots.take(who(0, "a")));
        let mut third = Box::pin(pull_slots.take(who(9, "a")));
        assert!(
            second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none()
        );
        drop(second);
        drop(first);
        let third = third.now_or_never().expect("the one behind who gave up is next").unwrap();
        // One who was given a slot and never looked.
        let mut fourth = Box::pin(pull_slots.take(who(0, "a")));
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(third);
        drop(fourth);
        assert!(pull_slots.take(who(0, "a")).now_or_never().is_some());
        assert!(pull_slots.0.line.lock().unwrap().busy.is_empty());
    }

    #[test]
    fn by_priority_the_important_overtake_and_registries_take_turns() {
        let pull_slots = PullSlots::new(Some(2), PullOrder::Priority);
        let slow = pull_slots.take(who(0, "slow")).now_or_never().unwrap();
        let quick = pull_slots.take(who(0, "quick")).now_or_never().unwrap();
        let mut waits: Vec<_> = [(0, "slow"), (0, "quick"), (100, "slow")]
            .map(|(priority, registry)| Box::pin(pull_slots.take(who(priority, registry))))
            .into();
        assert!(waits.iter_mut().all(|wait| wait.as_mut().now_or_never().is_none()));
        drop(quick);
        let first = waits.remove(2).now_or_never().expect("the important one overtakes");
        drop(first);
        let second = waits.remove(1).now_or_never().expect("then the registry that is less busy");
        drop((slow, second));
        assert!(waits.remove(0).now_or_never().is_some());
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let pull_slots = PullSlots::new(None, PullOrder::Priority);
        let slots: Vec<_> = (0..100).map(|n| pull_slots.take(who(n, "a")).now_or_never()).collect();
        assert!(slots.iter().all(|slot| matches!(slot, Some(Some(_)))));
    }
}
