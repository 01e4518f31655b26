//! One file as an answer: its type, its parts, and whether it is wanted at all (Go:
//! `http.ServeContent`).

use super::kinds;
use crate::gotime::http_time;
use crate::reply::{self, Reply};
use axum::body::Body;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, StatusCode};
use std::borrow::Cow;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::time::SystemTime;

const PIECE: usize = 64 * 1024;
const SNIFF: u64 = 512;
/// Under which conditions the file is wanted.
pub(super) struct Conditions<'a> {
    /// The request's headers.
    pub(super) headers: &'a HeaderMap,
    /// When the file was changed.
    pub(super) changed: SystemTime,
}

impl Conditions<'_> {
    /// A header that says something, be it no text.
    fn header(&self, name: HeaderName) -> Option<Cow<'_, str>> {
        let value = self.headers.get(name).filter(|value| !value.is_empty());
        value.map(|value| String::from_utf8_lossy(value.as_bytes()))
    }

    fn time(&self, name: HeaderName) -> Option<i64> {
        self.header(name).and_then(|text| http_time(&text))
    }

    /// The answer if the file itself is not wanted (Go: `checkPreconditions`). Files have no tag.
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

/// Whether a folder has not changed since the moment that the client names.
pub(super) fn not_modified_since(headers: &HeaderMap, changed: SystemTime) -> bool {
    let conditions = Conditions { headers, changed };
    conditions.time(IF_MODIFIED_SINCE).is_some_and(|since| seconds(changed) <= since)
}

/// The same answer with the time of the last change.
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

/// Whether any file will do: one of the tags is a star. Files have none that could be the same.
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

/// What is behind the tag in front (Go: `scanETag`).
fn after_tag(text: &str) -> Option<&str> {
    let inside = text.strip_prefix("W/").unwrap_or(text).strip_prefix('"')?;
    let good = |byte: u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..);
    let end = inside.bytes().position(|byte| !good(byte))?;
    inside.get(end..)?.strip_prefix('"')
}

/// The file, or the parts of it that are asked for.
pub(super) async fn content(
    mut file: File,
    length: u64,
    name: &str,
    conditions: &Conditions<'_>,
) -> Reply {
    let changed = conditions.changed;
    if let Some(status) = conditions.refusal() {
        return with_time(reply::bare(status, Body::empty()), changed);
    }
    let kind = match kinds::by_name(name) {
        Some(kind) => kind,
        None => {
            let mut head = Vec::new();
            let read = (&file).take(SNIFF).read_to_end(&mut head).is_ok();
            if !read || file.seek(SeekFrom::Start(0)).is_err() {
                let text = "seeker can't seek";
                return reply::error(StatusCode::INTERNAL_SERVER_ERROR, text);
            }
            kinds::by_content(&head).to_owned()
        }
    };
    let parts = match ranges(&conditions.range(), length) {
        Ok(parts) => parts,
        Err(Refused::Invalid) => return unsatisfiable("invalid range", None),
        Err(Refused::Outside) if length == 0 => Vec::new(),
        Err(Refused::Outside) => {
            return unsatisfiable("invalid range: failed to overlap", Some(length));
        }
    };
    let parts = if total(&parts) > length { Vec::new() } else { parts };
    let mut reply = match parts.as_slice() {
        [] => typed(StatusCode::OK, &kind, stream(file, 0, length), length),
        [(from, count)] => {
            let body = stream(file, *from, *count);
            let mut reply = typed(StatusCode::PARTIAL_CONTENT, &kind, body, *count);
            if let Ok(value) = HeaderValue::from_str(&place(*from, *count, length)) {
                reply.headers_mut().insert(CONTENT_RANGE, value);
            }
            reply
        }
        parts => several(file, length, &kind, parts),
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

/// Several parts in one answer; they are read one after the other.
fn several(file: File, length: u64, kind: &str, parts: &[(u64, u64)]) -> Reply {
    use futures::StreamExt as _;
    let boundary = format!("{:032x}{:028x}", length, std::process::id());
    let mut bodies = Vec::new();
    for (index, (from, count)) in parts.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\r\n" };
        let place = place(*from, *count, length);
        let head =
            format!("{gap}--{boundary}\r\nContent-Range: {place}\r\nContent-Type: {kind}\r\n\r\n");
        bodies.push(Body::from(head));
        match file.try_clone() {
            Ok(file) => bodies.push(stream(file, *from, *count)),
            Err(error) => {
                return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
        }
    }
    bodies.push(Body::from(format!("\r\n--{boundary}--\r\n")));
    let whole = futures::stream::iter(bodies).flat_map(Body::into_data_stream);
    let mut reply = reply::bare(StatusCode::PARTIAL_CONTENT, Body::from_stream(whole));
    let kind = format!("multipart/byteranges; boundary={boundary}");
    if let Ok(kind) = HeaderValue::from_str(&kind) {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    reply
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// Not a range.
    Invalid,
    /// Nothing of it lies in the file.
    Outside,
}

/// The parts asked for, each as place and length; none without a header.
fn ranges(text: &str, length: u64) -> Result<Vec<(u64, u64)>, Refused> {
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

/// The part, piece by piece; a file that shrinks ends the answer early.
fn stream(file: File, from: u64, count: u64) -> Body {
    let state = (file, Some(from), count);
    let pieces = futures::stream::try_unfold(state, |(file, seek, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let read = sys::blocking::run(move || {
            let mut file = file;
            if let Some(from) = seek {
                file.seek(SeekFrom::Start(from))?;
            }
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let mut piece = vec![0; most];
            let got = file.read(&mut piece)?;
            piece.truncate(got);
            Ok::<_, std::io::Error>((file, piece))
        });
        let (file, piece) = read.await.map_err(std::io::Error::other)??;
        if piece.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        let left = left.saturating_sub(u64::try_from(piece.len()).unwrap_or(left));
        Ok(Some((bytes::Bytes::from(piece), (file, None, left))))
    });
    Body::from_stream(pieces)
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
}
