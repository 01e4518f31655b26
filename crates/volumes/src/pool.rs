//! Bounded pool for calls that may block in the kernel, with a quarantine for those that do not return.
//!
//! Each call runs on a thread of its own. At most [`HEALTHY`] run at a time; one that takes longer than
//! [`HOLD`] releases its permit and its key is quarantined: no further call on that key is started until
//! it returns. After its [`Patience`] the caller gets an error. So a hung mount costs a sleeping thread,
//! not the node, and others wait two seconds for it at most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

/// Calls that may run at once.
const HEALTHY: usize = 16;
/// How long a call may hold its permit.
const HOLD: Duration = Duration::from_secs(2);
/// A call is reported as hung after this.
pub(crate) const SHOWN_AFTER: Duration = Duration::from_secs(10);
/// Hung calls after which no new ones are started on any key.
const MAX_HUNG: usize = 256;

/// Whether an error is about a quarantined call.
pub(crate) fn tells_of_quarantine(error: &str) -> bool {
    error.contains("is quarantined")
}

/// Why a call gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PoolError {
    /// The call has not returned; its key is quarantined.
    #[error("{step} on {key} has not returned for {}s and is quarantined", waited.as_secs())]
    Hung {
        /// What was done.
        step: &'static str,
        /// On which path.
        key: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// An earlier call on the same key hangs.
    #[error("{key} is quarantined: {step} has not returned for {}s", since.as_secs())]
    Quarantined {
        /// What hangs.
        step: &'static str,
        /// On which path.
        key: String,
        /// Since when.
        since: Duration,
    },
    /// Too many calls hang.
    #[error("too many file system calls do not return ({0})")]
    Full(usize),
    /// No thread could be started, or the call panicked.
    #[error("{step} on {key} ended without a result")]
    Lost {
        /// What was done.
        step: &'static str,
        /// On which path.
        key: String,
    },
}

#[derive(Debug, Clone)]
struct Hung {
    step: &'static str,
    since: Instant,
}

/// The pool. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    places: Arc<Semaphore>,
    hung: Arc<Mutex<BTreeMap<String, Hung>>>,
    /// In simulations: the machine that makes the calls instead, one at a time.
    #[cfg(test)]
    simulated: Option<crate::tests::simulation::Machine>,
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// After this the caller gets an error and the key stays quarantined.
    GiveUp(Duration),
    /// No limit and no quarantine; the call reports its progress itself.
    Unlimited,
}

/// For calls that normally take milliseconds.
pub(crate) const NORMAL: Patience = Patience::GiveUp(Duration::from_secs(60));

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(HEALTHY)),
            hung: Arc::default(),
            #[cfg(test)]
            simulated: None,
        }
    }

    /// Makes its calls on a simulated machine.
    #[cfg(test)]
    pub(crate) fn on(machine: crate::tests::simulation::Machine) -> Self {
        Self { simulated: Some(machine), ..Self::new() }
    }

    /// Runs `work`, which acts on `key` (a path, a volume).
    pub(crate) async fn run<T, F>(
        &self,
        key: &str,
        step: &'static str,
        patience: Patience,
        work: F,
    ) -> Result<T, PoolError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.check(key)?;
        #[cfg(test)]
        if let Some(machine) = &self.simulated {
            return Ok(machine.call(work).await);
        }
        let lost = || PoolError::Lost { step, key: key.to_owned() };
        let place = self.places.acquire().await.map_err(|_| lost())?;
        let (sender, receiver) = oneshot::channel();
        let hung = Arc::clone(&self.hung);
        let name = key.to_owned();
        let started = Instant::now();
        std::thread::Builder::new()
            .name("volume".into())
            .spawn(move || {
                let result = work();
                if let Ok(mut hung) = hung.lock() {
                    hung.remove(&name);
                }
                // The receiver is gone when the call was given up.
                drop(sender.send(result));
            })
            .map_err(|_| lost())?;
        let (limit, give_up) = match patience {
            Patience::GiveUp(limit) => (limit, true),
            Patience::Unlimited => (Duration::MAX, false),
        };
        let mut receiver = receiver;
        if let Ok(result) = tokio::time::timeout(HOLD.min(limit), &mut receiver).await {
            return result.map_err(|_| lost());
        }
        drop(place);
        // A call that reports its own progress is slow, not hung.
        if !give_up {
            return receiver.await.map_err(|_| lost());
        }
        if let Ok(mut hung) = self.hung.lock() {
            hung.insert(key.to_owned(), Hung { step, since: started });
        }
        match tokio::time::timeout(limit.saturating_sub(HOLD), &mut receiver).await {
            Ok(result) => {
                // The thread may have ended just before the key was inserted.
                if let Ok(mut hung) = self.hung.lock() {
                    hung.remove(key);
                }
                result.map_err(|_| lost())
            }
            Err(_) => Err(PoolError::Hung { step, key: key.to_owned(), waited: started.elapsed() }),
        }
    }

    fn check(&self, key: &str) -> Result<(), PoolError> {
        let Ok(hung) = self.hung.lock() else { return Ok(()) };
        if let Some(entry) = hung.get(key) {
            let since = entry.since.elapsed();
            return Err(PoolError::Quarantined { step: entry.step, key: key.to_owned(), since });
        }
        if hung.len() >= MAX_HUNG {
            return Err(PoolError::Full(hung.len()));
        }
        Ok(())
    }

    /// Every hung call, for display: `<step> on <key> for <n>s`.
    pub(crate) fn quarantined(&self) -> Vec<String> {
        let Ok(hung) = self.hung.lock() else { return Vec::new() };
        hung.iter()
            .filter(|(_, h)| h.since.elapsed() >= SHOWN_AFTER)
            .map(|(key, h)| format!("{} on {key} for {}s", h.step, h.since.elapsed().as_secs()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_hung_call_is_quarantined_and_others_go_on() {
        let pool = Pool::new();
        let soon = Patience::GiveUp(Duration::from_millis(20));
        let mut gates = Vec::new();
        // More than there are permits.
        for n in 0..HEALTHY * 2 {
            let (open, gate) = mpsc::channel::<()>();
            gates.push(open);
            let key = format!("/hung/{n}");
            let result = pool.run(&key, "stat", soon, move || gate.recv().is_ok()).await;
            assert!(matches!(result, Err(PoolError::Hung { .. })));
        }
        assert_eq!(pool.hung.lock().unwrap().len(), HEALTHY * 2);
        assert_eq!(pool.run("/fine", "stat", NORMAL, || 7).await, Ok(7));
        let refused = pool.run("/hung/0", "stat", soon, || ()).await;
        assert!(matches!(refused, Err(PoolError::Quarantined { .. })));
        drop(gates);
        // Once the call returns, the key is free again.
        for _ in 0..1000 {
            if pool.hung.lock().unwrap().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(pool.run("/hung/0", "stat", NORMAL, || 1).await, Ok(1));
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let result = Pool::new().run("/x", "stat", NORMAL, || panic!("on purpose")).await;
        assert_eq!(result, Err::<(), _>(PoolError::Lost { step: "stat", key: "/x".into() }));
    }
}
