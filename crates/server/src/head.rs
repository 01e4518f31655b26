//! The heads of requests, looked at before hyper sees them.
//!
//! Owns: what Go's server says to requests that are none, and targets that hyper's types cannot
//! hold. Promises: bytes are only buffered up to the limit of a head and for a bounded time; what is
//! passed on is what came, but for the request line. Deliberately absent: HTTP/2.

mod kept;

pub(crate) use kept::{Aside, Kept};

use crate::reply::AsTold;
use crate::serve::is_host_byte;
use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Go: `DefaultMaxHeaderBytes` and the slop of its reader.
const MOST: usize = (1 << 20) + 4096;
/// Longer targets do not fit into a URI of hyper's.
const LONGEST_URI: usize = 60_000;
const DEADLINE: Duration = Duration::from_secs(32);
/// More header lines than this are not handed to hyper. Go bounds only their size.
pub(crate) const MOST_FIELDS: usize = 1000;
/// The headers that anybody here looks at.
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
/// HTTP/2 that nobody agreed on is a request like any other.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
const GO_ON: &str = "HTTP/1.1";
/// Go: `rstAvoidanceDelay`.
const LINGER: Duration = Duration::from_millis(500);

/// Path and query of a request whose URI cannot hold them as they are; travels beside the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LongTarget(pub(crate) Vec<u8>);

/// What a request says that hyper would not take from it, or would act upon by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Its target.
    pub(crate) target: Option<LongTarget>,
    /// Its method is `CONNECT`, which opens no tunnel here.
    connect: bool,
    /// It is of HTTP/1.0 and asks for an upgrade, which Go's server gives it.
    old: bool,
}

impl Beside {
    /// The request as it came.
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

    /// The answer to it in the version that it speaks.
    pub(crate) fn answered<B>(old: bool, mut reply: Response<B>) -> Response<B> {
        if old && reply.status() != StatusCode::SWITCHING_PROTOCOLS {
            if reply.extensions().get::<AsTold>().is_none() {
                *reply.version_mut() = Version::HTTP_10;
            }
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }

    /// Whether it speaks HTTP/1.0 behind hyper's back.
    pub(crate) fn is_old(&self) -> bool {
        self.old
    }
}

/// What is to happen with a head.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Judgement {
    /// These bytes instead, and what is not among them.
    Pass(Vec<u8>, Beside),
    /// A status line and the text of the body.
    Refuse(&'static str, &'static str),
}

const BAD: Judgement = Judgement::Refuse("400 Bad Request", "400 Bad Request");

/// A head without an end.
const TOO_LARGE: Judgement = {
    let text = "431 Request Header Fields Too Large";
    Judgement::Refuse(text, text)
};

/// Reads the first head and gives the connection back with it in front; `None` when it was refused or
/// nothing came.
pub(crate) async fn read<S>(mut stream: S) -> Option<Kept<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut seen = Vec::new();
    let read = async {
        loop {
            if let Some(end) = head_end(&seen) {
                return Some(end);
            }
            if seen.len() > MOST {
                return Some(seen.len());
            }
            match stream.read_buf(&mut seen).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    };
    // A client that takes so long is not waited for.
    let end = tokio::time::timeout(DEADLINE, read).await.ok()??;
    let judgement = if end > MOST || (end == seen.len() && head_end(&seen).is_none()) {
        TOO_LARGE
    } else {
        judge(seen.get(..end).unwrap_or_default())
    };
    match judgement {
        Judgement::Pass(head, beside) => {
            seen.drain(..end);
            Some(Kept::new(head, Aside::Request(beside), seen, stream))
        }
        Judgement::Refuse(status, text) => {
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{text}"
            );
            refuse(&mut stream, answer.as_bytes()).await;
            None
        }
    }
}

/// Answers and waits a moment for the client to go, so that it gets to read the answer.
async fn refuse(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: &[u8]) {
    let linger = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        let mut rest = [0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, linger).await;
}

/// Where a head ends: after its first empty line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    while let Some(length) = bytes.get(start..)?.iter().position(|byte| *byte == b'\n') {
        let line = bytes.get(start..start + length)?;
        start += length + 1;
        if line.is_empty() || line == b"\r" {
            return Some(start);
        }
    }
    None
}

/// Go: `readRequest`, as far as it refuses.
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
        // To a tunnel a target is a host, which may have a path.
        let scheme = if connect { "http://" } else { "" };
        match absolute(&format!("{scheme}{}", String::from_utf8_lossy(target))) {
            Some(path) => Some(path.into_bytes()),
            None => return BAD,
        }
    };
    let mut fields = match headers(lines.clone()) {
        Ok(fields) => fields,
        Err(refused) => return refused,
    };
    if !spoken {
        let text = "505 HTTP Version Not Supported: unsupported protocol version";
        return Judgement::Refuse(text, text);
    }
    let may_lack_host = version == b"HTTP/1.0" || connect || first == PREFACE;
    if let Some(text) = fields.fault(may_lack_host) {
        return Judgement::Refuse(text, text);
    }
    fields.shorten();
    let old = version == b"HTTP/1.0" && fields.ask_for_an_upgrade();
    let version = if version == b"HTTP/1.0" && !old { "HTTP/1.0" } else { GO_ON };
    let mut passed = Vec::with_capacity(head.len() + 64);
    passed.extend_from_slice(if connect { b"POST" } else { method });
    passed.push(b' ');
    let other = other.or_else(|| {
        // A number sign means nothing to Go and the end to hyper.
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
    Judgement::Pass(passed, Beside { target: other.map(LongTarget), connect, old })
}

/// Path and query of a target with a scheme, as they are written; `None` for one that is none.
/// What has no path at all has an empty one.
fn absolute(target: &str) -> Option<String> {
    // A number sign means nothing here.
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

/// Header lines, those that went on in the next one put together.
struct Fields<'a> {
    all: Vec<(&'a [u8], Vec<u8>)>,
    /// Whether they are other lines than those that came.
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

    /// What Go says to a name with a space in it, after it has looked at the host.
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

    /// Leaves out what nobody looks at if there is more than hyper takes.
    fn shorten(&mut self) {
        if self.all.len() > MOST_FIELDS {
            let read =
                |name: &[u8]| READ.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
            self.all.retain(|(name, _)| read(name));
            self.all.truncate(MOST_FIELDS);
            self.changed = true;
        }
    }

    /// The lines anew if hyper would not take them as they came.
    fn rewritten(&self) -> Option<Vec<u8>> {
        let lines = self.all.iter().flat_map(|(name, value)| [name, &b": "[..], value, b"\r\n"]);
        self.changed.then(|| lines.chain([&b"\r\n"[..]]).collect::<Vec<_>>().concat())
    }
}

/// The header lines, or what Go says to lines that are none.
fn headers<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Result<Fields<'a>, Judgement> {
    let odd = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
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
        // A space is judged later, after the host.
        let no_name = |byte: &u8| !is_token(*byte) && *byte != b' ';
        if name.is_empty() || name.iter().any(no_name) || value.iter().any(odd) {
            return Err(BAD);
        }
        fields.all.push((name, value.trim_ascii().to_vec()));
    }
    // Without chunks the length must be a number, and only one.
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

fn cut(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = bytes.iter().position(|byte| *byte == at)?;
    Some((bytes.get(..place)?, bytes.get(place + 1..)?))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether every percent sign has its two digits.
fn escapes_are_good(path: &[u8]) -> bool {
    let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let mut signs = path.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    signs.all(|(at, _)| digit(path.get(at + 1)) && digit(path.get(at + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(head: &str) -> String {
        match judge(head.as_bytes()) {
            Judgement::Pass(bytes, _) => String::from_utf8(bytes).unwrap(),
            Judgement::Refuse(status, _) => panic!("{head:?} is refused: {status}"),
        }
    }

    fn refused(head: &str) -> &'static str {
        match judge(head.as_bytes()) {
            Judgement::Pass(..) => panic!("{head:?} is passed on"),
            Judgement::Refuse(_, text) => text,
        }
    }

    #[test]
    fn good_heads_are_passed_on_as_they_are() {
        for head in [
            "GET /pods?a=b HTTP/1.1\r\nHost: a\r\n\r\n",
            "BREW /a?%zz HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert_eq!(passed(head), head);
        }
    }

    #[test]
    fn targets_that_go_takes_and_hyper_does_not_travel_beside() {
        for (target, path) in [
            ("/a<b>%2F#c", "/a<b>%2F#c"),
            ("/pods?a=\"", "/pods?a=\""),
            ("http:/healthz", "/healthz"),
            ("http:///healthz", "/healthz"),
            ("http://a/b?c=d", "/b?c=d"),
            ("HTTP://u:p@[::1]:10250/a%2fb#c", "/a%2fb#c"),
            ("https://a?b", "?b"),
            ("mailto:x", ""),
        ] {
            let head = format!("GET {target} HTTP/1.2\r\nHost: a\r\n\r\n");
            let Judgement::Pass(bytes, other) = judge(head.as_bytes()) else {
                panic!("{target} is refused");
            };
            assert_eq!(bytes, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "{target}");
            assert_eq!(other.target, Some(LongTarget(path.into())), "{target}");
        }
        let folded = "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n";
        assert_eq!(passed(folded), "GET / HTTP/1.1\r\nHost: a\r\nX: y z\r\n\r\n");
        assert_eq!(passed("PRI * HTTP/2.0\r\n\r\n"), "PRI * HTTP/1.1\r\n\r\n");
        let long = format!("/exec?command={}", "x".repeat(100_000));
        let head = format!("GET {long} HTTP/1.1\r\nHost: a\r\n\r\n");
        let want = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
        let beside = Beside { target: Some(LongTarget(long.into())), ..Beside::default() };
        assert_eq!(judge(head.as_bytes()), Judgement::Pass(want, beside));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        let Judgement::Pass(_, beside) = judge(b"GET /a\xff HTTP/1.1\r\nHost: a\r\n\r\n") else {
            panic!("it is refused");
        };
        assert_eq!(beside.target, Some(LongTarget(b"/a\xff".to_vec())));
    }

    #[test]
    fn of_too_many_headers_those_are_passed_on_that_somebody_reads() {
        let many = |count: usize| "X: y\r\n".repeat(count);
        let head = |count| format!("GET / HTTP/1.1\r\n{}host: a\r\n\r\n", many(count));
        assert_eq!(passed(&head(MOST_FIELDS - 1)), head(MOST_FIELDS - 1));
        assert_eq!(passed(&head(MOST_FIELDS)), head(0));
        let spaced = format!("GET / HTTP/1.1\r\nHost: a\r\n{}X Y: z\r\n\r\n", many(2000));
        assert_eq!(refused(&spaced), "400 Bad Request: invalid header name");
        let known = "Accept: a\r\n".repeat(3000);
        let known = passed(&format!("GET / HTTP/1.1\r\nHost: a\r\n{known}\r\n"));
        assert_eq!(known.matches("Accept").count(), MOST_FIELDS - 1);
    }

    #[test]
    fn what_hyper_would_act_upon_travels_beside() {
        for (head, passed, beside) in [
            (
                "CONNECT /healthz HTTP/1.1\r\n\r\n",
                "POST /healthz HTTP/1.1\r\n\r\n",
                Beside { connect: true, ..Beside::default() },
            ),
            (
                "CONNECT a:1 HTTP/1.1\r\n\r\n",
                "POST / HTTP/1.1\r\n\r\n",
                Beside { target: Some(LongTarget(Vec::new())), connect: true, ..Beside::default() },
            ),
            (
                "GET / HTTP/1.0\r\nconnection: x, UPGRADE\r\n\r\n",
                "GET / HTTP/1.1\r\nconnection: x, UPGRADE\r\n\r\n",
                Beside { old: true, ..Beside::default() },
            ),
        ] {
            let want = Judgement::Pass(passed.as_bytes().to_vec(), beside);
            assert_eq!(judge(head.as_bytes()), want, "{head}");
        }
        let mut request = Request::new(());
        Beside { target: None, connect: true, old: true }.restore(&mut request);
        assert_eq!((request.method(), request.version()), (&Method::CONNECT, Version::HTTP_10));
        let reply = Beside::answered(true, Response::new(()));
        assert_eq!(reply.version(), Version::HTTP_10);
        assert_eq!(reply.headers()[CONNECTION], "close");
        let mut told = Response::new(());
        told.extensions_mut().insert(AsTold);
        let told = Beside::answered(true, told);
        assert_eq!(
            (told.version(), &told.headers()[CONNECTION]),
            (Version::HTTP_11, &"close".parse().unwrap())
        );
    }

    #[test]
    fn what_is_no_request_gets_the_words_of_go() {
        for (head, text) in [
            ("GET /pods\r\n\r\n", "400 Bad Request"),
            ("\r\nGET /pods HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("G(T / HTTP/1.1\r\n\r\n", "400 Bad Request"),
            ("GET / http/1.1\r\n\r\n", "400 Bad Request"),
            ("GET /%zz HTTP/1.0\r\n\r\n", "400 Bad Request"),
            (
                "GET / HTTP/3.0\r\n\r\n",
                "505 HTTP Version Not Supported: unsupported protocol version",
            ),
            ("GET / HTTP/3.0\r\nX\r\n\r\n", "400 Bad Request"),
            ("GET http://a:x/ HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
            ("GET :/a HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
            ("GET a/b HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
            ("CONNECT a:b HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
            (
                "GET / HTTP/1.1\r\nHost: a/b\r\nX Y: z\r\n\r\n",
                "400 Bad Request: malformed Host header",
            ),
            ("GET / HTTP/1.1\r\nX\r\n\r\n", "400 Bad Request"),
            ("GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", "400 Bad Request"),
            ("GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n", "400 Bad Request"),
            ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400 Bad Request: missing required Host header"),
            ("GET / HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n", "400 Bad Request: invalid header name"),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: \u{1}\r\n\r\n", "400 Bad Request"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
                "Unsupported transfer encoding",
            ),
        ] {
            assert_eq!(refused(head), text, "{head:?}");
        }
    }

    #[tokio::test]
    async fn what_was_read_is_read_again_with_all_that_follows() {
        let (mut client, server) = tokio::io::duplex(64);
        let sent = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        client.write_all(sent).await.unwrap();
        let mut replayed = read(server).await.unwrap();
        client.write_all(b"more").await.unwrap();
        drop(client);
        let mut all = Vec::new();
        replayed.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&sent[..], b"more"].concat(), "half a head is passed on at the end");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_client_that_still_sends() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut replayed = read(server).await.unwrap();
        let send = async {
            client.write_all(&[b'x'; 1000]).await.unwrap();
            drop(client);
        };
        let (ended, ()) = tokio::join!(replayed.shutdown(), send);
        ended.unwrap();
        // One that stays is not waited for longer than that.
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut replayed = read(server).await.unwrap();
        let before = tokio::time::Instant::now();
        replayed.shutdown().await.unwrap();
        assert_eq!(before.elapsed(), LINGER);
        // What is no longer HTTP is nobody's to read.
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut replayed = read(server).await.unwrap();
        replayed.upgraded().store(true, std::sync::atomic::Ordering::Relaxed);
        replayed.shutdown().await.unwrap();
        assert_eq!(before.elapsed(), LINGER);
    }

    #[tokio::test]
    async fn heads_without_an_end_are_refused() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (mut reader, mut writer) = tokio::io::split(client);
        let flood = async {
            // The other side may have gone.
            let _ = writer.write_all(&vec![b'a'; 3 << 20]).await;
            let _ = writer.shutdown().await;
        };
        let answer = async {
            let mut text = String::new();
            let _ = reader.read_to_string(&mut text).await;
            text
        };
        let (passed, (), text) = tokio::join!(read(server), flood, answer);
        assert!(passed.is_none());
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text}");
    }
}
