//! Certificates that the cluster signs for this node: the client certificate and the serving
//! certificate.
//!
//! ```text
//!             kubeconfig valid?  ──yes──▶ use it ─────────────────────┐
//!   start ─▶                                                          ▼
//!             no: bootstrap credentials ─▶ CSR ─▶ certificate ─▶ stored, in use ─▶ 70–90 % of its
//!                        ▲                                            │              life ─▶ CSR
//!                        └──────────────── expired ◀──────────────────┘
//! ```
//!
//! Promises: a new certificate is used by the next connection, and open connections are kept; an
//! expired client certificate leads back to the bootstrap credentials without a restart (upstream
//! ends the process instead).

mod establish;
mod key;
mod request;
mod rotation;
mod store;

pub use establish::{ClientCertConfig, EstablishError, Established, establish};
pub use key::{Names, Subject};
pub use request::RequestError;
pub use rotation::{CertificateState, Rotation, ServingConfig, serving, serving_alone};
pub use store::{CertStore, StoreError};
