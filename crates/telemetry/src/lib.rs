//! Log formats, metrics registry and text exposition.
#![forbid(unsafe_code)]
