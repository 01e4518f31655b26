//! Counters, gauges and histograms, printed as the Prometheus Go client prints them.
//!
//! A crate declares a [`Desc`] per metric next to the code that updates it, gets the family from a
//! [`Registry`] and holds the handle. Values that are cheap to read at scrape time come from a
//! collector closure instead. There is no global registry: each endpoint (`/metrics`,
//! `/metrics/resource`, …) has its own.
//!
//! A family has a bounded number of series; beyond it, new label values count under `other`, so
//! that no caller can grow the process by inventing labels.

mod desc;
mod exposition;
mod family;
mod process;
mod registry;
mod scrape;
mod standard;
mod work_queue;

pub use desc::{Desc, Kind, Stability, exponential_buckets, linear_buckets};
pub use exposition::{CONTENT_TYPE, push_header, push_label};
pub use family::{Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily};
pub use process::register_process;
pub use registry::Registry;
pub use scrape::{FamilySamples, Sample, SampleValue, Scrape};
pub use standard::{BuildInfo, register_build_info, register_features, register_own_counts};
pub use work_queue::WorkQueue;
