//! Clients for probes and life-cycle hooks: HTTP(S), TCP and gRPC health.
//!
//! Promises: one connection per request, closed at its end; certificates are not verified (pods
//! have none that could be); every text is what the Go kubelet shows in events. The caller bounds
//! each call with the probe's own time limit; dropping a call closes its connection.
//!
//! Deliberately absent: exec, which goes through the runtime.

pub(crate) mod action;
pub(crate) mod grpc;
pub(crate) mod http;
mod http2;
pub(crate) mod tcp;
mod texts;
pub(crate) mod url;
pub(crate) mod wire;

/// How one probe run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeAnswer {
    /// The container answered well.
    Success,
    /// It answered well enough; the text goes into a `ProbeWarning` event.
    Warning(String),
    /// It answered badly or not at all; the text goes into an `Unhealthy` event.
    Failure(String),
    /// The probe itself could not be made: says nothing about the container.
    Error {
        /// The state named in the event: `unknown`, or `failure` for a body that broke off.
        state: &'static str,
        /// What went wrong.
        message: String,
    },
}

impl ProbeAnswer {
    /// The probe could not be made.
    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::Error { state: "unknown", message: message.into() }
    }
}
