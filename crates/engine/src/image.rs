//! Decisions about images: what a name means, which credentials match, whether a pod may use an image
//! that is already present, and what to remove when space runs out.
//!
//! Owns: the reference grammar, keyring matching, the pull records' content and merge rules, the
//! order of image garbage collection.
//!
//! Promises: texts and file contents are those of the Go kubelet; secrets never appear in `Debug`.
//!
//! Deliberately absent: pulling, files, plugins. Those are executors in `images`.

pub mod gc;
pub mod keyring;
pub mod progress;
pub mod provider;
pub mod pull_order;
pub mod record;
pub mod reference;
