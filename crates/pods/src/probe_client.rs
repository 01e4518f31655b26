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
mod proxy;
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

    /// A connection that failed because this node is out of ports, descriptors or memory was no probe: it
    /// says nothing about the container. Upstream counts it as a failure, and restarts containers for a want
    /// of the node's.
    pub(crate) fn unless_ours(self) -> Self {
        const WANTS: [&str; 4] = [
            ": too many open files",
            ": too many open files in system",
            ": no buffer space available",
            ": cannot allocate memory",
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
