//! Container log files: reading them (all, the end, as they grow) and rotating them.
//!
//! Promises: following a log loses no line when the file is rotated: the old file is read to its
//! end before the new one is begun. Reading is done in large pieces on the blocking pool; a reader
//! whose receiver is full waits, one whose receiver is dropped stops.
//!
//! Deliberately absent: which log to read, and what rotation means for the runtime.

mod read;
mod rotate;

pub use read::{LogError, LogQuery, read_log};
pub use rotate::{prepare, remove_all, rename_back, rename_rotated, size};
