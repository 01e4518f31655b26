//! Log formats, metrics registry and text exposition.
//!
//! Owns the output for operators: [`log`] writes klog text or JSON lines from `tracing` events,
//! [`metrics`] holds counters, gauges and histograms and prints them as the Prometheus Go client
//! does, [`traces`] records spans for a collector, and [`Chain`] prints an error with its causes.
//! What is worth reporting is decided elsewhere.
#![forbid(unsafe_code)]

mod chain;
pub mod go_text;
pub mod log;
pub mod metrics;
pub mod traces;

pub use chain::Chain;
