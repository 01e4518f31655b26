//! Fakes with real state, and private instances of the real parts.
#![forbid(unsafe_code)]
