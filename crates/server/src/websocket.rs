//! The server side of a WebSocket: handshake and frames.
//!
//! Promises: a message of any length is returned in small pieces as it arrives; control frames may
//! come between them and have the maximal size of the standard.

use crate::reply::{self, Reply, Verbatim};
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
/// The maximal bytes of a message that are returned at once.
pub(crate) const PIECE: usize = 16 << 10;
/// The maximal bytes of a control frame (RFC 6455, section 5.5).
const MOST_CONTROL: u64 = 125;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A piece of the client's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes of a message.
    Bytes {
        /// They are its first.
        first: bool,
        /// They are its last.
        last: bool,
        /// At most `PIECE` bytes.
        bytes: Vec<u8>,
    },
    /// To be answered with the same bytes.
    Ping(Vec<u8>),
    /// The client closes the connection.
    Close,
}

/// The protocols that the client offers in its first such header.
pub(crate) fn offered(headers: &HeaderMap) -> Vec<String> {
    let list = headers.get(SEC_WEBSOCKET_PROTOCOL).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(list).split(',').map(|name| name.trim().to_owned()).collect()
}

/// The response that switches to a WebSocket, or the error (Go: `x/net/websocket`).
pub(crate) fn accept(
    method: &Method,
    headers: &HeaderMap,
    protocol: &str,
) -> Result<Reply, Box<Reply>> {
    let refuse = |status, text: &'static str| {
        let mut reply = reply::bare(status, text);
        // Go's library writes this response itself, with its own HTTP version.
        reply.extensions_mut().insert(Verbatim);
        Err(Box::new(reply))
    };
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

/// The same for a tunnel, which has stricter rules (gorilla: `Upgrader.Upgrade`); without a
/// protocol if none was agreed on.
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

/// Whether a token is in a header's lists; a malformed list ends at the first thing that is not a
/// token.
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

/// A binary frame with a prefix before its bytes.
pub(crate) fn binary(prefix: &[u8], bytes: &[u8]) -> Vec<u8> {
    frame(BINARY, prefix, bytes)
}

/// The response to a ping.
pub(crate) fn pong(bytes: &[u8]) -> Vec<u8> {
    frame(PONG, &[], bytes)
}

/// A close frame with the status of a normal closure.
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

/// Reads the frames of a client.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    stream: R,
    /// The data frame that is not completely read.
    frame: Option<DataFrame>,
    /// Whether a message has begun and not ended.
    within: bool,
    /// Whether nothing of the message was returned yet.
    first: bool,
}

#[derive(Debug)]
struct DataFrame {
    left: u64,
    mask: [u8; 4],
    /// Whether the message ends with this frame.
    last: bool,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, frame: None, within: false, first: true }
    }

    /// The next piece. Not cancel-safe.
    pub(crate) async fn next(&mut self) -> io::Result<Piece> {
        loop {
            if let Some(frame) = self.frame.take() {
                return self.piece(frame).await;
            }
            let [first, second] = read_some::<2>(&mut self.stream).await?;
            let (last, kind) = (first & 0x80 != 0, first & 0x0f);
            let length = match second & 0x7f {
                126 => u64::from(u16::from_be_bytes(read_some(&mut self.stream).await?)),
                127 => u64::from_be_bytes(read_some(&mut self.stream).await?),
                short => u64::from(short),
            };
            if second & 0x80 == 0 || first & 0x70 != 0 {
                return Err(io::Error::other("a frame is not masked or of an extension"));
            }
            let mask = read_some(&mut self.stream).await?;
            if kind <= BINARY {
                // Only a message in progress can be continued, and it must end before another
                // begins.
                if (kind == CONTINUATION) != self.within {
                    return Err(io::Error::other("a frame of another message"));
                }
                self.first |= !self.within;
                self.within = !last;
                self.frame = Some(DataFrame { left: length, mask, last });
                continue;
            }
            if !last || length > MOST_CONTROL {
                return Err(io::Error::other("a control frame in parts or too long"));
            }
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            self.stream.read_exact(&mut bytes).await?;
            unmask(&mut bytes, mask);
            match kind {
                CLOSE => return Ok(Piece::Close),
                PING => return Ok(Piece::Ping(bytes)),
                PONG => {}
                _ => return Err(io::Error::other("a frame of an unknown kind")),
            }
        }
    }

    /// The next bytes of a frame.
    async fn piece(&mut self, mut frame: DataFrame) -> io::Result<Piece> {
        let most = usize::try_from(frame.left).unwrap_or(PIECE).min(PIECE);
        let mut bytes = vec![0; most];
        let read = if most == 0 { 0 } else { self.stream.read(&mut bytes).await? };
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(read);
        unmask(&mut bytes, frame.mask);
        frame.mask.rotate_left(read % 4);
        frame.left -= u64::try_from(read).unwrap_or(frame.left);
        let last = frame.last && frame.left == 0;
        if frame.left > 0 {
            self.frame = Some(frame);
        }
        Ok(Piece::Bytes { first: std::mem::take(&mut self.first), last, bytes })
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    for (byte, mask) in bytes.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
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

    fn bytes(first: bool, last: bool, bytes: &[u8]) -> Piece {
        Piece::Bytes { first, last, bytes: bytes.to_vec() }
    }

    // The part of a message before a ping must not be lost.
    #[tokio::test]
    async fn pieces_are_unmasked_and_pings_may_come_between() {
        let wire = [
            masked(0x02, b"ab"),
            masked(0x89, b"p"),
            masked(0x00, b""),
            masked(0x8a, b"not asked for"),
            masked(0x80, b"cd"),
            masked(0x82, b"ef"),
            masked(0x88, b""),
        ];
        let wire = wire.concat();
        let mut reader = Reader::new(wire.as_slice());
        for want in [
            bytes(true, false, b"ab"),
            Piece::Ping(b"p".to_vec()),
            bytes(false, false, b""),
            bytes(false, true, b"cd"),
            bytes(true, true, b"ef"),
            Piece::Close,
        ] {
            assert_eq!(reader.next().await.unwrap(), want);
        }
        assert!(reader.next().await.is_err());
    }

    #[tokio::test]
    async fn a_long_message_comes_in_small_pieces() {
        let long: Vec<u8> = (0..=255).cycle().take(100_003).collect();
        let mut wire = vec![0x82, 0x80 | 127];
        wire.extend(100_003_u64.to_be_bytes());
        wire.extend([9, 8, 7, 6]);
        wire.extend(long.iter().zip([9, 8, 7, 6].iter().cycle()).map(|(b, m)| b ^ m));
        // As from a network: in pieces of all sizes.
        let (mut client, server) = tokio::io::duplex(1021);
        let send = async { tokio::io::AsyncWriteExt::write_all(&mut client, &wire).await.unwrap() };
        let receive = async {
            let (mut reader, mut all) = (Reader::new(server), Vec::new());
            loop {
                let Piece::Bytes { first, last, bytes } = reader.next().await.unwrap() else {
                    panic!("only bytes were sent");
                };
                assert!(first == all.is_empty() && bytes.len() <= PIECE);
                all.extend(bytes);
                if last {
                    return all;
                }
            }
        };
        let ((), all) = tokio::join!(send, receive);
        assert_eq!(all, long);
    }

    #[tokio::test]
    async fn what_the_standard_forbids_ends_the_connection() {
        let long = [&[0x89, 0x80 | 126, 0, 126, 0, 0, 0, 0][..], &[0; 126]].concat();
        for (wire, why) in [
            (vec![0x82, 0x01, 0x00], "not masked"),
            (long, "a long ping"),
            (masked(0x09, b"x"), "a ping in parts"),
            (masked(0x80, b"x"), "nothing to go on with"),
            (masked(0xc2, b"x"), "an extension"),
            (masked(0x83, b"x"), "an unknown kind"),
            ([masked(0x02, b"a"), masked(0x82, b"b")].concat(), "a message within another"),
        ] {
            let mut reader = Reader::new(wire.as_slice());
            let mut ended = reader.next().await;
            if why == "a message within another" {
                ended = reader.next().await;
            }
            assert!(ended.is_err_and(|e| e.kind() == io::ErrorKind::Other), "{why}");
        }
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
