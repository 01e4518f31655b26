//! The server's side of a WebSocket: the handshake and its frames.

use crate::reply::{self, Reply};
use axum::body::Body;
use base64::Engine as _;
use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, Method, StatusCode};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VERSION: HeaderValue = HeaderValue::from_static("13");
/// The most bytes of one message.
const MOST: usize = 1 << 24;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// What came from the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Bytes.
    Bytes(Vec<u8>),
    /// To be answered with the same bytes.
    Ping(Vec<u8>),
    /// The client goes.
    Close,
}

/// The protocols that the client offers in its first header of them.
pub(crate) fn offered(headers: &HeaderMap) -> Vec<String> {
    let list = headers.get(SEC_WEBSOCKET_PROTOCOL).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(list).split(',').map(|name| name.trim().to_owned()).collect()
}

/// The answer that switches to a WebSocket, or the refusal (Go: `x/net/websocket`).
pub(crate) fn accept(
    method: &Method,
    headers: &HeaderMap,
    protocol: &str,
) -> Result<Reply, Box<Reply>> {
    let refuse = |status, text: &'static str| Err(Box::new(reply::bare(status, text)));
    let first = |name| headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    if method != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "bad method");
    }
    let connection = String::from_utf8_lossy(first(CONNECTION)).to_lowercase();
    if !connection.contains("upgrade") {
        return refuse(StatusCode::BAD_REQUEST, "not websocket protocol");
    }
    let key = first(SEC_WEBSOCKET_KEY);
    if key.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "mismatch challenge/response");
    }
    if first(SEC_WEBSOCKET_VERSION) != b"13" {
        let mut reply = reply::bare(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        reply.headers_mut().insert(SEC_WEBSOCKET_VERSION, VERSION);
        return Err(Box::new(reply));
    }
    Ok(switched(key, protocol))
}

/// The same for a tunnel, which has stricter rules (gorilla: `Upgrader.Upgrade`); without a protocol
/// if none was agreed on.
pub(crate) fn accept_tunnel(
    method: &Method,
    headers: &HeaderMap,
    protocol: &str,
) -> Result<Reply, Box<Reply>> {
    let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    let nonce = base64::engine::general_purpose::STANDARD.decode(key);
    let status = if !lists(headers, CONNECTION, "upgrade") {
        StatusCode::BAD_REQUEST
    } else if method != Method::GET {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !lists(headers, SEC_WEBSOCKET_VERSION, "13")
        || !nonce.is_ok_and(|nonce| nonce.len() == 16)
    {
        StatusCode::BAD_REQUEST
    } else {
        return Ok(switched(key, protocol));
    };
    let mut reply = reply::error(status, status.canonical_reason().unwrap_or_default());
    reply.headers_mut().insert(SEC_WEBSOCKET_VERSION, VERSION);
    Err(Box::new(reply))
}

/// Whether a word is in a header's lists; what is no list ends at the first thing that is no word.
fn lists(headers: &HeaderMap, name: HeaderName, wanted: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    headers.get_all(name).iter().any(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        let words = text.split(',').map(|word| word.trim_matches([' ', '\t']));
        let mut words = words.take_while(|word| !word.is_empty() && word.chars().all(is_word));
        words.any(|word| word.eq_ignore_ascii_case(wanted))
    })
}

fn switched(key: &[u8], protocol: &str) -> Reply {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key);
    digest.update(GUID);
    let proof = base64::engine::general_purpose::STANDARD.encode(digest.finish());
    let mut reply = reply::bare(StatusCode::SWITCHING_PROTOCOLS, Body::empty());
    let headers = reply.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    for (name, value) in [(SEC_WEBSOCKET_PROTOCOL, protocol), (SEC_WEBSOCKET_ACCEPT, &*proof)] {
        if let Some(value) = HeaderValue::from_str(value).ok().filter(|_| !value.is_empty()) {
            headers.insert(name, value);
        }
    }
    reply
}

/// A frame of bytes, behind a prefix.
pub(crate) fn binary(prefix: &[u8], bytes: &[u8]) -> Vec<u8> {
    frame(BINARY, prefix, bytes)
}

/// The answer to a ping.
pub(crate) fn pong(bytes: &[u8]) -> Vec<u8> {
    frame(PONG, &[], bytes)
}

/// The end, with the status of a normal one.
pub(crate) fn close() -> Vec<u8> {
    frame(CLOSE, &1000_u16.to_be_bytes(), &[])
}

fn frame(kind: u8, prefix: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = prefix.len() + bytes.len();
    let mut frame = Vec::with_capacity(length + 10);
    frame.push(0x80 | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => frame.push(short),
        (_, Ok(medium)) => {
            frame.push(126);
            frame.extend(medium.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend(u64::try_from(length).unwrap_or(0).to_be_bytes());
        }
    }
    frame.extend(prefix);
    frame.extend(bytes);
    frame
}

/// Reads one message of the client. Not cancel-safe.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    let mut whole = Vec::new();
    loop {
        let [first, second] = read_some::<2>(stream).await?;
        let length = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes(read_some(stream).await?)),
            127 => u64::from_be_bytes(read_some(stream).await?),
            short => u64::from(short),
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if second & 0x80 == 0 || length.saturating_add(whole.len()) > MOST {
            return Err(io::Error::other("a frame is not masked or too large"));
        }
        let mask: [u8; 4] = read_some(stream).await?;
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await?;
        for (byte, mask) in bytes.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        match first & 0x0f {
            CLOSE => return Ok(Message::Close),
            PING => return Ok(Message::Ping(bytes)),
            PONG => {}
            kind if kind <= BINARY => {
                if kind == CONTINUATION || whole.is_empty() {
                    whole.extend(bytes);
                } else {
                    whole = bytes;
                }
                if first & 0x80 != 0 {
                    return Ok(Message::Bytes(whole));
                }
            }
            _ => return Err(io::Error::other("a frame of an unknown kind")),
        }
    }
}

async fn read_some<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, bytes: &[u8]) -> Vec<u8> {
        let mut frame = vec![first, 0x80 | u8::try_from(bytes.len()).unwrap(), 1, 2, 3, 4];
        frame.extend(bytes.iter().zip([1, 2, 3, 4].iter().cycle()).map(|(b, m)| b ^ m));
        frame
    }

    #[tokio::test]
    async fn messages_are_put_together_and_unmasked() {
        let mut wire = masked(0x02, b"ab");
        wire.extend(masked(0x80, b"cd"));
        wire.extend(masked(0x89, b"p"));
        wire.extend(masked(0x88, b""));
        let mut wire = wire.as_slice();
        assert_eq!(read(&mut wire).await.unwrap(), Message::Bytes(b"abcd".to_vec()));
        assert_eq!(read(&mut wire).await.unwrap(), Message::Ping(b"p".to_vec()));
        assert_eq!(read(&mut wire).await.unwrap(), Message::Close);
        assert!(read(&mut [0x82, 0x01, 0x00].as_slice()).await.is_err(), "not masked");
    }

    #[test]
    fn the_handshake_proves_that_the_key_was_read() {
        let mut headers = HeaderMap::new();
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        headers.insert(SEC_WEBSOCKET_KEY, key);
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        let refused = accept(&Method::GET, &headers, "x").unwrap_err();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[SEC_WEBSOCKET_VERSION]),
            (400, &VERSION)
        );
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let reply = accept(&Method::GET, &headers, "x").unwrap();
        assert_eq!(reply.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(accept(&Method::POST, &headers, "x").unwrap_err().status(), 405);
        let tunnel = accept_tunnel(&Method::GET, &headers, "").unwrap();
        assert!(!tunnel.headers().contains_key(SEC_WEBSOCKET_PROTOCOL));
        assert_eq!(accept_tunnel(&Method::POST, &headers, "x").unwrap_err().status(), 405);
        headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("x"));
        assert_eq!(accept_tunnel(&Method::GET, &headers, "x").unwrap_err().status(), 400);
        assert!(accept(&Method::GET, &headers, "x").is_ok(), "any key will do");
        headers.insert(CONNECTION, HeaderValue::from_static("upgraded"));
        assert!(accept(&Method::GET, &headers, "x").is_ok(), "the word is in it");
    }

    #[test]
    fn long_frames_say_their_length() {
        assert_eq!(binary(&[1], b"")[..], [0x82, 1, 1]);
        assert_eq!(binary(&[], &[0; 200])[..4], [0x82, 126, 0, 200]);
        assert_eq!(binary(&[], &[0; 70_000])[..2], [0x82, 127]);
    }
}
