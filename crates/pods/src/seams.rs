//! What workers are given from outside, so that a test can give them its own.

use std::time::Duration;

/// The machine's processors.
pub trait Processors: Send + Sync + std::fmt::Debug {
    /// How many there are.
    fn count(&self) -> usize;

    /// How long all of them together have idled, since whenever; `None` if that is not known.
    fn idle(&self) -> Option<Duration>;
}
