//! Decisions about images: what a name means, which credentials fit, whether a pod may use what is
//! already there, and what to remove when space runs out.
//!
//! Owns: the reference grammar, keyring matching, the pull records' content and merge rules, the
//! order of image garbage collection.
//!
//! Promises: texts and file contents are those of the Go kubelet; secrets never appear in `Debug`.
//!
//! Deliberately absent: pulling, files, plugins. Those are executors in `pods::images`.

pub mod gc;
pub mod keyring;
pub mod progress;
pub mod provider;
pub mod record;
pub mod reference;
pub mod turn;
