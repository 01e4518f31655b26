//! Answers in the forms that Go's servers give.

use axum::body::Body;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use serde::Serialize;

/// An answer.
pub(crate) type Reply = Response<Body>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_SNIFF: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));

/// An answer with a body of a type.
pub(crate) fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// Plain text, as go-restful writes errors.
pub(crate) fn plain(status: StatusCode, body: String) -> Reply {
    let mut reply = Response::new(Body::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, TEXT);
    reply
}

/// Plain text with a newline and `nosniff`, as `http.Error` writes it.
pub(crate) fn error(status: StatusCode, text: &str) -> Reply {
    let mut reply = plain(status, format!("{text}\n"));
    reply.headers_mut().insert(NO_SNIFF.0, NO_SNIFF.1);
    reply
}

/// Plain text with `nosniff`.
pub(crate) fn health(status: StatusCode, text: String) -> Reply {
    let mut reply = plain(status, text);
    reply.headers_mut().insert(NO_SNIFF.0, NO_SNIFF.1);
    reply
}

/// JSON of a value.
pub(crate) fn json(value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => with_type(StatusCode::OK, "application/json", body),
        Err(e) => plain(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// The same request at another path.
pub(crate) fn redirect(to: &str, query: Option<&str>) -> Reply {
    let target = query.map_or_else(|| to.to_owned(), |query| format!("{to}?{query}"));
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    if let Ok(value) = HeaderValue::from_str(&target) {
        reply.headers_mut().insert(LOCATION, value);
    }
    reply
}

/// A route that has other methods.
pub(crate) fn wrong_method(allow: &'static str) -> Reply {
    let mut reply = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed".to_owned());
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

/// No representation fits.
pub(crate) fn not_acceptable(available: &str) -> Reply {
    let text = format!("406: Not Acceptable\n\nAvailable representations: {available}");
    plain(StatusCode::NOT_ACCEPTABLE, text)
}
