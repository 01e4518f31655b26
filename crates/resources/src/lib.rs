//! Cgroup tree, CPU, memory, topology and device placement, checkpoints.
#![forbid(unsafe_code)]
