//! The connection to the API server.
//!
//! Owns: the connection (kubeconfig, TLS, HTTP/2, rate limits), certificates obtained over it,
//! list/watch of pods, node and services, objects that pods refer to, pod and node writes, leases,
//! and events with their correlation.
//!
//! Promises: every request has a deadline; nothing here decides what a pod or node should look
//! like; errors carry the API server's own text.
//!
//! Deliberately absent: protobuf (requests and responses are JSON), and any PUT of an object that
//! was decoded into types, which would drop unknown fields.
#![forbid(unsafe_code)]

pub mod certs;
mod claims;
pub mod connection;
mod error;
mod events;
mod metrics;
mod node;
mod objects;
mod pods;
mod reviews;
mod storage;
mod tokens;
mod watch;

pub use claims::ApiClaims;
pub use connection::{Connection, ConnectionConfig, ConnectionError, Kubeconfig, Lane, Rate};
pub use error::{ApiError, Refusal};
pub use events::{ApiEvents, EventLog, EventsConfig};
pub use metrics::RequestMetrics;
pub use node::{LeaseApi, NodeApi};
pub use objects::{ApiObjects, ObjectsConfig, StandaloneObjects, Strategy};
pub use pods::{ApiPods, PodWatchEvent, watch_pods};
pub use reviews::ApiReviews;
pub use storage::ApiStorage;
pub use watch::Snapshot;
