//! Limits the connections of a socket, in total and per process.
//!
//! A client that opens connection after connection uses up only its own share: others are still
//! served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections of one process.
const MOST_OF_ONE: usize = 64;
/// Connections in total.
const MOST: usize = 512;

/// The peer's process id; `None` if the kernel does not report it.
pub(crate) type Peer = Option<i32>;

/// The connection slots of one socket. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seats(Arc<Mutex<BTreeMap<Peer, usize>>>);

impl Seats {
    /// A slot for one more connection of this process, if one is free.
    pub(crate) fn take(&self, peer: Peer) -> Option<Seat> {
        let mut taken = self.lock();
        let all: usize = taken.values().sum();
        let own = taken.get(&peer).copied().unwrap_or_default();
        if all >= MOST || own >= MOST_OF_ONE {
            return None;
        }
        taken.insert(peer, own + 1);
        Some(Seat { seats: self.clone(), peer })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Peer, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of one connection; released when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Seats,
    peer: Peer,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        if let Some(own) = taken.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_up_only_its_own_room() {
        let seats = Seats::default();
        let greedy: Vec<Seat> = std::iter::from_fn(|| seats.take(Some(1))).collect();
        assert_eq!(greedy.len(), MOST_OF_ONE);
        let other = seats.take(Some(2));
        assert!(other.is_some());
        drop(greedy);
        assert!(seats.take(Some(1)).is_some(), "seats are given back");
        assert_eq!(seats.lock().len(), 1, "who has none is forgotten");
    }

    #[test]
    fn many_processes_share_what_there_is() {
        let seats = Seats::default();
        let all: Vec<Seat> = (0..10_000).filter_map(|pid| seats.take(Some(pid))).collect();
        assert_eq!(all.len(), MOST);
    }
}
