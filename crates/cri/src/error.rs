//! Errors of calls, with the texts of the Go kubelet.

use std::error::Error;
use std::time::Duration;

use telemetry::go_text::quote;
use tonic::{Code, Status};
use units::GoDuration;

use crate::call::Call;
use crate::connect::DialError;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CriError {
    /// The runtime returned an error, or the connection to it failed.
    #[error("{}", rpc_text(*call, *code, message))]
    Rpc {
        /// What was called.
        call: Call,
        /// The gRPC code.
        code: Code,
        /// The runtime's text.
        message: String,
    },
    /// The response lacks a required field.
    #[error("{problem}")]
    BadReply {
        /// What was called.
        call: Call,
        /// What is missing.
        problem: String,
    },
    /// The request is invalid and was not sent.
    #[error("{problem}")]
    BadRequest {
        /// What would have been called.
        call: Call,
        /// What is wrong with it.
        problem: String,
    },
    /// A command in a container exceeded its timeout.
    #[error("command timed out: {} timed out after {}", quote(command), go_duration(*after))]
    CommandTimedOut {
        /// The command, joined by spaces.
        command: String,
        /// The timeout.
        after: Duration,
    },
}

impl CriError {
    pub(crate) fn from_status(call: Call, status: &Status) -> Self {
        let (code, message) = normalise(status);
        Self::Rpc { call, code, message }
    }

    pub(crate) fn deadline(call: Call) -> Self {
        let message = "context deadline exceeded".to_owned();
        Self::Rpc { call, code: Code::DeadlineExceeded, message }
    }

    /// What was called.
    pub fn call(&self) -> Call {
        match self {
            Self::Rpc { call, .. }
            | Self::BadReply { call, .. }
            | Self::BadRequest { call, .. } => *call,
            Self::CommandTimedOut { .. } => Call::ExecSync,
        }
    }

    /// The gRPC code, if there was a response.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Rpc { code, .. } => Some(*code),
            Self::CommandTimedOut { .. } => Some(Code::DeadlineExceeded),
            Self::BadReply { .. } | Self::BadRequest { .. } => None,
        }
    }

    /// The text without grpc-go's prefix.
    pub fn message(&self) -> String {
        match self {
            Self::Rpc { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// The object is not (or no longer) there.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// The runtime does not have this call.
    pub fn is_unimplemented(&self) -> bool {
        self.code() == Some(Code::Unimplemented)
    }

    /// The runtime could not be reached.
    pub fn is_unavailable(&self) -> bool {
        self.code() == Some(Code::Unavailable)
    }

    /// The deadline passed.
    pub fn is_deadline(&self) -> bool {
        self.code() == Some(Code::DeadlineExceeded)
    }
}

/// grpc-go's prefix around a status. A pull that failed with an unknown code has only its message,
/// which image code matches on. (cri-client: `pullImageV1`.)
fn rpc_text(call: Call, code: Code, message: &str) -> String {
    match (call, code) {
        (Call::PullImage, Code::Unknown) => message.to_owned(),
        _ => format!("rpc error: code = {} desc = {message}", sockets::code_name(code)),
    }
}

/// Code and message as grpc-go would return them: connection errors become `Unavailable`.
fn normalise(status: &Status) -> (Code, String) {
    let mut cause = status.source();
    let mut root = None;
    while let Some(err) = cause {
        if let Some(dial) = err.downcast_ref::<DialError>() {
            return (Code::Unavailable, dial.to_string());
        }
        root = Some(err);
        cause = err.source();
    }
    match root {
        Some(_) if status.message() == TIMEOUT => {
            (Code::DeadlineExceeded, "context deadline exceeded".to_owned())
        }
        Some(root) => (Code::Unavailable, format!("error reading from server: {root}")),
        None => match too_large(status.message()) {
            Some(message) => (Code::ResourceExhausted, message),
            None => (status.code(), status.message().to_owned()),
        },
    }
}

/// tonic's text for an expired deadline.
const TIMEOUT: &str = "Timeout expired";

/// grpc-go's text for a response over the size limit, from tonic's.
fn too_large(message: &str) -> Option<String> {
    let rest = message.strip_prefix("Error, decoded message length too large: found ")?;
    let (found, rest) = rest.split_once(" bytes, the limit is: ")?;
    let limit = rest.strip_suffix(" bytes")?;
    Some(format!("grpc: received message larger than max ({found} vs. {limit})"))
}

fn go_duration(duration: Duration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_in_grpc_go() {
        let status = Status::not_found("an error occurred when try to find container \"x\"");
        let err = CriError::from_status(Call::ContainerStatus, &status);
        assert!(err.is_not_found());
        assert_eq!(
            err.to_string(),
            "rpc error: code = NotFound desc = an error occurred when try to find container \"x\""
        );
    }

    #[test]
    fn a_pull_of_unknown_failure_keeps_only_its_message() {
        let status = Status::unknown("RegistryUnavailable: try later");
        let pull = CriError::from_status(Call::PullImage, &status);
        assert_eq!(pull.to_string(), "RegistryUnavailable: try later");
        let other = CriError::from_status(Call::RemoveImage, &status);
        assert_eq!(
            other.to_string(),
            "rpc error: code = Unknown desc = RegistryUnavailable: try later"
        );
    }

    #[test]
    fn a_timed_out_command_says_so() {
        let command = "cat /x".to_owned();
        let err = CriError::CommandTimedOut { command, after: Duration::from_secs(90) };
        assert_eq!(err.to_string(), "command timed out: \"cat /x\" timed out after 1m30s");
        assert!(err.is_deadline());
    }

    #[test]
    fn an_oversized_answer_reads_as_in_grpc_go() {
        let text =
            "Error, decoded message length too large: found 17 bytes, the limit is: 16 bytes";
        let err = CriError::from_status(Call::ListContainers, &Status::out_of_range(text));
        assert_eq!(
            err.to_string(),
            "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (17 vs. 16)"
        );
    }
}
