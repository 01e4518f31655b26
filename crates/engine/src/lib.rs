//! Every decision, as pure functions over a view and now.
//!
//! Owns: what a pod needs next and where it is in its life ([`pod`]), what the API shows of it ([`status`]), what probes
//! mean ([`probe`]), whether the node takes it ([`admission`], [`allocation`]), when it has to go ([`eviction`],
//! [`shutdown`]), pods that no API server saw ([`static_pod`]), what is asked of the runtime ([`request`]) and of
//! cgroups ([`cgroup`], [`resources`]), where its CPUs and memory are ([`topology`], [`cpus`], [`memory`]), images, volumes and the node object.
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
