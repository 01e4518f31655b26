//! Turns in which pods start, so that a hundred at once do not all become ready at the very end.
//!
//! Promises: as many pods start at a time as the processors can work on, first come, first served;
//! more as soon as processors idle (slow networks and image pulls wait, they do not work); a start
//! that takes long gives its slot back, so whatever hangs holds up nobody.

use crate::seams::Processors;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Starts under way per processor.
const PER_PROCESSOR: usize = 4;

/// The fewest starts under way, whatever the machine.
const FEWEST: usize = 8;

/// How long a start may keep its slot.
const KEEP: Duration = Duration::from_secs(4);

/// How often those who wait look whether processors idle.
const LOOK: Duration = Duration::from_millis(100);

/// A part of the processors that idles (one in …) and is worth more starts.
const WORTH: u32 = 5;

/// The slots in which pods start.
#[derive(Debug)]
pub(crate) struct StartSlots {
    processors: Arc<dyn Processors>,
    slots: Semaphore,
    usual: usize,
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Slots there are now: the usual ones, and those added while processors idled.
    slots: usize,
    /// The last look: when, and how long processors had idled until then.
    last: Option<(Instant, Duration)>,
}

impl StartSlots {
    pub(crate) fn new(processors: Arc<dyn Processors>) -> Self {
        let usual = processors.count().saturating_mul(PER_PROCESSOR).clamp(FEWEST, 1 << 16);
        Self {
            processors,
            slots: Semaphore::new(usual),
            usual,
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State { slots: usual, last: None }),
        }
    }

    /// A slot now, if one is free.
    pub(crate) fn try_take(&self) -> Option<Slot<'_>> {
        self.slots.try_acquire().ok().map(|permit| Slot { permit: Some(permit), slots: self })
    }

    /// Waits for a slot; dropping the wait gives up the place in the queue.
    pub(crate) async fn take(&self) -> Slot<'_> {
        let _waiting = Waiting::new(&self.waiting);
        let mut slot = pin!(self.slots.acquire());
        let permit = loop {
            tokio::select! {
                permit = &mut slot => break permit.ok(), // cancel-safe: polled again, in its place
                () = tokio::time::sleep(LOOK) => self.look(), // cancel-safe: a timer
            }
        };
        Slot { permit, slots: self }
    }

    /// Adds slots if processors idled since the last look.
    fn look(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        let now = Instant::now();
        if state.last.is_some_and(|(at, _)| now - at < LOOK) {
            return; // Somebody else who waits has just looked.
        }
        let Some(idle) = self.processors.idle() else { return };
        let before = state.last.replace((now, idle));
        let Some((at, before)) = before.filter(|(at, _)| now - *at < LOOK * 4) else { return };
        if has_spare(now - at, idle.saturating_sub(before), self.processors.count()) {
            // Twice as many, but never more than wait.
            let more = state.slots.min(self.waiting.load(Ordering::Relaxed));
            state.slots += more;
            self.slots.add_permits(more);
        }
    }

    /// Takes a slot away again that was added, once nobody waits.
    fn is_surplus(&self) -> bool {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let Ok(mut state) = self.state.lock() else { return false };
        let surplus = state.slots > self.usual;
        state.slots -= usize::from(surplus);
        surplus
    }
}

/// Whether enough of the processors idled within a stretch of time.
fn has_spare(passed: Duration, idled: Duration, processors: usize) -> bool {
    let processors = u32::try_from(processors).unwrap_or(u32::MAX);
    idled.saturating_mul(WORTH) >= passed.saturating_mul(processors)
}

/// A slot; given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    permit: Option<SemaphorePermit<'a>>,
    slots: &'a StartSlots,
}

impl Slot<'_> {
    /// Does the work in this slot, and goes on without it when that takes long.
    pub(crate) async fn hold<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let done = tokio::time::timeout(KEEP, &mut work).await;
        drop(self);
        match done {
            Ok(done) => done,
            Err(_) => work.await,
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take()
            && self.slots.is_surplus()
        {
            permit.forget();
        }
    }
}

/// One who waits, counted as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::task::JoinSet;

    /// Two processors that idle for this share of the time.
    #[derive(Debug)]
    struct Two {
        since: Instant,
        idle_percent: Option<u32>,
    }

    impl Two {
        fn slots(idle_percent: Option<u32>) -> Arc<StartSlots> {
            Arc::new(StartSlots::new(Arc::new(Self { since: Instant::now(), idle_percent })))
        }
    }

    impl Processors for Two {
        fn count(&self) -> usize {
            2
        }

        fn idle(&self) -> Option<Duration> {
            Some(self.since.elapsed() * 2 * self.idle_percent? / 100)
        }
    }

    /// When each of so many starts, which take this long, ends.
    async fn ends(slots: &Arc<StartSlots>, starts: usize, each: Duration) -> Vec<Duration> {
        let began = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..starts {
            let slots = Arc::clone(slots);
            all.spawn(async move {
                slots.take().await.hold(tokio::time::sleep(each)).await;
                began.elapsed()
            });
        }
        let mut ends = all.join_all().await;
        ends.sort();
        ends
    }

    #[tokio::test(start_paused = true)]
    async fn busy_processors_start_pods_a_few_at_a_time_in_order() {
        for unknown_or_busy in [None, Some(0), Some(19)] {
            let slots = Two::slots(unknown_or_busy);
            let ends = ends(&slots, 24, Duration::from_secs(1)).await;
            let waves: Vec<u64> = ends.iter().step_by(8).map(Duration::as_secs).collect();
            assert_eq!(waves, [1, 2, 3], "{unknown_or_busy:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_processors_let_everybody_start_soon_and_the_usual_number_comes_back() {
        let slots = Two::slots(Some(90));
        let ends = ends(&slots, 200, Duration::from_secs(3)).await;
        assert!(*ends.last().unwrap() < Duration::from_secs(4), "{ends:?}");
        assert_eq!(slots.slots.available_permits(), slots.usual);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_that_hang_hold_up_the_others_for_a_moment_only() {
        let slots = Two::slots(None);
        let mut hung = JoinSet::new();
        for _ in 0..slots.usual {
            let slots = Arc::clone(&slots);
            hung.spawn(async move { slots.take().await.hold(pending::<()>()).await });
        }
        tokio::task::yield_now().await;
        assert!(slots.try_take().is_none());
        let began = Instant::now();
        slots.take().await.hold(async {}).await;
        assert!(began.elapsed() <= KEEP, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_the_queue_is_not_counted_any_more() {
        let slots = Two::slots(Some(90));
        let held: Vec<_> = (0..slots.usual).map(|_| slots.try_take().unwrap()).collect();
        assert!(tokio::time::timeout(LOOK / 2, slots.take()).await.is_err());
        assert_eq!(slots.waiting.load(Ordering::Relaxed), 0);
        drop(held);
        assert_eq!(slots.slots.available_permits(), slots.usual);
    }
}
