//! The node's HTTP API.
//!
//! Owns: listeners, TLS, identity and access of callers, the routes and their answers. Promises:
//! unknown paths, bad credentials and slow clients cost next to nothing; nothing but the health
//! port answers without a check on the secure port; streams are copied, never buffered.
//!
//! Deliberately absent: what pods are and do (`ports::Pods`), reviews (`ports::Reviews`).
#![forbid(unsafe_code)]

mod accept;
pub mod auth;
mod body;
mod certificate_files;
mod explain;
mod exposition;
mod form;
mod gotime;
mod handlers;
mod head;
pub mod health;
mod health_metrics;
mod listen;
mod pod_json;
mod pods_api;
mod query;
mod reply;
mod request_metrics;
pub mod route;
mod serve;
mod spdy;
mod start;
pub mod target;
pub mod tls;
mod websocket;

pub use explain::{explain_socket, serve_explain};
pub use handlers::checkpoint::CheckpointQuota;
pub use health_metrics::HealthMetrics;
pub use pods_api::{PodsApiError, serve_pods};
pub use serve::{HealthCheck, ServerDeps};
pub use start::{ServerError, ServerSettings, start};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
