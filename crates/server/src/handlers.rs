//! The handlers of the routes.

pub(crate) mod about;
pub(crate) mod checkpoint;
pub(crate) mod debug;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod kinds;
pub(crate) mod log_query;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod node_logs;
pub(crate) mod pods;
pub(crate) mod profile;
mod runtime_pods;
pub(crate) mod stats;
pub(crate) mod stream;
mod translate;
mod volume_metrics;
