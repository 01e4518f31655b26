//! Permits per owner (usually a pod), so that no owner takes all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits of all owners that hold some or wait for one.
#[derive(Debug)]
pub(crate) struct Shares {
    each: usize,
    busy: Mutex<BTreeMap<String, Busy>>,
}

#[derive(Debug)]
struct Busy {
    places: Arc<Semaphore>,
    shares: usize,
}

impl Shares {
    /// This many permits for each owner.
    pub(crate) const fn new(each: usize) -> Self {
        Self { each, busy: Mutex::new(BTreeMap::new()) }
    }

    /// Waits for a permit of this owner.
    pub(crate) async fn take<S>(shares: S, owner: &str) -> Share<S>
    where
        S: std::ops::Deref<Target = Shares>,
    {
        let places = shares.enter(owner);
        let mut share = Share { owner: owner.to_owned(), shares, place: None };
        // The semaphore is never closed; without a permit the share is still counted.
        share.place = places.acquire_owned().await.ok();
        share
    }

    fn enter(&self, owner: &str) -> Arc<Semaphore> {
        let mut busy = self.lock();
        let entry = busy
            .entry(owner.to_owned())
            .or_insert_with(|| Busy { places: Arc::new(Semaphore::new(self.each)), shares: 0 });
        entry.shares += 1;
        Arc::clone(&entry.places)
    }

    fn leave(&self, owner: &str) {
        let mut busy = self.lock();
        let Some(entry) = busy.get_mut(owner) else { return };
        entry.shares = entry.shares.saturating_sub(1);
        if entry.shares == 0 {
            busy.remove(owner);
        }
    }

    #[cfg(test)]
    pub(crate) fn knows(&self, owner: &str) -> bool {
        self.lock().contains_key(owner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Busy>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit, or the wait for one; returned when dropped.
#[derive(Debug)]
pub(crate) struct Share<S: std::ops::Deref<Target = Shares>> {
    owner: String,
    shares: S,
    place: Option<OwnedSemaphorePermit>,
}

impl<S: std::ops::Deref<Target = Shares>> Drop for Share<S> {
    fn drop(&mut self) {
        self.place = None;
        self.shares.leave(&self.owner);
    }
}
