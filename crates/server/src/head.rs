//! Request heads (request line and headers), checked before hyper parses them.
//!
//! Owns: the responses of Go's server to malformed requests, and targets that hyper's types cannot
//! hold. Promises: bytes are buffered only up to the size limit of a head, for a bounded time and
//! in a bounded number of reads, and each byte is scanned once; where a body begins and ends is
//! decided here alone, and passed to hyper in a form that it cannot interpret differently.
//! Deliberately absent: HTTP/2.

mod chunks;
mod keep_alive;

pub(crate) use keep_alive::{HeadVerdict, read};

use crate::reply::Verbatim;
use crate::serve::is_host_byte;
use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};

/// Go: `DefaultMaxHeaderBytes` and the slop of its reader.
const MOST: usize = (1 << 20) + 4096;
/// A head that arrives in more reads than this is rejected.
const MOST_PIECES: usize = 4096;
/// Longer targets do not fit into hyper's URI type.
const LONGEST_URI: usize = 60_000;
/// More header lines than this are not passed to hyper. Go limits only their size.
pub(crate) const MOST_FIELDS: usize = 1000;
/// Headers that are passed on regardless of the number of others.
const ALWAYS_READ: [&str; 9] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "sec-websocket-protocol",
    "transfer-encoding",
    "upgrade",
];
/// All headers that any handler reads.
const READ: [&str; 32] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "range",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-uri",
    "x-stream-protocol-version",
];
/// An HTTP/2 preface without ALPN is treated like any other request.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
const GO_ON: &str = "HTTP/1.1";

/// Path and query of a request whose URI type cannot hold them; travels as an extension of the
/// request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LongTarget(pub(crate) Vec<u8>);

/// Properties of a request that hyper would reject, or would act upon by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestExtras {
    /// The request target.
    pub(crate) target: Option<LongTarget>,
    /// The method is `CONNECT`, which opens no tunnel here.
    connect: bool,
    /// An HTTP/1.0 request for an upgrade, which Go's server accepts.
    old: bool,
}

impl RequestExtras {
    /// Restores the request as it was received.
    pub(crate) fn restore<B>(self, request: &mut Request<B>) {
        if let Some(target) = self.target {
            request.extensions_mut().insert(target);
        }
        if self.connect {
            *request.method_mut() = Method::CONNECT;
        }
        if self.old {
            *request.version_mut() = Version::HTTP_10;
        }
    }

    /// The response in the request's HTTP version.
    pub(crate) fn answered<B>(old: bool, mut reply: Response<B>) -> Response<B> {
        if old && reply.status() != StatusCode::SWITCHING_PROTOCOLS {
            if reply.extensions().get::<Verbatim>().is_none() {
                *reply.version_mut() = Version::HTTP_10;
            }
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    /// Whether the client speaks HTTP/1.0, which hyper does not know.
    pub(crate) fn is_old(&self) -> bool {
        self.old
    }
}

/// How the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFraming {
    /// By its length in bytes.
    Bytes(u64),
    /// By chunked encoding.
    Chunks,
}

/// What to do with a head.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Judgement {
    /// Pass these bytes to hyper, with the extras and the framing of the body.
    Pass(Vec<u8>, RequestExtras, BodyFraming),
    /// Respond with this status line and body.
    Refuse(&'static str, &'static str),
}

const BAD: Judgement = Judgement::Refuse("400 Bad Request", "400 Bad Request");

/// The response to a head over the size limit.
const TOO_LARGE: Judgement = {
    let text = "431 Request Header Fields Too Large";
    Judgement::Refuse(text, text)
};

/// Searches for the end of a head, the first empty line; every byte is scanned once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Search {
    /// Where the current line begins.
    line: usize,
    /// How many bytes were scanned.
    seen: usize,
    /// How many reads there were.
    pieces: usize,
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The head ends at this offset.
    End(usize),
    /// It has not ended yet.
    More,
    /// The head is too large, or arrived in too many reads.
    TooMuch,
}

impl Search {
    /// Continues the search; `bytes` begins with the bytes of earlier calls.
    fn look(&mut self, bytes: &[u8]) -> Found {
        self.pieces += usize::from(bytes.len() > self.seen);
        while let Some(rest) = bytes.get(self.seen..).filter(|rest| !rest.is_empty()) {
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.seen = bytes.len();
                break;
            };
            let end = self.seen + length;
            let line = bytes.get(self.line..end).unwrap_or_default();
            let is_empty = line.is_empty() || line == b"\r";
            (self.line, self.seen) = (end + 1, end + 1);
            if is_empty {
                return if end < MOST { Found::End(end + 1) } else { Found::TooMuch };
            }
        }
        let most = bytes.len() > MOST || self.pieces > MOST_PIECES;
        if most { Found::TooMuch } else { Found::More }
    }
}

/// Go: `readRequest`, as far as it rejects requests.
fn judge(head: &[u8]) -> Judgement {
    let mut lines =
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let Some((method, rest)) = cut(first, b' ') else { return BAD };
    let Some((target, version)) = cut(rest, b' ') else { return BAD };
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return BAD;
    }
    let spoken = match version {
        _ if first == PREFACE => true,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            *major == b'1'
        }
        _ => return BAD,
    };
    if target.iter().any(|byte| *byte < b' ' || *byte == 0x7f || *byte == b' ') || target.is_empty()
    {
        return BAD;
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let connect = method == b"CONNECT";
    let other = if path.starts_with(b"/") {
        if !escapes_are_good(path) {
            return BAD;
        }
        None
    } else if target == b"*" {
        None
    } else {
        // The target of `CONNECT` is a host, possibly with a path.
        let scheme = if connect { "http://" } else { "" };
        match absolute(&format!("{scheme}{}", String::from_utf8_lossy(target))) {
            Some(path) => Some(path.into_bytes()),
            None => return BAD,
        }
    };
    let old = version == b"HTTP/1.0";
    let mut fields = match headers(lines.clone(), old) {
        Ok(fields) => fields,
        Err(refused) => return refused,
    };
    if !spoken {
        let text = "505 HTTP Version Not Supported: unsupported protocol version";
        return Judgement::Refuse(text, text);
    }
    let may_lack_host = old || connect || first == PREFACE;
    if let Some(text) = fields.fault(may_lack_host) {
        return Judgement::Refuse(text, text);
    }
    let behind = fields.settle();
    if !fields.shorten() {
        return TOO_LARGE;
    }
    let upgrade = old && fields.ask_for_an_upgrade();
    let version = if old && !upgrade { "HTTP/1.0" } else { GO_ON };
    let mut passed = Vec::with_capacity(head.len() + 64);
    passed.extend_from_slice(if connect { b"POST" } else { method });
    passed.push(b' ');
    let other = other.or_else(|| {
        // `#` has no meaning for Go, and ends the target for hyper.
        let refused =
            target.len() > LONGEST_URI || target.contains(&b'#') || Uri::try_from(target).is_err();
        refused.then(|| target.to_vec())
    });
    passed.extend_from_slice(if other.is_some() { b"/" } else { target });
    passed.extend_from_slice(format!(" {version}\r\n").as_bytes());
    let after = head.get(first.len()..).unwrap_or_default();
    let after = after.strip_prefix(b"\r").unwrap_or(after);
    match fields.rewritten() {
        Some(rewritten) => passed.extend_from_slice(&rewritten),
        None => passed.extend_from_slice(after.strip_prefix(b"\n").unwrap_or(after)),
    }
    Judgement::Pass(
        passed,
        RequestExtras { target: other.map(LongTarget), connect, old: upgrade },
        behind,
    )
}

/// Path and query of an absolute target, as written; `None` if it is invalid. A missing path is
/// empty.
fn absolute(target: &str) -> Option<String> {
    // `#` has no meaning here.
    let url = units::gourl::parse(&target.replace('#', "%23")).ok()?;
    let (_, rest) = target.split_once(':').filter(|_| !url.scheme.is_empty())?;
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = match before.strip_prefix("//") {
        Some(after) => after.find('/').and_then(|at| after.get(at..)).unwrap_or_default(),
        None if before.starts_with('/') => before,
        None => "",
    };
    Some(if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") })
}

/// Header lines, with continuation lines joined.
struct Fields<'a> {
    all: Vec<(&'a [u8], Vec<u8>)>,
    /// Whether they differ from the lines received.
    changed: bool,
}

impl Fields<'_> {
    fn named(&self, wanted: &'static [u8]) -> impl Iterator<Item = &[u8]> {
        let fields = self.all.iter().filter(move |(name, _)| name.eq_ignore_ascii_case(wanted));
        fields.map(|(_, value)| value.as_slice())
    }

    fn ask_for_an_upgrade(&self) -> bool {
        let lists = |value: &[u8]| value.to_ascii_lowercase().windows(7).any(|w| w == b"upgrade");
        self.named(b"connection").any(lists)
    }

    /// Go's response to a header name with a space, which it gives after it has checked the host.
    fn fault(&self, may_lack_host: bool) -> Option<&'static str> {
        if !self.all.iter().any(|(name, _)| name.contains(&b' ')) {
            return None;
        }
        let mut hosts = self.named(b"host");
        Some(match (hosts.next(), hosts.next()) {
            (None, _) if !may_lack_host => "400 Bad Request: missing required Host header",
            (Some(_), Some(_)) => "400 Bad Request",
            (Some(host), None) if !host.iter().all(|byte| is_host_byte(*byte)) => {
                "400 Bad Request: malformed Host header"
            }
            _ => "400 Bad Request: invalid header name",
        })
    }

    /// Makes the framing of the body unambiguous.
    fn settle(&mut self) -> BodyFraming {
        let is = |name: &[u8], wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
        let chunks = self.named(b"transfer-encoding").next().is_some();
        let length = self.named(b"content-length").next().map(<[u8]>::to_vec);
        let before = self.all.len();
        let mut kept = false;
        // Chunked encoding overrides a length, and duplicates of a length are dropped.
        self.all.retain(|(name, _)| {
            !is(name, "content-length") || (!chunks && !std::mem::replace(&mut kept, true))
        });
        self.changed |= self.all.len() != before;
        if chunks {
            return BodyFraming::Chunks;
        }
        let length = length.and_then(|text| String::from_utf8(text).ok());
        BodyFraming::Bytes(length.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Drops headers that no handler reads if there are more than hyper accepts; false if that is
    /// not enough.
    fn shorten(&mut self) -> bool {
        let among = |list: &[&str], name: &[u8]| {
            list.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        };
        if self.all.len() > MOST_FIELDS {
            let needed = self.all.iter().filter(|(name, _)| among(&ALWAYS_READ, name)).count();
            let Some(mut room) = MOST_FIELDS.checked_sub(needed) else { return false };
            self.all.retain(|(name, _)| {
                let other = !among(&ALWAYS_READ, name);
                if other && among(&READ, name) && room > 0 {
                    room -= 1;
                    return true;
                }
                !other
            });
            self.changed = true;
        }
        true
    }

    /// The rewritten lines, if hyper would reject the received ones.
    fn rewritten(&self) -> Option<Vec<u8>> {
        let lines = self.all.iter().flat_map(|(name, value)| [name, &b": "[..], value, b"\r\n"]);
        self.changed.then(|| lines.chain([&b"\r\n"[..]]).collect::<Vec<_>>().concat())
    }
}

/// Parses the header lines, or returns Go's response to malformed ones.
fn headers<'a>(lines: impl Iterator<Item = &'a [u8]>, old: bool) -> Result<Fields<'a>, Judgement> {
    let mut fields = Fields { all: Vec::new(), changed: false };
    for line in lines.take_while(|line| !line.is_empty()) {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            let Some((_, value)) = fields.all.last_mut() else { return Err(BAD) };
            value.push(b' ');
            value.extend_from_slice(line.trim_ascii());
            fields.changed = true;
            continue;
        }
        let Some((name, value)) = cut(line, b':') else { return Err(BAD) };
        // A space in a name is checked later, after the host.
        let no_name = |byte: &u8| !is_token(*byte) && *byte != b' ';
        if name.is_empty() || name.iter().any(no_name) || value.iter().any(is_control) {
            return Err(BAD);
        }
        fields.all.push((name, value.trim_ascii().to_vec()));
    }
    if old && fields.named(b"transfer-encoding").next().is_some() {
        // HTTP/1.0 has no chunked encoding (Go: `parseTransferEncoding`).
        fields.all.retain(|(name, _)| !name.eq_ignore_ascii_case(b"transfer-encoding"));
        fields.changed = true;
    }
    // Without chunked encoding there must be a single numeric length.
    let mut lengths = fields.named(b"content-length");
    if let (None, Some(first)) = (fields.named(b"transfer-encoding").next(), lengths.next()) {
        let number = std::str::from_utf8(first).ok();
        let number = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let good = number.is_some_and(|text| text.parse::<i64>().is_ok());
        if !good || lengths.any(|other| other != first) {
            return Err(BAD);
        }
    }
    let mut codings = fields.named(b"transfer-encoding");
    if let Some(coding) = codings.next()
        && (!coding.eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
    {
        return Err(Judgement::Refuse("501 Not Implemented", "Unsupported transfer encoding"));
    }
    drop((lengths, codings));
    Ok(fields)
}

fn is_control(byte: &u8) -> bool {
    (*byte < b' ' && *byte != b'\t') || *byte == 0x7f
}

/// Whether a line is a header with a valid value.
fn is_field(line: &[u8]) -> bool {
    cut(line, b':').is_some_and(|(name, value)| {
        !name.is_empty() && name.iter().all(|byte| is_token(*byte)) && !value.iter().any(is_control)
    })
}

fn cut(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = bytes.iter().position(|byte| *byte == at)?;
    Some((bytes.get(..place)?, bytes.get(place + 1..)?))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether every percent sign is followed by two hex digits.
fn escapes_are_good(path: &[u8]) -> bool {
    let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let mut signs = path.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    signs.all(|(at, _)| digit(path.get(at + 1)) && digit(path.get(at + 2)))
}

#[cfg(test)]
mod tests;
