//! `/logs/`: files and listings of the node's log folder.
//!
//! Promises: nothing outside the folder is opened, whatever links lie in it: a link is followed
//! only as long as its target lies inside. (Upstream follows links anywhere.)

use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use axum::body::Body;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, LOCATION, RANGE};
use http::{HeaderMap, Response, StatusCode};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};
use sys::beneath::{Dir, EntryKind};

const PIECE: usize = 64 * 1024;
const SNIFF: usize = 512;

/// What lies at a path.
enum Found {
    Listing(Vec<(String, bool)>),
    File { file: File, length: u64, head: Vec<u8> },
}

/// A file, or the listing of a folder.
pub(crate) async fn answer(deps: &ServerDeps, path: &str, headers: &HeaderMap) -> Reply {
    let Some(root) = deps.roots.container_logs.parent().map(Path::to_owned) else {
        return missing();
    };
    let Some(wanted) = relative(path) else {
        return reply::error(StatusCode::BAD_REQUEST, "invalid URL path");
    };
    let found = sys::blocking::run(move || look(&root, &wanted)).await;
    let as_folder = path.is_empty() || path.ends_with('/');
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    match found {
        Ok(Some(Found::Listing(_))) if !as_folder => moved(&format!("{name}/")),
        Ok(Some(Found::Listing(entries))) => listing(&entries),
        Ok(Some(Found::File { .. })) if as_folder => moved(&format!("../{name}")),
        Ok(Some(Found::File { file, length, head })) => content(file, length, &head, headers),
        Ok(None) | Err(_) => missing(),
    }
}

fn missing() -> Reply {
    reply::error(StatusCode::NOT_FOUND, "404 page not found")
}

fn moved(to: &str) -> Reply {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(value) = HeaderValue::from_str(to) {
        reply.headers_mut().insert(LOCATION, value);
    }
    reply
}

/// The decoded path, if it only goes down.
fn relative(path: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))?;
    let path = PathBuf::from(text.trim_matches('/'));
    let down = path.components().all(|part| matches!(part, Component::Normal(_)));
    down.then_some(if path.as_os_str().is_empty() { PathBuf::from(".") } else { path })
}

fn look(root: &Path, wanted: &Path) -> Option<Found> {
    let folder = Dir::open(root).ok()?;
    let file = folder.open_file(wanted).ok().or_else(|| {
        // An absolute link that stays inside is followed by its real name.
        let real = std::fs::canonicalize(root.join(wanted)).ok()?;
        let inside = real.strip_prefix(std::fs::canonicalize(root).ok()?).ok()?.to_owned();
        folder.open_file(&inside).ok()
    })?;
    let meta = file.metadata().ok()?;
    if meta.is_dir() {
        let entries = Dir::from_file(file, root.join(wanted)).entries().ok()?;
        let mut entries: Vec<(String, bool)> = entries
            .into_iter()
            .filter_map(|(name, kind)| Some((name.into_string().ok()?, kind == EntryKind::Dir)))
            .collect();
        entries.sort();
        return Some(Found::Listing(entries));
    }
    if !meta.is_file() {
        return None;
    }
    let mut head = Vec::new();
    let mut file = file;
    (&file).take(u64::try_from(SNIFF).unwrap_or(0)).read_to_end(&mut head).ok()?;
    file.seek(SeekFrom::Start(0)).ok()?;
    Some(Found::File { file, length: meta.len(), head })
}

fn listing(entries: &[(String, bool)]) -> Reply {
    let mut page = String::from(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n",
    );
    for (name, folder) in entries {
        let name = if *folder { format!("{name}/") } else { name.clone() };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", link(&name), escape(&name));
    }
    page.push_str("</pre>\n");
    reply::with_type(StatusCode::OK, "text/html; charset=utf-8", page)
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// A relative link to a name.
fn link(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        out.push_str("./");
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/$&+,:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out.replace('&', "&amp;")
}

fn content(file: File, length: u64, head: &[u8], headers: &HeaderMap) -> Reply {
    let asked = headers.get(RANGE).and_then(|v| v.to_str().ok());
    let (status, from, count) = match asked.map(|text| range(text, length)) {
        None | Some(Asked::Ignored) => (StatusCode::OK, 0, length),
        Some(Asked::Part(from, count)) => (StatusCode::PARTIAL_CONTENT, from, count),
        Some(Asked::Outside) => {
            let text = "invalid range: failed to overlap";
            let mut reply = reply::error(StatusCode::RANGE_NOT_SATISFIABLE, text);
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{length}")) {
                reply.headers_mut().insert(CONTENT_RANGE, value);
            }
            return reply;
        }
    };
    let mut reply = reply::with_type(status, sniff(head), stream(file, from, count));
    let headers = reply.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(count));
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(value) = HeaderValue::from_str(&format!(
            "bytes {from}-{}/{length}",
            from.saturating_add(count).saturating_sub(1)
        ))
    {
        headers.insert(CONTENT_RANGE, value);
    }
    reply
}

fn sniff(head: &[u8]) -> &'static str {
    let binary = |b: &u8| matches!(*b, 0..=8 | 11 | 14..=26 | 28..=31);
    if head.starts_with(b"\x1f\x8b\x08") {
        "application/x-gzip"
    } else if head.iter().any(binary) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// From here, so many bytes.
    Part(u64, u64),
    /// Nothing of it lies in the file.
    Outside,
    /// Not a single range: the whole file is an answer too.
    Ignored,
}

fn range(text: &str, length: u64) -> Asked {
    let Some((from, to)) = text.strip_prefix("bytes=").and_then(|r| r.split_once('-')) else {
        return Asked::Ignored;
    };
    let (from, to) = (from.trim(), to.trim());
    match (from.parse::<u64>(), to.parse::<u64>()) {
        (Err(_), Ok(last)) if from.is_empty() => {
            let count = last.min(length);
            if count == 0 { Asked::Outside } else { Asked::Part(length - count, count) }
        }
        (Ok(from), _) if from >= length => Asked::Outside,
        (Ok(from), Err(_)) if to.is_empty() => Asked::Part(from, length - from),
        (Ok(from), Ok(to)) if to >= from => Asked::Part(from, to.min(length - 1) - from + 1),
        _ => Asked::Ignored,
    }
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
    fn paths_only_go_down() {
        assert_eq!(relative("pods/a%20b"), Some(PathBuf::from("pods/a b")));
        assert_eq!(relative(""), Some(PathBuf::from(".")));
        for bad in ["..", "a/../b", "%2e%2e/x", "a%00b", "%zz"] {
            assert_eq!(relative(bad), None, "{bad}");
        }
    }

    #[test]
    fn links_are_followed_only_inside() {
        let root = std::env::temp_dir().join(format!("rubelet-nodelogs-{}", std::process::id()));
        sys::fs::create_dir_all(root.join("pods"), 0o755).unwrap();
        sys::fs::write(root.join("pods/0.log"), "x\n").unwrap();
        let link = |to: &Path, name: &str| {
            std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        };
        link(&root.join("pods/0.log"), "inside");
        link(Path::new("/etc/passwd"), "outside");
        link(Path::new("../../etc/passwd"), "above");
        let file = |name: &str| matches!(look(&root, Path::new(name)), Some(Found::File { .. }));
        assert!(file("pods/0.log") && file("inside"));
        assert!(!file("outside") && !file("above") && !file("absent"));
        assert!(matches!(look(&root, Path::new(".")), Some(Found::Listing(e)) if e.len() == 4));
        for name in ["inside", "outside", "above", "pods/0.log"] {
            sys::fs::remove_file(root.join(name)).unwrap();
        }
        sys::fs::remove_dir(root.join("pods")).unwrap();
        sys::fs::remove_dir(&root).unwrap();
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        assert_eq!(range("bytes=0-4", 10), Asked::Part(0, 5));
        assert_eq!(range("bytes=5-", 10), Asked::Part(5, 5));
        assert_eq!(range("bytes=-3", 10), Asked::Part(7, 3));
        assert_eq!(range("bytes=5-99", 10), Asked::Part(5, 5));
        assert_eq!(range("bytes=10-", 10), Asked::Outside);
        assert_eq!(range("bytes=1-2,4-5", 10), Asked::Ignored);
        assert_eq!(range("lines=1-2", 10), Asked::Ignored);
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(escape("<a>\"&'"), "&lt;a&gt;&#34;&amp;&#39;");
        assert_eq!(link("a b\"<"), "a%20b%22%3C");
        assert_eq!(link("x:y"), "./x:y");
    }
}
