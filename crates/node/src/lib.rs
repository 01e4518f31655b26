//! Node registration, status, lease, eviction and garbage loops, shutdown.
#![forbid(unsafe_code)]
