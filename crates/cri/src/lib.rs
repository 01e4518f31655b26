//! The CRI connection: deadlines, typed errors, event stream.
//!
//! [`RuntimeClient`] speaks to a container runtime's two services (which may be on different
//! sockets). It connects on first use and again after a loss, never faster than its back-off
//! allows; every call has a deadline of its class and fails with a [`CriError`] whose text is the
//! one the Go kubelet shows. [`EventStream`] delivers runtime events and reopens itself. Calls that
//! the runtime does not support are remembered in [`Features`].
//!
//! It decides nothing about pods: no retry of a call, no interpretation of a state.
#![forbid(unsafe_code)]

mod call;
mod client;
mod connect;
mod endpoint;
mod error;
mod events;
mod features;
mod health;
mod in_flight;
mod metrics;
mod verify;

pub use call::{Call, Service};
pub use client::{ClientConfig, ExecOutput, RuntimeClient, ValidateError};
pub use connect::{Connector, Io};
pub use endpoint::{Endpoint, EndpointError};
pub use error::CriError;
pub use events::{EventStream, RuntimeEvent};
pub use features::{Features, Support};
pub use health::Reachability;
pub use in_flight::SlowCall;
pub use metrics::{CallObserver, RuntimeOperations};
pub use proto::cri_v1 as api;
pub use tonic::Code;
