//! The node's HTTPS API: authentication, streaming, logs, metrics, stats.
#![forbid(unsafe_code)]
