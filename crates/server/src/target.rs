//! The target of a request, parsed as Go's `net/url` and `net/http` do.
//!
//! Promises: the decoded path, the encoded path that the mux compares, and the query are those of a
//! Go server for the same bytes; a target that Go rejects is rejected. Deliberately absent: which
//! paths exist (`route`).

use crate::head::LongTarget;
use http::{Method, Request, Uri};
use std::borrow::Cow;
use std::fmt::Write as _;
use units::strconv::quote_bytes;

/// A path and query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The decoded path.
    pub path: String,
    /// The path as the mux sees it (Go: `URL.EscapedPath`).
    pub escaped: String,
    /// The raw query.
    pub query: String,
}

/// Go's parser rejects the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid URI for request")]
pub struct BadTarget;

impl Target {
    /// Parses the target of a request, also one that its URI could not hold.
    pub(crate) fn of<B>(request: &Request<B>) -> Result<Self, BadTarget> {
        match request.extensions().get::<LongTarget>() {
            Some(LongTarget(long)) => {
                let mut parts = long.splitn(2, |byte| *byte == b'?');
                let path = parts.next().unwrap_or_default();
                let query = as_text(parts.next().unwrap_or_default());
                Self::from_parts(path, &query)
            }
            None => Self::parse(request.method(), request.uri()),
        }
    }

    /// Parses the target of a request.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, BadTarget> {
        let raw = uri.path();
        let authority_alone = uri.scheme().is_none() && uri.authority().is_some();
        if authority_alone && method != Method::CONNECT {
            return Err(BadTarget);
        }
        Self::from_parts(raw.as_bytes(), uri.query().unwrap_or_default())
    }

    /// From a raw path and query.
    pub fn from_parts(raw: &[u8], query: &str) -> Result<Self, BadTarget> {
        let path = unescape(raw).ok_or(BadTarget)?;
        let default = escape(path.as_bytes());
        let kept = std::str::from_utf8(raw).ok().filter(|_| is_valid_encoding(raw));
        let escaped = kept.map_or(default, str::to_owned);
        let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
        Ok(Self { path, escaped, query: query.to_owned() })
    }

    /// A segment of the decoded path in Go's quotes, which show bytes that are not UTF-8.
    pub(crate) fn quoted(&self, part: usize) -> String {
        let decoded = unescape(self.escaped.as_bytes()).unwrap_or(Decoded(Vec::new()));
        let mut parts = decoded.as_bytes().split(|byte| *byte == b'/');
        quote_bytes(parts.by_ref().skip_while(|part| part.is_empty()).nth(part).unwrap_or_default())
    }

    /// The bytes of the decoded path, which may not be UTF-8.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        unescape(self.escaped.as_bytes()).map(|decoded| decoded.0).unwrap_or_default()
    }

    /// A URL with this decoded path and the same query, as Go writes it.
    #[must_use]
    pub fn with_path(&self, path: &str) -> String {
        let mut url = escape(path.as_bytes());
        if !self.query.is_empty() {
            url.push('?');
            url.push_str(&self.query);
        }
        url
    }
}

/// The raw query of a request.
pub(crate) fn query<B>(request: &Request<B>) -> Cow<'_, str> {
    match request.extensions().get::<LongTarget>() {
        Some(LongTarget(long)) => {
            let query = long.splitn(2, |byte| *byte == b'?').nth(1);
            as_text(query.unwrap_or_default()).into()
        }
        None => request.uri().query().unwrap_or_default().into(),
    }
}

/// A query with bytes that are not UTF-8 percent-encoded; the meaning is the same.
fn as_text(query: &[u8]) -> String {
    let mut text = String::with_capacity(query.len());
    for chunk in query.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

/// Bytes that may not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Decoded(Vec<u8>);

impl Decoded {
    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn unescape(text: &[u8]) -> Option<Decoded> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    Some(Decoded(bytes))
}

/// One decoded segment of a path; unchanged if it cannot be decoded.
pub(crate) fn unescape_segment(segment: &str) -> String {
    let decoded = unescape(segment.as_bytes()).and_then(|bytes| String::from_utf8(bytes.0).ok());
    decoded.unwrap_or_else(|| segment.to_owned())
}

fn stays(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if stays(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn is_valid_encoding(raw: &[u8]) -> bool {
    raw.iter().all(|byte| stays(*byte) || b"!'()*[]%".contains(byte))
}

/// Go's `path.Clean` as its mux uses it: `.`, `..` and empty segments are removed, a trailing slash
/// is kept.
#[must_use]
pub fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    let mut clean = format!("/{}", parts.join("/"));
    if path.ends_with('/') && clean.len() > 1 {
        clean.push('/');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_and_spelled_as_go_does() {
        for (raw, path, escaped) in [
            ("/pods", "/pods", "/pods"),
            ("/%70ods", "/pods", "/%70ods"),
            ("/a%2Fb", "/a/b", "/a%2Fb"),
            ("/a\"b", "/a\"b", "/a%22b"),
            ("/a b%2F", "/a b/", "/a%20b/"),
            ("/a!b", "/a!b", "/a!b"),
        ] {
            let target = Target::from_parts(raw.as_bytes(), "").unwrap();
            assert_eq!((target.path.as_str(), target.escaped.as_str()), (path, escaped), "{raw}");
        }
        for raw in [&b"/logs/a%ff%22b/c"[..], b"/logs/a\xff%22b%2fc"] {
            let odd = Target::from_parts(raw, "").unwrap();
            assert_eq!(odd.quoted(1), r#""a\xff\"b""#);
            assert_eq!(odd.quoted(2), "\"c\"");
            assert_eq!(odd.bytes(), b"/logs/a\xff\"b/c");
        }
        for bad in ["/%", "/%z", "/%zz", "/a%2"] {
            assert_eq!(Target::from_parts(bad.as_bytes(), ""), Err(BadTarget), "{bad}");
        }
    }

    #[test]
    fn queries_keep_their_bytes() {
        let mut request = Request::new(());
        request.extensions_mut().insert(LongTarget(b"/a?b=\xff\xc3\xbc?\xc3".to_vec()));
        assert_eq!(query(&request), "b=%ffü?%c3");
        assert_eq!(Target::of(&request).unwrap().query, "b=%ffü?%c3");
    }

    #[test]
    fn a_target_without_a_slash_is_no_path() {
        let read = |text: &str| Target::parse(&Method::GET, &text.parse::<Uri>().unwrap());
        assert_eq!(read("pods"), Err(BadTarget));
        assert_eq!(read("http://node/pods?x").unwrap().path, "/pods");
    }

    #[test]
    fn clean_paths_keep_their_slash() {
        for (path, want) in [("//a", "/a"), ("/a/../b/", "/b/"), ("/..", "/"), ("/a/.", "/a")] {
            assert_eq!(clean(path), want);
        }
    }
}
