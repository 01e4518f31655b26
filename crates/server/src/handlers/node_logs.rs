//! `/logs/`: files and listings of the node's log directory, and queries for its services' logs.
//!
//! Promises: nothing outside the directory is opened: a symlink is followed only if its target lies
//! inside. (Upstream follows links anywhere.) Everything else is as in Go's `http.FileServer`.

use super::files::{Conditions, content, not_modified_since, with_time};
use super::log_query;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::Switches;
use crate::serve::ServerDeps;
use crate::target::Target;
use http::header::{HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use sys::rooted_dir::{Dir, EntryKind};

/// What exists at a path.
enum Found {
    Listing(Vec<(Vec<u8>, bool)>, SystemTime),
    /// The `index.html` of a directory.
    Index(File, u64, SystemTime),
    File(File, u64, SystemTime),
    /// It exists but cannot be opened.
    Failure,
}

/// A file, a directory listing, or the logs of services.
pub(crate) async fn answer(
    deps: &ServerDeps,
    switches: Switches,
    target: &Target,
    headers: &HeaderMap,
) -> Reply {
    let Some(root) = deps.roots.container_logs.parent().map(Path::to_owned) else {
        return missing();
    };
    // Go strips the prefix from both the decoded and the encoded path, and only in its exact form.
    let Some(path) = target.path.strip_prefix("/logs/") else { return missing() };
    if !target.escaped.starts_with("/logs/") {
        return missing();
    }
    let bytes = target.bytes();
    let bytes = bytes.strip_prefix(b"/logs/").unwrap_or_default();
    if switches.log_query {
        let query = Query::parse(&target.query);
        match log_query::decide(&query, path, &root) {
            log_query::Mode::Files => {}
            log_query::Mode::File(path) => return file(root, path.as_bytes(), "", headers).await,
            log_query::Mode::Refused(refused) => return *refused,
            log_query::Mode::Services(asked) => {
                return log_query::run(deps, root, asked, headers).await;
            }
        }
    }
    file(root, bytes, &target.query, headers).await
}

async fn file(root: PathBuf, path: &[u8], query: &str, headers: &HeaderMap) -> Reply {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let url = [b"/", path.get(start..).unwrap_or_default()].concat();
    if url.ends_with(b"/index.html") {
        return moved(b"./", query);
    }
    let Some(wanted) = relative(&url) else { return missing() };
    let own = wanted.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let found =
        sys::blocking::run_for(sys::blocking::Purpose::Callers, move || look(&root, &wanted)).await;
    let as_folder = url.ends_with(b"/");
    let name = url.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()).unwrap_or_default();
    match found {
        Ok(Some(Found::Listing(..) | Found::Index(..))) if !as_folder => {
            moved(&[name, b"/"].concat(), query)
        }
        Ok(Some(Found::Listing(entries, changed))) => {
            if not_modified_since(headers, changed) {
                return reply::bare(StatusCode::NOT_MODIFIED, axum::body::Body::empty());
            }
            with_time(listing(&entries), changed)
        }
        Ok(Some(Found::File(..))) if as_folder => moved(&[b"../", name].concat(), query),
        Ok(Some(Found::File(file, length, changed))) => {
            content(file, length, &own, &Conditions { headers, changed }).await
        }
        Ok(Some(Found::Index(file, length, changed))) => {
            content(file, length, INDEX, &Conditions { headers, changed }).await
        }
        Ok(Some(Found::Failure)) => {
            reply::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error")
        }
        Ok(None) | Err(_) => missing(),
    }
}

const INDEX: &str = "index.html";

fn missing() -> Reply {
    reply::error(StatusCode::NOT_FOUND, "404 page not found")
}

fn moved(to: &[u8], query: &str) -> Reply {
    let mark = if query.is_empty() { "" } else { "?" };
    let to = [to, mark.as_bytes(), query.as_bytes()].concat();
    let mut reply = reply::bare(StatusCode::MOVED_PERMANENTLY, axum::body::Body::empty());
    if let Ok(value) = HeaderValue::from_bytes(&to) {
        reply.headers_mut().insert(LOCATION, value);
    }
    reply
}

/// The path relative to the directory.
fn relative(url: &[u8]) -> Option<PathBuf> {
    if url.contains(&0) {
        return None;
    }
    let mut path = PathBuf::new();
    for part in url.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                path.pop();
            }
            name => path.push(OsStr::from_bytes(name)),
        }
    }
    Some(if path.as_os_str().is_empty() { PathBuf::from(".") } else { path })
}

/// Opens a file or directory below `root`; symlinks are followed as long as they stay inside.
pub(super) fn open(root: &Path, wanted: &Path) -> Option<File> {
    let folder = Dir::open(root).ok()?;
    folder.open_file(wanted).ok().or_else(|| {
        // An absolute symlink that stays inside is followed by its resolved path.
        let real = std::fs::canonicalize(root.join(wanted)).ok()?;
        let inside = real.strip_prefix(std::fs::canonicalize(root).ok()?).ok()?.to_owned();
        folder.open_file(&inside).ok()
    })
}

/// Whether a name exists but cannot be opened (Go: `mapOpenError`).
fn cannot_be_opened(root: &Path, wanted: &Path) -> bool {
    let Err(error) = Dir::open(root).and_then(|folder| folder.open_file(wanted)) else {
        return false;
    };
    let failures = ["file name too long", "too many levels of symbolic links", "no such device"];
    let why = units::errno::go_text(&error.source);
    failures.iter().any(|failure| why.starts_with(failure))
}

fn look(root: &Path, wanted: &Path) -> Option<Found> {
    let Some(file) = open(root, wanted) else {
        return cannot_be_opened(root, wanted).then_some(Found::Failure);
    };
    let meta = file.metadata().ok()?;
    let changed = meta.modified().ok()?;
    if meta.is_dir() {
        if let Some(page) = open(root, &wanted.join(INDEX))
            && let Ok(meta) = page.metadata()
            && meta.is_file()
        {
            return Some(Found::Index(page, meta.len(), meta.modified().ok()?));
        }
        let entries = Dir::from_file(file, root.join(wanted)).entries().ok()?;
        let mut entries: Vec<(Vec<u8>, bool)> = entries
            .into_iter()
            .map(|(name, kind)| (name.into_vec(), kind == EntryKind::Dir))
            .collect();
        entries.sort();
        return Some(Found::Listing(entries, changed));
    }
    meta.is_file().then_some(Found::File(file, meta.len(), changed))
}

fn listing(entries: &[(Vec<u8>, bool)]) -> Reply {
    let mut page = Vec::from(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n",
    );
    for (name, folder) in entries {
        let name = [name.as_slice(), if *folder { b"/" } else { b"" }].concat();
        let link = link(&name);
        page.extend([b"<a href=\"", link.as_bytes(), b"\">", &escape(&name), b"</a>\n"].concat());
    }
    page.extend(b"</pre>\n");
    reply::with_type(StatusCode::OK, "text/html; charset=utf-8", page)
}

fn escape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'&' => out.extend(b"&amp;"),
            b'<' => out.extend(b"&lt;"),
            b'>' => out.extend(b"&gt;"),
            b'"' => out.extend(b"&#34;"),
            b'\'' => out.extend(b"&#39;"),
            other => out.push(*other),
        }
    }
    out
}

/// A relative link to a name.
fn link(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    if name.split(|byte| *byte == b'/').next().is_some_and(|first| first.contains(&b':')) {
        out.push_str("./");
    }
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-_.~/$&+,:;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_only_go_down() {
        assert_eq!(relative(b"/pods/a b"), Some(PathBuf::from("pods/a b")));
        assert_eq!(relative(b"/"), Some(PathBuf::from(".")));
        assert_eq!(relative(b"/../../etc/passwd"), Some(PathBuf::from("etc/passwd")));
        assert_eq!(relative(b"/a/b/.././/c/"), Some(PathBuf::from("a/c")));
        assert_eq!(relative(b"/a\0b"), None);
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
        let file = |name: &str| matches!(look(&root, Path::new(name)), Some(Found::File(..)));
        assert!(file("pods/0.log") && file("inside"));
        assert!(!file("outside") && !file("above") && !file("absent"));
        sys::fs::write(root.join("pods/index.html"), "<p>").unwrap();
        assert!(matches!(look(&root, Path::new("pods")), Some(Found::Index(..))));
        sys::fs::remove_file(root.join("pods/index.html")).unwrap();
        let long = "x".repeat(300);
        assert!(matches!(look(&root, Path::new(&long)), Some(Found::Failure)));
        assert!(look(&root, &Path::new("pods/0.log").join(&long)).is_none());
        assert!(matches!(look(&root, Path::new(".")), Some(Found::Listing(e, _)) if e.len() == 4));
        for name in ["inside", "outside", "above", "pods/0.log"] {
            sys::fs::remove_file(root.join(name)).unwrap();
        }
        sys::fs::remove_dir(root.join("pods")).unwrap();
        sys::fs::remove_dir(&root).unwrap();
    }

    #[tokio::test]
    async fn names_that_are_no_text_are_listed_and_served() {
        use http_body_util::BodyExt as _;
        let root = std::env::temp_dir().join(format!("rubelet-oddlogs-{}", std::process::id()));
        let odd = OsStr::from_bytes(b"a\xff.log");
        sys::fs::create_dir_all(root.join(OsStr::from_bytes(b"\xfe")), 0o755).unwrap();
        sys::fs::write(root.join(odd), "x\n").unwrap();
        let none = HeaderMap::new();
        let body = async |path: &[u8]| {
            let reply = file(root.clone(), path, "", &none).await;
            assert_eq!(reply.status(), StatusCode::OK);
            reply.into_body().collect().await.unwrap().to_bytes().to_vec()
        };
        let page = body(b"").await;
        let line = b"<a href=\"a%FF.log\">a\xff.log</a>\n<a href=\"%FE/\">\xfe/</a>\n";
        assert!(page.windows(line.len()).any(|part| part == line));
        assert_eq!(body(b"a\xff.log").await, b"x\n");
        let moved = file(root.clone(), b"\xfe", "q", &none).await;
        assert_eq!(moved.headers()[LOCATION].as_bytes(), b"\xfe/?q");
        sys::fs::remove_file(root.join(odd)).unwrap();
        sys::fs::remove_dir(root.join(OsStr::from_bytes(b"\xfe"))).unwrap();
        sys::fs::remove_dir(&root).unwrap();
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(escape(b"<a>\"&'"), b"&lt;a&gt;&#34;&amp;&#39;");
        assert_eq!(link(b"a b\"<"), "a%20b%22%3C");
        assert_eq!(link(b"x:y"), "./x:y");
    }
}
