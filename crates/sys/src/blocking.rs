//! Work that may block in the kernel, off the runtime's worker threads.
//!
//! Owns: how many threads each purpose may occupy. All lanes share the runtime's pool of blocking
//! threads, which is built with [`MAX_THREADS`], the sum of the lanes' limits and a reserve. So a
//! lane that is full only makes its own callers wait, and idle threads end by themselves.
//!
//! Promises: a permit is held until the work itself has ended, even if its caller was dropped; one
//! pod never has more than `PER_POD` permits.
//!
//! Deliberately absent: timeouts. A thread that hangs in the kernel keeps its permit; work on paths
//! that may hang (volumes) uses a pool that takes the permit back.

use crate::shares::Shares;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Why blocking work returned no result.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// The closure panicked.
    #[error("blocking work panicked")]
    Panicked,
    /// The runtime is shutting down.
    #[error("blocking work was cancelled")]
    Cancelled,
}

/// What blocking work is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The node's own state and settings: checkpoints, certificates, facts about the machine.
    Node,
    /// Cgroup values: the kernel may reclaim memory before it returns from a write.
    Cgroups,
    /// Disk usage, which walks directory trees that pods have filled.
    Usage,
    /// Files that callers of the node's API read: logs and others.
    Callers,
    /// Names that only a library of the machine can resolve, whose servers may be slow.
    Names,
}

const NODE: usize = 8;
const CGROUPS: usize = 8;
const USAGE: usize = 4;
const CALLERS: usize = 8;
const NAMES: usize = 4;
const PODS: usize = 12;
/// Permits that one pod may have at a time.
const PER_POD: usize = 2;
/// For the runtime's own blocking work: name lookups of the API server, files of child processes.
const RESERVE: usize = 8;

/// The size of the runtime's pool of blocking threads with which no lane waits for another.
pub const MAX_THREADS: usize = NODE + CGROUPS + USAGE + CALLERS + NAMES + PODS + RESERVE;

static NODE_LANE: Semaphore = Semaphore::const_new(NODE);
static CGROUPS_LANE: Semaphore = Semaphore::const_new(CGROUPS);
static USAGE_LANE: Semaphore = Semaphore::const_new(USAGE);
static CALLERS_LANE: Semaphore = Semaphore::const_new(CALLERS);
static NAMES_LANE: Semaphore = Semaphore::const_new(NAMES);
static PODS_LANE: Semaphore = Semaphore::const_new(PODS);
static POD_SHARES: Shares = Shares::new(PER_POD);

/// Runs `work` for the node itself.
pub async fn run<T, F>(work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    run_for(Purpose::Node, work).await
}

/// Runs `work` in the lane of its purpose.
pub async fn run_for<T, F>(purpose: Purpose, work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let lane = match purpose {
        Purpose::Node => &NODE_LANE,
        Purpose::Cgroups => &CGROUPS_LANE,
        Purpose::Usage => &USAGE_LANE,
        Purpose::Callers => &CALLERS_LANE,
        Purpose::Names => &NAMES_LANE,
    };
    on_thread(place(lane).await?, work).await
}

/// Runs `work` on the files of one pod (or of another owner with a name of its own).
pub async fn run_for_pod<T, F>(pod: &str, work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let share = Shares::take(&POD_SHARES, pod).await;
    let lane = place(&PODS_LANE).await?;
    on_thread((lane, share), work).await
}

/// Holds the permit until the work has ended, even if its caller was dropped.
async fn on_thread<T, F>(held: impl Send + 'static, work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let work = move || {
        let _held = held;
        work()
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| if e.is_panic() { BlockingError::Panicked } else { BlockingError::Cancelled })
}

async fn place(lane: &'static Semaphore) -> Result<SemaphorePermit<'static>, BlockingError> {
    // The lanes are never closed.
    lane.acquire().await.map_err(|_| BlockingError::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A runtime as the agent builds it.
    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(MAX_THREADS)
            .enable_all()
            .build()
            .unwrap()
    }

    /// Work that ends when the sender is dropped.
    fn gated() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (open, gate) = mpsc::channel::<()>();
        (open, move || assert!(gate.recv().is_err()))
    }

    #[test]
    fn a_full_lane_holds_up_nobody_else() {
        runtime().block_on(async {
            let mut gates = Vec::new();
            let mut stuck = Vec::new();
            for purpose in [Purpose::Usage, Purpose::Callers] {
                for _ in 0..100 {
                    let (open, work) = gated();
                    gates.push(open);
                    stuck.push(Box::pin(run_for(purpose, work)));
                }
            }
            let mut all = futures::future::join_all(stuck);
            assert!(futures::poll!(&mut all).is_pending());
            assert_eq!(run(|| 1).await.unwrap(), 1);
            assert_eq!(run_for(Purpose::Cgroups, || 2).await.unwrap(), 2);
            assert_eq!(run_for_pod("fine", || 3).await.unwrap(), 3);
            drop(gates);
            all.await;
        });
    }

    #[test]
    fn one_pod_does_not_hold_up_another() {
        runtime().block_on(async {
            let mut gates = Vec::new();
            let mut stuck = Vec::new();
            for _ in 0..100 {
                let (open, work) = gated();
                gates.push(open);
                stuck.push(run_for_pod("greedy", work));
            }
            let mut all = Box::pin(futures::future::join_all(stuck));
            assert!(futures::poll!(&mut all).is_pending());
            assert_eq!(run_for_pod("modest", || 1).await.unwrap(), 1);
            drop(gates);
            all.await;
            let left = || POD_SHARES.knows("greedy") || POD_SHARES.knows("modest");
            // The last permit is returned by the thread that had it.
            while left() {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_place_is_held_until_the_work_ends_also_when_nobody_waits() {
        runtime().block_on(async {
            let mut gates = Vec::new();
            for _ in 0..PER_POD {
                let (open, work) = gated();
                gates.push(open);
                let mut call = Box::pin(run_for_pod("left", work));
                assert!(futures::poll!(&mut call).is_pending());
            }
            let mut next = Box::pin(run_for_pod("left", || 1));
            assert!(futures::poll!(&mut next).is_pending());
            drop(gates);
            assert_eq!(next.await.unwrap(), 1);
        });
    }

    #[test]
    fn a_panic_gives_the_place_back() {
        runtime().block_on(async {
            for _ in 0..PODS * 2 {
                let lost = run_for_pod("clumsy", || panic!("on purpose")).await;
                assert!(matches!(lost, Err::<(), _>(BlockingError::Panicked)));
            }
        });
    }
}
