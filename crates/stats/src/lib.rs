//! Cgroup, filesystem and network statistics, read once per window and shared.
#![forbid(unsafe_code)]
