//! Serves one file: content type, ranges and preconditions (Go: `http.ServeContent`).
//!
//! Promises: a file is opened once, however many ranges are requested, and read in pieces.

use super::kinds;
use crate::gotime::http_time;
use crate::reply::{self, Reply};
use axum::body::{Body, Bytes};
use futures::Stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, StatusCode};
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::SystemTime;

const PIECE: usize = 64 * 1024;
const SNIFF: usize = 512;
/// A request for more ranges gets the whole file, as does one for overlapping ranges.
const MOST_PARTS: usize = 1024;
/// The preconditions of a request for a file.
pub(super) struct Conditions<'a> {
    /// The request's headers.
    pub(super) headers: &'a HeaderMap,
    /// The file's modification time.
    pub(super) changed: SystemTime,
}

impl Conditions<'_> {
    /// A header that is not empty, decoded lossily.
    fn header(&self, name: HeaderName) -> Option<Cow<'_, str>> {
        let value = self.headers.get(name).filter(|value| !value.is_empty());
        value.map(|value| String::from_utf8_lossy(value.as_bytes()))
    }

    fn time(&self, name: HeaderName) -> Option<i64> {
        self.header(name).and_then(|text| http_time(&text))
    }

    /// The status if the preconditions do not hold (Go: `checkPreconditions`). Files have no ETag.
    fn refusal(&self) -> Option<StatusCode> {
        let changed = seconds(self.changed);
        let failed = match self.header(IF_MATCH) {
            Some(tags) => !any_tag(&tags),
            None => self.time(IF_UNMODIFIED_SINCE).is_some_and(|since| changed > since),
        };
        if failed {
            return Some(StatusCode::PRECONDITION_FAILED);
        }
        let unchanged = match self.header(IF_NONE_MATCH) {
            Some(tags) => any_tag(&tags),
            None => self.time(IF_MODIFIED_SINCE).is_some_and(|since| changed <= since),
        };
        unchanged.then_some(StatusCode::NOT_MODIFIED)
    }

    fn range(&self) -> Cow<'_, str> {
        let changed = seconds(self.changed);
        let other = |text: Cow<'_, str>| http_time(&text).is_none_or(|since| since != changed);
        let stale = self.header(IF_RANGE).is_some_and(other);
        if stale { Cow::default() } else { self.header(RANGE).unwrap_or_default() }
    }
}

/// Whether a directory has not changed since the client's `If-Modified-Since`.
pub(super) fn not_modified_since(headers: &HeaderMap, changed: SystemTime) -> bool {
    let conditions = Conditions { headers, changed };
    conditions.time(IF_MODIFIED_SINCE).is_some_and(|since| seconds(changed) <= since)
}

/// The same response with a `Last-Modified` header.
pub(super) fn with_time(mut reply: Reply, changed: SystemTime) -> Reply {
    if let Some(value) = http_date(changed).and_then(|text| HeaderValue::from_str(&text).ok()) {
        reply.headers_mut().insert(LAST_MODIFIED, value);
    }
    reply
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn http_date(time: SystemTime) -> Option<String> {
    let stamp = jiff::Timestamp::from_second(seconds(time)).ok()?;
    Some(stamp.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

/// Whether a list of ETags contains `*`. Files have no ETag, so no other one can match.
fn any_tag(tags: &str) -> bool {
    let mut rest = tags.trim_matches([' ', '\t']);
    loop {
        if rest.starts_with('*') {
            return true;
        }
        rest = match rest.strip_prefix(',').or_else(|| after_tag(rest)) {
            Some(rest) => rest.trim_start_matches([' ', '\t']),
            None => return false,
        };
    }
}

/// The text after the first ETag (Go: `scanETag`).
fn after_tag(text: &str) -> Option<&str> {
    let inside = text.strip_prefix("W/").unwrap_or(text).strip_prefix('"')?;
    let good = |byte: u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..);
    let end = inside.bytes().position(|byte| !good(byte))?;
    inside.get(end..)?.strip_prefix('"')
}

/// The file, or the requested ranges of it.
pub(super) async fn content(
    file: File,
    length: u64,
    name: &str,
    conditions: &Conditions<'_>,
) -> Reply {
    let changed = conditions.changed;
    if let Some(status) = conditions.refusal() {
        return with_time(reply::bare(status, Body::empty()), changed);
    }
    let file = Arc::new(file);
    let kind = match kinds::by_name(name) {
        Some(kind) => kind,
        None => match piece(&file, 0, SNIFF).await {
            Ok(head) => kinds::by_content(&head).to_owned(),
            Err(_) => {
                let text = "seeker can't seek";
                return reply::error(StatusCode::INTERNAL_SERVER_ERROR, text);
            }
        },
    };
    let parts = match ranges(&conditions.range(), length) {
        Ok(parts) => parts,
        Err(Refused::Invalid) => return unsatisfiable("invalid range", None),
        Err(Refused::Outside) if length == 0 => Vec::new(),
        Err(Refused::Outside) => {
            return unsatisfiable("invalid range: failed to overlap", Some(length));
        }
    };
    let too_much = total(&parts) > length || parts.len() > MOST_PARTS;
    let parts = if too_much { Vec::new() } else { parts };
    let mut reply = match parts.as_slice() {
        [] => typed(StatusCode::OK, &kind, Body::from_stream(stream(file, 0, length)), length),
        [(from, count)] => {
            let body = Body::from_stream(stream(file, *from, *count));
            let mut reply = typed(StatusCode::PARTIAL_CONTENT, &kind, body, *count);
            if let Ok(value) = HeaderValue::from_str(&place(*from, *count, length)) {
                reply.headers_mut().insert(CONTENT_RANGE, value);
            }
            reply
        }
        _ => several(&file, length, &kind, parts),
    };
    reply.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    with_time(reply, changed)
}

fn total(parts: &[(u64, u64)]) -> u64 {
    parts.iter().map(|(_, count)| *count).fold(0, u64::saturating_add)
}

fn place(from: u64, count: u64, length: u64) -> String {
    format!("bytes {from}-{}/{length}", from.saturating_add(count).saturating_sub(1))
}

fn typed(status: StatusCode, kind: &str, body: Body, length: u64) -> Reply {
    let mut reply = reply::bare(status, body);
    if let Ok(kind) = HeaderValue::from_str(kind) {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    reply.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    reply
}

fn unsatisfiable(text: &str, length: Option<u64>) -> Reply {
    let mut reply = reply::error(StatusCode::RANGE_NOT_SATISFIABLE, text);
    if let Some(length) = length
        && let Ok(value) = HeaderValue::from_str(&format!("bytes */{length}"))
    {
        reply.headers_mut().insert(CONTENT_RANGE, value);
    }
    reply
}

/// Several ranges in one multipart response; they are read one after the other.
fn several(file: &Arc<File>, length: u64, kind: &str, parts: Vec<(u64, u64)>) -> Reply {
    use futures::StreamExt as _;
    use futures::stream::iter;
    let boundary = format!("{:032x}{:028x}", length, std::process::id());
    let head = {
        let (boundary, kind) = (boundary.clone(), kind.to_owned());
        move |index: usize, from: u64, count: u64| {
            let gap = if index == 0 { "" } else { "\r\n" };
            let place = place(from, count, length);
            format!("{gap}--{boundary}\r\nContent-Range: {place}\r\nContent-Type: {kind}\r\n\r\n")
        }
    };
    let end = format!("\r\n--{boundary}--\r\n");
    let bytes = |text: &str| u64::try_from(text.len()).unwrap_or(0);
    let heads = parts.iter().enumerate();
    let heads = heads.map(|(index, (from, count))| bytes(&head(index, *from, *count)));
    let all = heads.chain([total(&parts), bytes(&end)]).fold(0, u64::saturating_add);
    let file = Arc::clone(file);
    let bodies = iter(parts.into_iter().enumerate());
    let bodies = bodies.flat_map(move |(index, (from, count))| {
        let head = Bytes::from(head(index, from, count));
        let data = stream(Arc::clone(&file), from, count);
        iter([Ok(head)]).chain(data).boxed()
    });
    let whole = bodies.chain(iter([Ok(Bytes::from(end))]));
    let kind = format!("multipart/byteranges; boundary={boundary}");
    typed(StatusCode::PARTIAL_CONTENT, &kind, Body::from_stream(whole), all)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Not a valid range.
    Invalid,
    /// It lies outside the file.
    Outside,
}

/// The requested ranges, each as offset and length; empty without a header.
pub(crate) fn ranges(text: &str, length: u64) -> Result<Vec<(u64, u64)>, Refused> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let list = text.strip_prefix("bytes=").ok_or(Refused::Invalid)?;
    let number = |text: &str| match text.parse::<i64>() {
        Ok(n) => u64::try_from(n).map_err(|_| Refused::Invalid),
        Err(_) => Err(Refused::Invalid),
    };
    let (mut parts, mut outside) = (Vec::new(), false);
    for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (from, to) = one.split_once('-').ok_or(Refused::Invalid)?;
        let (from, to) = (from.trim(), to.trim());
        if from.is_empty() {
            if to.starts_with('-') {
                return Err(Refused::Invalid);
            }
            let count = number(to)?.min(length);
            parts.push((length - count, count));
            continue;
        }
        let from = number(from)?;
        if from >= length {
            outside = true;
            continue;
        }
        let last = if to.is_empty() { length - 1 } else { number(to)? };
        if last < from {
            return Err(Refused::Invalid);
        }
        parts.push((from, last.min(length - 1) - from + 1));
    }
    if outside && parts.is_empty() { Err(Refused::Outside) } else { Ok(parts) }
}

/// The range in pieces; if the file shrinks, the response ends early.
fn stream(
    file: Arc<File>,
    from: u64,
    count: u64,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    futures::stream::try_unfold((file, from, count), |(file, from, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let piece = piece(&file, from, most).await?;
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let got = u64::try_from(piece.len()).unwrap_or(left);
        Ok(Some((Bytes::from(piece), (file, from + got, left.saturating_sub(got)))))
    })
}

/// Reads up to `most` bytes at an offset.
async fn piece(file: &Arc<File>, from: u64, most: usize) -> io::Result<Vec<u8>> {
    let file = Arc::clone(file);
    let read = sys::blocking::run_for(sys::blocking::Purpose::Callers, move || {
        let mut piece = vec![0; most];
        let got = file.read_at(&mut piece, from)?;
        piece.truncate(got);
        Ok(piece)
    });
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_file() {
        assert_eq!(ranges("bytes=0-4", 10), Ok(vec![(0, 5)]));
        assert_eq!(ranges("bytes=5-", 10), Ok(vec![(5, 5)]));
        assert_eq!(ranges("bytes=-3", 10), Ok(vec![(7, 3)]));
        assert_eq!(ranges("bytes=5-99", 10), Ok(vec![(5, 5)]));
        assert_eq!(ranges("bytes=10-", 10), Err(Refused::Outside));
        assert_eq!(ranges("bytes=1-2,4-5", 10), Ok(vec![(1, 2), (4, 2)]));
        for bad in ["lines=1-2", "bytes=a-b", "bytes=9-2", "bytes=--1", "bytes=--0", "bytes=5"] {
            assert_eq!(ranges(bad, 10), Err(Refused::Invalid), "{bad}");
        }
        assert_eq!(ranges("bytes=", 10), Ok(vec![]));
    }

    #[test]
    fn conditions_decide_whether_the_file_is_sent() {
        let changed = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let ask = |name: HeaderName, value: &'static str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            Conditions { headers: &headers, changed }.refusal()
        };
        let (early, late) = ("Fri, 01 Jan 1999 00:00:00 GMT", "Thu, 01 Jan 2099 00:00:00 GMT");
        assert_eq!(ask(IF_MODIFIED_SINCE, early), None);
        assert_eq!(ask(IF_MODIFIED_SINCE, late), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(ask(IF_UNMODIFIED_SINCE, early), Some(StatusCode::PRECONDITION_FAILED));
        assert_eq!(ask(IF_NONE_MATCH, "*"), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(ask(IF_MATCH, "\"x\""), Some(StatusCode::PRECONDITION_FAILED));
        assert_eq!(ask(IF_MATCH, "\"x\", W/\"y\" , *"), None);
        assert_eq!(ask(IF_MATCH, "\"x y\", *"), Some(StatusCode::PRECONDITION_FAILED));
        assert_eq!(ask(IF_NONE_MATCH, "x, *"), None);
        let odd = HeaderValue::from_bytes(b"bytes=0-\xc3").unwrap();
        let headers = HeaderMap::from_iter([(RANGE, odd)]);
        let range = Conditions { headers: &headers, changed }.range().into_owned();
        assert_eq!(ranges(&range, 10), Err(Refused::Invalid));
        assert_eq!(http_date(changed).as_deref(), Some("Sun, 09 Sep 2001 01:46:40 GMT"));
    }

    /// The response to a range request for a file of a million bytes: status, declared length, and
    /// body.
    async fn asked(range: &str) -> (u16, u64, Vec<u8>) {
        use http_body_util::BodyExt as _;
        let path = std::env::temp_dir().join(format!("rubelet-ranges-{}", std::process::id()));
        sys::fs::write(&path, "0123456789".repeat(100_000)).unwrap();
        let file = File::open(&path).unwrap();
        let value = HeaderValue::from_str(range).unwrap();
        let headers = HeaderMap::from_iter([(RANGE, value)]);
        let conditions = Conditions { headers: &headers, changed: SystemTime::UNIX_EPOCH };
        let reply = content(file, 1_000_000, "a.txt", &conditions).await;
        let said = reply.headers()[CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = open.filter(|fd| {
            std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to == path)
        });
        assert_eq!(open.count(), 1, "the file is open once");
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await.unwrap().to_bytes().to_vec();
        sys::fs::remove_file(&path).unwrap();
        (status, said, body)
    }

    // One descriptor per range would be as many as fit into a header.
    #[tokio::test]
    async fn however_many_parts_are_asked_for_the_file_is_open_once() {
        let (status, said, body) = asked("bytes=0-4,999998-").await;
        assert_eq!((status, said), (206, u64::try_from(body.len()).unwrap()));
        let text = String::from_utf8(body).unwrap();
        assert!(
            text.contains("bytes 0-4/1000000\r\nContent-Type: text/plain")
                && text.contains("\r\n\r\n01234\r\n--"),
            "{text}"
        );
        assert!(text.contains("\r\n\r\n89\r\n--"), "{text}");
        let some = format!("bytes={}", "5-5,".repeat(MOST_PARTS));
        let (status, said, body) = asked(&some).await;
        assert_eq!((status, said), (206, u64::try_from(body.len()).unwrap()));
        let many = format!("bytes={}", "5-5,".repeat(200_000));
        let (status, said, body) = asked(&many).await;
        assert_eq!((status, said, body.len()), (200, 1_000_000, 1_000_000));
    }
}
