//! Log formats, metrics registry and text exposition.
//!
//! Owns how the agent speaks to its operators: [`log`] writes klog text or JSON lines from `tracing` events,
//! [`metrics`] keeps counters, gauges and histograms and prints them as the Prometheus Go client does, and
//! [`traces`] keeps spans for a collector, and
//! [`Chain`] prints an error with its causes. It decides nothing about what is worth reporting.
#![forbid(unsafe_code)]

mod chain;
pub mod go_text;
pub mod log;
pub mod metrics;
pub mod traces;

pub use chain::Chain;
