//! Every decision, as pure functions over a view and now.
//!
//! Owns: what a pod needs next ([`pod`]), what the API shows of it ([`status`]), how the runtime's
//! objects look to us ([`runtime`]) and what probes mean ([`probe`]).
//!
//! Promises: no I/O, no clock, no logging, no randomness. Every function is total and deterministic;
//! `now` is an argument and state is a value that the caller keeps.
#![forbid(unsafe_code)]

pub mod admission;
pub mod allocation;
pub mod cgroup;
pub mod eviction;
pub mod image;
pub mod node;
pub mod pod;
pub mod probe;
pub mod request;
pub mod resources;
pub mod runtime;
pub mod static_pod;
pub mod status;
pub mod volumes;
