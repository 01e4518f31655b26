//! Errors of requests, by how a caller may react to them.
//!
//! Promises: the text of a refusal is the API server's own, so that it can be shown in events and
//! waiting messages unchanged.

use kube::core::Status;
use std::time::Duration;

/// Why the server refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 404.
    NotFound,
    /// 409 with reason `AlreadyExists`.
    AlreadyExists,
    /// 409 otherwise.
    Conflict,
    /// 400 or 422.
    Invalid,
    /// 403.
    Forbidden,
    /// 401.
    Unauthorized,
    /// 410: the resource version is too old.
    Expired,
    /// 429.
    TooManyRequests,
    /// Any other status.
    Other,
}

/// A failed request.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ApiError {
    /// The server responded with an error status.
    #[error("{message}")]
    Refused {
        /// Which kind.
        kind: Refusal,
        /// The HTTP status code.
        code: u16,
        /// The server's text.
        message: String,
        /// How long the server asked to wait.
        retry_after: Option<Duration>,
    },
    /// The server was not reached, or the response was cut off.
    #[error("{0}")]
    Unreachable(String),
    /// The response could not be parsed.
    #[error("{0}")]
    Malformed(String),
}

impl ApiError {
    /// The refusal, if the server responded.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.refusal() == Some(Refusal::NotFound)
    }

    /// Whether the server itself refused the request, as opposed to being unreachable.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    pub(crate) fn timed_out(after: Duration) -> Self {
        Self::Unreachable(format!("no answer from the API server within {}s", after.as_secs()))
    }

    pub(crate) fn from_status(status: &Status) -> Self {
        let kind = match (status.code, status.reason.as_str()) {
            (404, _) => Refusal::NotFound,
            (409, "AlreadyExists") => Refusal::AlreadyExists,
            (409, _) => Refusal::Conflict,
            (400 | 422, _) => Refusal::Invalid,
            (403, _) => Refusal::Forbidden,
            (401, _) => Refusal::Unauthorized,
            (410, _) => Refusal::Expired,
            (429, _) => Refusal::TooManyRequests,
            _ => Refusal::Other,
        };
        let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
        Self::Refused {
            kind,
            code: status.code,
            message: status.message.clone(),
            retry_after: (seconds > 0).then(|| Duration::from_secs(u64::from(seconds))),
        }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(&status),
            kube::Error::SerdeError(e) => Self::Malformed(format!("decoding the answer: {e}")),
            kube::Error::BuildRequest(e) => Self::Malformed(format!("building the request: {e}")),
            kube::Error::HyperError(e) => Self::Unreachable(chain(&e)),
            kube::Error::Service(e) => Self::Unreachable(chain(&*e)),
            other => Self::Unreachable(chain(&other)),
        }
    }
}

/// The error and its sources, outermost first, skipping texts that the parent already contains.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str) -> Status {
        Status { code, reason: reason.into(), message: "text".into(), ..Status::default() }
    }

    #[test]
    fn sorts_refusals_by_code_and_reason() {
        for (code, reason, kind) in [
            (404, "NotFound", Refusal::NotFound),
            (409, "AlreadyExists", Refusal::AlreadyExists),
            (409, "Conflict", Refusal::Conflict),
            (422, "Invalid", Refusal::Invalid),
            (410, "Expired", Refusal::Expired),
            (500, "InternalError", Refusal::Other),
        ] {
            let error = ApiError::from_status(&status(code, reason));
            assert_eq!(error.refusal(), Some(kind), "{code} {reason}");
            assert_eq!(error.to_string(), "text");
        }
    }
}
