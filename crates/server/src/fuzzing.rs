//! Parsers of client input, for `fuzz/`: each takes any bytes and must neither panic nor hang.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::OnceLock;

use http::StatusCode;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::connections::Connections;
use crate::listen::{self, Protocol};
use crate::query::Query;
use crate::{accept, auth, body, exposition, form, gotime, handlers, reply, spdy, websocket};

/// The largest body that any route reads.
const MOST_BODY: usize = 1 << 16;

#[expect(clippy::expect_used, reason = "there is nothing to fuzz without a runtime")]
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_all().build().expect("a runtime"))
}

/// What the client does after it has sent everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    HangUp,
    #[cfg(test)]
    Wait,
}

/// A connection that receives these bytes, and a server that reads every body and responds.
fn connection(input: &[u8], protocol: Protocol, then: Then) -> Vec<u8> {
    runtime().block_on(async {
        let (client, server) = tokio::io::duplex(1 << 20);
        let (mut reader, mut writer) = tokio::io::split(client);
        let answers = |request: http::Request<hyper::body::Incoming>| async move {
            match body::read(request.into_body(), MOST_BODY).await {
                Ok(body) => reply::plain(StatusCode::OK, body.len().to_string()),
                Err(_) => reply::plain(StatusCode::BAD_REQUEST, String::new()),
            }
        };
        let send = async {
            // The server may close the connection before everything was sent.
            let _ = writer.write_all(input).await;
            if then == Then::HangUp {
                let _ = writer.shutdown().await;
            }
        };
        let mut answer = Vec::new();
        let read = reader.read_to_end(&mut answer);
        let place = Connections::new(listen::LIMITS).enter(Ipv4Addr::LOCALHOST.into());
        let _ = tokio::join!(listen::http(server, protocol, place, answers), send, read);
        answer
    })
}

/// An HTTP/1 connection: headers, chunks, and pipelined requests.
pub fn http1(input: &[u8]) {
    let answer = connection(input, Protocol::Http1, Then::HangUp);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
}

/// The chunks of one request's body.
pub fn chunked(input: &[u8]) {
    let head = b"POST /run/a/b/c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    http1(&[head, input].concat());
}

/// An HTTP/2 connection after its preface.
pub fn http2(input: &[u8]) {
    let input = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", input].concat();
    connection(&input, Protocol::Http2, Then::HangUp);
}

/// SPDY frames.
pub fn spdy_frames(input: &[u8]) {
    let mut reader = spdy::Reader::new(input);
    runtime().block_on(async { while reader.next().await.is_ok() {} });
}

/// WebSocket frames.
pub fn websocket_frames(input: &[u8]) {
    let mut reader = websocket::Reader::new(input);
    runtime().block_on(async {
        while let Ok(piece) = reader.next().await {
            if let websocket::Piece::Bytes { bytes, .. } = piece {
                assert!(bytes.len() <= input.len().min(websocket::PIECE));
            }
        }
    });
}

/// An `Accept` header, for metrics and for everything else.
pub fn accept_header(text: &str) {
    accept::parse(text);
    exposition::negotiate(text);
}

/// A `Range` header for a file of some length.
pub fn range_header(text: &str, length: u64) {
    if let Ok(parts) = handlers::files::ranges(text, length) {
        assert!(parts.iter().all(|(from, count)| from + count <= length), "{parts:?}");
    }
}

/// A form: its media type, and its parts with a boundary.
pub fn form_data(input: &[u8]) {
    form::media(&String::from_utf8_lossy(input));
    form::parts::read(input, "b");
}

/// A query as any route parses it, and as the log routes do.
pub fn query(text: &str) {
    let parsed = Query::parse(text);
    let _ = Query::strict(text);
    let _ = handlers::logs::parse(text);
    handlers::log_query::outcome(&parsed, Path::new("/nonexistent"));
}

/// Times in Go's formats and in those of HTTP headers.
pub fn times(text: &str) {
    gotime::rfc3339(text);
    gotime::http_time(text);
}

/// Client certificates, each preceded by its length in two bytes; the last one is the authority's.
pub fn certificates(mut input: &[u8]) {
    let mut chain = Vec::new();
    while let [high, low, rest @ ..] = input {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (der, more) = rest.split_at(length);
        chain.push(CertificateDer::from(der.to_vec()));
        input = more;
    }
    let Some(authority) = chain.pop() else { return };
    auth::is_vouched_for(&chain, std::slice::from_ref(&authority));
    auth::is_vouched_for(std::slice::from_ref(&authority), std::slice::from_ref(&authority));
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::fuzz::replay;

    const HEAD: &str = "POST /run HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";

    fn answer(request: &[u8]) -> String {
        let answer = connection(request, Protocol::Http1, Then::Wait);
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn kept_inputs_are_read_or_refused() {
        let text = |input: &[u8]| String::from_utf8_lossy(input).into_owned();
        replay("http", http1);
        replay("chunks", chunked);
        replay("http2", http2);
        replay("spdy", spdy_frames);
        replay("websocket", websocket_frames);
        replay("accept", |input| accept_header(&text(input)));
        replay("range", |input| range_header(&text(input), 1000));
        replay("form", form_data);
        replay("query", |input| query(&text(input)));
        replay("times", |input| times(&text(input)));
        replay("certificates", certificates);
    }

    #[test]
    fn a_body_beyond_its_limit_is_not_read() {
        let ask = |length: usize| {
            let body = "x".repeat(length);
            answer(format!("{HEAD}Content-Length: {length}\r\n\r\n{body}").as_bytes())
        };
        assert_eq!(ask(MOST_BODY), "HTTP/1.1 200 OK");
        assert_eq!(ask(MOST_BODY + 1), "HTTP/1.1 400 Bad Request");
        let chunks = format!("{:x}\r\n{}\r\n", 9000, "x".repeat(9000)).repeat(100);
        let request = format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        assert_eq!(answer(request.as_bytes()), "HTTP/1.1 400 Bad Request");
    }
}
