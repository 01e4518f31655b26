//! The calls in flight, so that one that does not return can be named.
//!
//! Promises: a call is in the list from its start to its end, also when its future is dropped.
//! Calls without a deadline (pulls) are not included: there is no measure of how long they should
//! take.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::call::Call;

/// A call that has used a considerable part of its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowCall {
    /// Which call.
    pub call: Call,
    /// How long it has been running.
    pub running: Duration,
    /// Its deadline.
    pub deadline: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    known: BTreeMap<u64, (Call, Instant, Duration)>,
}

/// The entry of one call in the list.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    list: &'a InFlight,
    number: u64,
}

impl InFlight {
    pub(crate) fn enter(&self, call: Call, deadline: Option<Duration>) -> Option<Entry<'_>> {
        let deadline = deadline?;
        let mut calls = self.lock();
        let number = calls.next;
        calls.next += 1;
        calls.known.insert(number, (call, Instant::now(), deadline));
        Some(Entry { list: self, number })
    }

    /// Calls that have used this part of their deadline, the oldest first.
    pub(crate) fn slow(&self, part: u32) -> Vec<SlowCall> {
        let now = Instant::now();
        let calls = self.lock();
        let slow = calls.known.values().map(|(call, since, deadline)| SlowCall {
            call: *call,
            running: now.saturating_duration_since(*since),
            deadline: *deadline,
        });
        slow.filter(|slow| slow.running >= slow.deadline / part).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.list.lock().known.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_slow_once_it_has_used_up_its_part_and_until_it_ends() {
        let list = InFlight::default();
        let minute = Duration::from_secs(60);
        let stop = list.enter(Call::StopPodSandbox, Some(minute));
        let pull = list.enter(Call::PullImage, None);
        assert_eq!(list.slow(4), []);
        tokio::time::advance(minute / 2).await;
        let status = list.enter(Call::Status, Some(minute));
        let slow = SlowCall { call: Call::StopPodSandbox, running: minute / 2, deadline: minute };
        assert_eq!(list.slow(4), [slow]);
        tokio::time::advance(minute / 2).await;
        assert_eq!(list.slow(4).len(), 2);
        drop((stop, pull));
        assert_eq!(list.slow(4)[0].call, Call::Status);
        drop(status);
        assert_eq!(list.slow(4), []);
    }
}
