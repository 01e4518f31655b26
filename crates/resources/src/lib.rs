//! The node's resources.
//!
//! Owns: the cgroup tree. Decisions and numbers are in `engine`, files in `sys`.
#![forbid(unsafe_code)]

pub mod cgroups;
