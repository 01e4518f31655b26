//! Clients for probes and life-cycle hooks: HTTP(S), TCP and gRPC health.
//!
//! Promises: one connection per request, closed at its end; certificates are not verified (pods
//! have none that could be); every text is what the Go kubelet shows in events. The caller bounds
//! each call with the probe's own time limit; dropping a call closes its connection.
//!
//! Deliberately absent: exec, which goes through the runtime; deciding what an answer means for the container.
#![forbid(unsafe_code)]

pub mod action;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod grpc;
pub mod http;
mod http2;
mod proxy;
pub mod tcp;
mod texts;
mod url;
mod wire;

pub use url::Url;
pub use wire::Headers;

use std::sync::Arc;

/// Looks names up for one pod (or another owner), whose share of lookups is bounded.
#[derive(Debug, Clone)]
pub struct Names {
    resolver: sys::names::Resolver,
    owner: Arc<str>,
}

impl Names {
    /// Lookups on behalf of an owner.
    pub fn of(resolver: &sys::names::Resolver, owner: &str) -> Self {
        Self { resolver: resolver.clone(), owner: owner.into() }
    }

    async fn lookup(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<std::net::SocketAddr>, sys::names::LookupError> {
        self.resolver.lookup(&self.owner, host, port).await
    }

    /// Those of this machine.
    #[cfg(test)]
    pub(crate) fn here() -> Self {
        Self::of(&sys::names::Resolver::new(std::path::Path::new("/etc")), "test")
    }
}

/// How one probe run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
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
    pub fn error(message: impl Into<String>) -> Self {
        Self::Error { state: "unknown", message: message.into() }
    }

    /// A connection that failed because this node is out of ports, descriptors or memory was no probe: it
    /// says nothing about the container. Upstream counts it as a failure, and restarts containers for a want
    /// of the node's.
    pub fn unless_ours(self) -> Self {
        const WANTS: [&str; 5] = [
            ": too many open files",
            ": too many open files in system",
            ": no buffer space available",
            ": cannot allocate memory",
            wire::NO_ROOM,
        ];
        // For want of a port; on IPv6 it may as well mean that the address cannot be reached from here.
        let no_port = |text: &str| {
            text.ends_with(": connect: cannot assign requested address")
                && !text.contains("dial tcp [")
        };
        match self {
            Self::Failure(text)
                if no_port(&text) || WANTS.iter().any(|end| text.ends_with(end)) =>
            {
                Self::error(text)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_node_lacks_is_no_failure_of_the_container() {
        let dial = "Get \"http://10.0.0.5:80/\": dial tcp 10.0.0.5:80:";
        for (text, ours) in [
            (format!("{dial} connect: cannot assign requested address"), true),
            (format!("{dial} socket: too many open files"), true),
            (format!("{dial} connect: no buffer space available"), true),
            (format!("{dial} connect: connection refused"), false),
            (format!("{dial} i/o timeout"), false),
            ("dial tcp [::1]:80: connect: cannot assign requested address".to_owned(), false),
            ("HTTP probe failed with statuscode: 500".to_owned(), false),
        ] {
            let judged = ProbeAnswer::Failure(text.clone()).unless_ours();
            assert_eq!(matches!(judged, ProbeAnswer::Error { .. }), ours, "{text}");
        }
        for errno in [
            rustix::io::Errno::ADDRNOTAVAIL,
            rustix::io::Errno::MFILE,
            rustix::io::Errno::NFILE,
            rustix::io::Errno::NOBUFS,
            rustix::io::Errno::NOMEM,
        ] {
            let text = units::errno::go_text(&errno.into());
            let judged = ProbeAnswer::Failure(format!("{dial} connect: {text}")).unless_ours();
            assert!(matches!(judged, ProbeAnswer::Error { .. }), "{text}");
        }
        assert_eq!(ProbeAnswer::Success.unless_ours(), ProbeAnswer::Success);
    }
}
