//! Every decision, as pure functions over a view and now.
#![forbid(unsafe_code)]

pub mod cgroup;

pub mod volumes;
