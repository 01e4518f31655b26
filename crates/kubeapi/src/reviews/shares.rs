//! Fair queuing of the callers that need a review.
//!
//! ```text
//!   peer A ─▶ queue ─▶ head ─┐
//!   peer B ─▶ queue ─▶ head ─┼─▶ (the rate limit, one place per peer)
//!   user C ─▶ queue ─▶ head ─┘
//! ```
//!
//! Promises: a caller with many reviews waits behind its own, not in front of others; queues are
//! short, and a caller without a place is rejected at once; a dropped caller leaves nothing behind.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximal number of keys.
const KEYS: usize = 1024;
/// Reviews of one key that are waiting or in flight, at most.
const PLACES: usize = 64;
/// Reviews of one key that are in flight at the same time.
const IN_FLIGHT: usize = 8;

/// The queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many reviews are asked for")]
pub(super) struct Busy;

/// The queues of all keys.
#[derive(Debug)]
pub(super) struct Shares<K: Eq + Hash> {
    lines: Mutex<HashMap<K, Line>>,
}

#[derive(Debug)]
struct Line {
    places: usize,
    in_flight: Arc<Semaphore>,
    head: Arc<Semaphore>,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    pub(super) fn new() -> Self {
        Self { lines: Mutex::default() }
    }

    /// Takes a place at the end of this key's queue.
    pub(super) fn enter(self: &Arc<Self>, key: &K) -> Result<Place<K>, Busy> {
        let mut lines = self.lock();
        if lines.len() >= KEYS && !lines.contains_key(key) {
            return Err(Busy);
        }
        let line = lines.entry(key.clone()).or_insert_with(|| Line {
            places: 0,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            head: Arc::new(Semaphore::new(1)),
        });
        if line.places >= PLACES {
            return Err(Busy);
        }
        line.places += 1;
        let (in_flight, head) = (Arc::clone(&line.in_flight), Arc::clone(&line.head));
        Ok(Place { shares: Arc::clone(self), key: key.clone(), in_flight, head })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a key's queue, released when dropped.
#[derive(Debug)]
pub(super) struct Place<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    key: K,
    in_flight: Arc<Semaphore>,
    head: Arc<Semaphore>,
}

impl<K: Eq + Hash> Place<K> {
    /// Waits until few enough of the key's reviews are in flight. The semaphore is never closed.
    pub(super) async fn start(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.in_flight).acquire_owned().await.ok()
    }

    /// Waits until this is the one of its key that may wait for the rate limit.
    pub(super) async fn head(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.head).acquire_owned().await.ok()
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut lines = self.shares.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.key) {
            line.places = line.places.saturating_sub(1);
            if line.places == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fills_its_own_line_and_no_other() {
        let shares = Arc::new(Shares::new());
        let mut places: Vec<_> = (0..PLACES).map(|_| shares.enter(&"loud").unwrap()).collect();
        assert_eq!(shares.enter(&"loud").unwrap_err(), Busy);
        shares.enter(&"quiet").unwrap();
        places.pop();
        shares.enter(&"loud").unwrap();
        places.clear();
        assert!(shares.lock().is_empty(), "nothing is kept of those who have gone");
    }

    #[test]
    fn there_are_only_so_many_keys() {
        let shares = Arc::new(Shares::new());
        let places: Vec<_> = (0..KEYS).map(|key| shares.enter(&key).unwrap()).collect();
        assert_eq!(shares.enter(&KEYS).unwrap_err(), Busy);
        shares.enter(&0).unwrap();
        drop(places);
        shares.enter(&KEYS).unwrap();
    }
}
