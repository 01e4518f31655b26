//! Equal concurrent reviews are sent once (singleflight).
//!
//! Promises: if the caller that started a review is dropped, the review continues for the others
//! that wait for it, and ends with the last of them. Nothing is retained after the result.

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Reviews in flight.
#[derive(Debug)]
pub(super) struct Flights<K, A: Clone> {
    in_flight: Mutex<HashMap<K, Flight<A>>>,
    began: AtomicU64,
}

#[derive(Debug)]
struct Flight<A: Clone> {
    number: u64,
    answer: WeakShared<BoxFuture<'static, A>>,
}

/// How a caller took part in a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The review was started for this caller.
    First,
    /// It was already in flight.
    Joined,
}

impl<K, A> Flights<K, A>
where
    K: Eq + Hash + Clone + Send + 'static,
    A: Clone + Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self { in_flight: Mutex::default(), began: AtomicU64::new(0) }
    }

    /// The result for `key`, started by `ask` unless it is in flight.
    pub(super) async fn join(
        self: &Arc<Self>,
        key: &K,
        ask: impl FnOnce() -> BoxFuture<'static, A>,
    ) -> (A, Part) {
        let (answer, part) = self.board(key, ask);
        (answer.await, part)
    }

    fn board(
        self: &Arc<Self>,
        key: &K,
        ask: impl FnOnce() -> BoxFuture<'static, A>,
    ) -> (Shared<BoxFuture<'static, A>>, Part) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = in_flight.get(key).and_then(|flight| flight.answer.upgrade()) {
            return (answer, Part::Joined);
        }
        let number = self.began.fetch_add(1, Ordering::Relaxed);
        let landing = Landing { flights: Arc::clone(self), key: key.clone(), number };
        let asked = ask();
        let answer = async move {
            let _landing = landing;
            asked.await
        };
        let answer = answer.boxed().shared();
        if let Some(answer) = answer.downgrade() {
            in_flight.insert(key.clone(), Flight { number, answer });
        }
        (answer, Part::First)
    }
}

/// Removes a review when it ends, with or without a result.
#[derive(Debug)]
struct Landing<K: Eq + Hash, A: Clone> {
    flights: Arc<Flights<K, A>>,
    key: K,
    number: u64,
}

impl<K: Eq + Hash, A: Clone> Drop for Landing<K, A> {
    fn drop(&mut self) {
        let mut in_flight = self.flights.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if in_flight.get(&self.key).is_some_and(|flight| flight.number == self.number) {
            in_flight.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn equal_questions_are_asked_once_and_outlive_who_began_them() {
        let flights = Arc::new(Flights::<&str, u32>::new());
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, waiting) = oneshot::channel::<u32>();
        let ask = || {
            asked.fetch_add(1, Ordering::Relaxed);
            waiting.map(Result::unwrap_or_default).boxed()
        };
        let mut first = Box::pin(flights.join(&"a", ask));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let other = || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(0).boxed()
        };
        let mut second = Box::pin(flights.join(&"a", other));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        answer.send(7).unwrap();
        assert_eq!(second.await, (7, Part::Joined));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(flights.in_flight.lock().unwrap().is_empty());
        assert_eq!(flights.join(&"a", other).await, (0, Part::First), "an answer is not kept");
    }

    #[tokio::test]
    async fn a_question_ends_with_the_last_who_waits_for_it() {
        let flights = Arc::new(Flights::<&str, u32>::new());
        let (mut answer, waiting) = oneshot::channel::<u32>();
        let ask = || waiting.map(Result::unwrap_or_default).boxed();
        let mut only = Box::pin(flights.join(&"a", ask));
        assert!(futures::poll!(only.as_mut()).is_pending());
        drop(only);
        answer.closed().await;
        assert!(flights.in_flight.lock().unwrap().is_empty());
    }
}
