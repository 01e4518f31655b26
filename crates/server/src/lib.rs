//! The node's HTTP API.
//!
//! Owns: listeners, TLS, authentication and authorization, the routes and their responses.
//! Promises: unknown paths, invalid credentials, idle and slow clients cost next to nothing and
//! lock nobody out; on the secure port only the health checks are served without authentication;
//! streams are copied, never buffered.
//!
//! Deliberately absent: what pods are and do (`ports::Pods`), reviews (`ports::Reviews`).
#![forbid(unsafe_code)]

mod accept;
pub mod auth;
mod body;
mod certificate_files;
mod connections;
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
pub use handlers::stream::Sessions;
pub use health_metrics::HealthMetrics;
pub use pods_api::{PodsApiError, serve_pods};
pub use serve::{HealthCheck, ServerDeps};
pub use start::{ServerError, ServerSettings, start};

#[cfg(test)]
mod fuzz;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(test)]
mod tests;
