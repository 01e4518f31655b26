//! Responses in the forms of Go's servers.

use crate::handlers::kinds;
use axum::body::{Body, Bytes, HttpBody};
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::{Method, Response, StatusCode};
use hyper::body::{Frame, SizeHint};
use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A response.
pub(crate) type Reply = Response<Body>;

/// Marks a response as the runtime's, which upstream passes on byte for byte, in the runtime's HTTP
/// version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verbatim;

const TEXT: &str = "text/plain; charset=utf-8";
const NO_SNIFF: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));

/// A response with a body and its content type.
pub(crate) fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Text, as go-restful writes errors: without a content type, so that Go's server detects one.
pub(crate) fn plain(status: StatusCode, body: String) -> Reply {
    let kind = kinds::of_start(body.as_bytes());
    with_type(status, kind, body)
}

/// Plain text with a newline and `nosniff`, as `http.Error` writes it.
pub(crate) fn error(status: StatusCode, text: &str) -> Reply {
    no_sniff(with_type(status, TEXT, format!("{text}\n")))
}

/// The same response with `nosniff`.
pub(crate) fn no_sniff(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(NO_SNIFF.0, NO_SNIFF.1);
    reply
}

/// A response without a content type.
pub(crate) fn bare(status: StatusCode, body: impl Into<Body>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = status;
    reply
}

/// JSON text.
pub(crate) fn json(text: impl Into<Body>) -> Reply {
    with_type(StatusCode::OK, "application/json", text)
}

/// A redirect to another path (Go: `http.Redirect`).
pub(crate) fn redirect(status: StatusCode, to: &str, method: &Method) -> Reply {
    let shown = to.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let shown = shown.replace('"', "&#34;").replace('\'', "&#39;");
    let text = status.canonical_reason().unwrap_or_default();
    let body = if method == Method::GET {
        Body::from(format!("<a href=\"{shown}\">{text}</a>.\n\n"))
    } else {
        Body::empty()
    };
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    if method == Method::GET || method == Method::HEAD {
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        reply.headers_mut().insert(CONTENT_TYPE, html);
    }
    if let Ok(value) = HeaderValue::from_str(&hex_escaped(to)) {
        reply.headers_mut().insert(LOCATION, value);
    }
    reply
}

/// Go: `hexEscapeNonASCII`.
fn hex_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "%{byte:x}");
            }
        }
    }
    escaped
}

/// 405 for a route that has other methods.
pub(crate) fn wrong_method(allow: &str) -> Reply {
    let mut reply = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned());
    if let Ok(value) = HeaderValue::from_str(allow) {
        reply.headers_mut().insert(ALLOW, value);
    }
    reply
}

/// 406: no representation fits.
pub(crate) fn not_acceptable(available: &str) -> Reply {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {available}");
    plain(StatusCode::NOT_ACCEPTABLE, text)
}

/// The request cannot be parsed; the connection is closed after the response.
pub(crate) fn bad_request(text: &str) -> Reply {
    let mut reply = with_type(StatusCode::BAD_REQUEST, TEXT, text.to_owned());
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// Go's response to a malformed request; `status` begins with the code.
pub(crate) fn refused(status: &str, text: &'static str) -> Reply {
    let code =
        status.split(' ').next().and_then(|code| StatusCode::from_bytes(code.as_bytes()).ok());
    let mut reply = bad_request(text);
    *reply.status_mut() = code.unwrap_or(StatusCode::BAD_REQUEST);
    reply
}

/// The same response, which holds a value until it is sent.
pub(crate) fn holding<T: Send + Unpin + 'static>(reply: Reply, held: T) -> Reply {
    reply.map(|body| Body::new(Holding { body, _held: held }))
}

struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_type_that_its_text_looks_like() {
        let kind = |reply: Reply| reply.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
        let content_type = |text: &str| kind(plain(StatusCode::NOT_FOUND, text.to_owned()));
        assert_eq!(content_type("container c does not exist"), TEXT);
        assert_eq!(content_type("container \u{1} does not exist"), "application/octet-stream");
        let far = format!("{}\u{1}", "x".repeat(512));
        assert_eq!(content_type(&far), TEXT, "nobody looks that far");
        assert_eq!(kind(error(StatusCode::NOT_FOUND, "\u{1}")), TEXT);
    }
}
