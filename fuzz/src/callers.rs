//! What callers of the node's API and clients of its sockets send.

use server::fuzzing;

use crate::{Target, text};

pub(crate) const TARGETS: &[Target] = &[
    ("http", fuzzing::http1),
    ("chunks", fuzzing::chunked),
    ("http2", fuzzing::http2),
    ("spdy", fuzzing::spdy_frames),
    ("websocket", fuzzing::websocket_frames),
    ("hpack", sockets::fuzzing::header_blocks),
    ("accept", |input| fuzzing::accept_header(text(input))),
    ("range", |input| fuzzing::range_header(text(input), 1000)),
    ("form", fuzzing::form_data),
    ("query", |input| fuzzing::query(text(input))),
    ("times", |input| fuzzing::times(text(input))),
    ("certificates", certificates),
    ("target", target),
    ("traceparent", traceparent),
];

fn certificates(input: &[u8]) {
    units::x509::outline_fault(input);
    fuzzing::certificates(input);
}

fn target(input: &[u8]) {
    let (path, query) = text(input).split_once('?').unwrap_or((text(input), ""));
    if let Ok(target) = server::target::Target::from_parts(path.as_bytes(), query) {
        let again = server::target::Target::from_parts(target.escaped.as_bytes(), "");
        assert_eq!(again.map(|again| again.path), Ok(target.path), "escaped, it is the same path");
    }
}

fn traceparent(input: &[u8]) {
    if let Some(context) = telemetry::traces::Context::from_header(text(input)) {
        let again = telemetry::traces::Context::from_header(&context.to_header());
        assert_eq!(again, Some(context));
    }
}
