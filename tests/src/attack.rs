//! Attacks on a node by those who should not be able to hold it up: callers without credentials, callers
//! with some, pods, plugins (`make attack`).
//!
//! An [`Attack`] is a program that goes on until it is told to stop and counts what it did. While it runs,
//! a [`Stage`] watches what others notice: heart-beats, a new pod, `/healthz`, and what the agent itself
//! uses. [`table`] sets the figures of both kubelets side by side and says which limit was missed.

mod callers;
mod http2;
mod plugins;
mod pods;
mod stage;
pub mod table;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use stage::{Figures, Stage};

/// What an attacker knows of the node.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The stage that is attacked.
    pub stage: &'a Stage,
    /// When it must end.
    pub until: Until<'a>,
}

/// How long an attack goes on.
#[derive(Debug, Clone, Copy)]
pub struct Until<'a> {
    end: Instant,
    stop: &'a AtomicBool,
}

impl Until<'_> {
    /// Whether there is time left.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.end && !self.stop.load(Ordering::Relaxed)
    }

    /// Wait, but not beyond the end.
    pub fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.goes_on() && Instant::now() < end {
            std::thread::sleep(time.min(Duration::from_millis(20)));
        }
    }
}

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Its name, for `ATTACK=name` and the table.
    pub name: &'static str,
    /// What is counted, if the attack does as much as it is let: CPU is compared for each of them then.
    pub counts: Option<&'static str>,
    /// Attack until the time is over; how much was done.
    pub run: fn(Target<'_>) -> anyhow::Result<u64>,
}

/// Every attack, in the order of the table.
#[must_use]
pub fn all() -> Vec<Attack> {
    [callers::ATTACKS, http2::ATTACKS, pods::ATTACKS, plugins::ATTACKS].concat()
}

/// Do the same on several threads until all of them end; the sum of what they did.
fn crowd(count: usize, each: impl Fn(usize) -> anyhow::Result<u64> + Sync) -> anyhow::Result<u64> {
    std::thread::scope(|scope| {
        let each = &each;
        let running: Vec<_> = (0..count).map(|n| scope.spawn(move || each(n))).collect();
        let mut sum = 0;
        for thread in running {
            sum += thread.join().unwrap_or_else(|_| anyhow::bail!("an attacker panicked"))?;
        }
        Ok(sum)
    })
}
