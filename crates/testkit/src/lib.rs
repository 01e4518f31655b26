//! Fakes with real state, and private instances of the real parts.
#![forbid(unsafe_code)]

pub mod fake_api;
pub mod fake_cri;
#[expect(
    clippy::disallowed_methods,
    reason = "blocking code on the real machine: real time, real files"
)]
pub mod node_e2e;
pub mod paused_clock;
#[expect(
    clippy::disallowed_methods,
    reason = "blocking code on the real machine: real time, real files, own threads"
)]
pub mod real;

#[expect(
    clippy::disallowed_methods,
    reason = "a driver on the real machine: real files, its own tasks"
)]
pub mod csi_driver;

#[expect(
    clippy::disallowed_methods,
    reason = "a plugin on the real machine: real files, its own tasks"
)]
pub mod device_plugin;

#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "runs for a given time, says what it found and keeps it in files"
)]
pub mod fuzz;
