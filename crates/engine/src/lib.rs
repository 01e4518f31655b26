//! Every decision, as pure functions over a view and now.
//!
//! Owns: what a pod needs next and its life cycle ([`pod`]), its status in the API ([`status`]), what probe results
//! mean ([`probe`]), whether the node admits it ([`admission`], [`allocation`]), when it is evicted or shut down
//! ([`eviction`], [`shutdown`]), static pods ([`static_pod`]), requests to the runtime ([`request`]) and cgroup values
//! ([`cgroup`], [`resources`]), placement of CPUs and memory ([`topology`], [`cpus`], [`memory`]), images, volumes, the
//! node object, and the clean-up of pods that are no longer configured and of what they left ([`housekeeping`]).
//!
//! Promises: no I/O, no clock, no logging, no randomness. Every function is total and deterministic;
//! `now` is an argument and state is a value that the caller keeps.
#![forbid(unsafe_code)]

pub mod admission;
pub mod allocation;
pub mod cgroup;
pub mod claims;
pub mod cpus;
pub mod devices;
pub mod eviction;
pub mod housekeeping;
pub mod image;
pub mod memory;
pub mod node;
pub mod oom;
pub mod pod;
pub mod probe;
pub mod request;
pub mod resources;
pub mod runtime;
pub mod shutdown;
pub mod startup;
pub mod static_pod;
pub mod status;
pub mod topology;
pub mod userns;
pub mod volumes;
