//! Wall time, injected so that tests and the simulation control it.

use jiff::Timestamp;

/// A source of wall time. Monotonic time is `tokio::time`.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// The current wall time.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
