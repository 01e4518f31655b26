//! Go's text forms and Kubernetes' arithmetic: quantities, durations, CPU sets, hashes.
#![forbid(unsafe_code)]
