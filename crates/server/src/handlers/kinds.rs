//! The content type of a file, by its extension or else by its first bytes (Go:
//! `mime.TypeByExtension`, `http.DetectContentType`).

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The operating system's tables (shared-mime-info); only the first one that exists is read.
const GLOBS: [&str; 2] = ["/usr/local/share/mime/globs2", "/usr/share/mime/globs2"];
/// Older tables; all of them are read where none of the above exists.
const TABLES: [&str; 4] = [
    "/etc/mime.types",
    "/etc/apache2/mime.types",
    "/etc/apache/mime.types",
    "/etc/httpd/conf/mime.types",
];

/// The built-in types.
const KNOWN: [(&str, &str); 64] = [
    (".ai", "application/postscript"),
    (".apk", "application/vnd.android.package-archive"),
    (".apng", "image/apng"),
    (".avif", "image/avif"),
    (".bin", "application/octet-stream"),
    (".bmp", "image/bmp"),
    (".com", "application/octet-stream"),
    (".css", "text/css; charset=utf-8"),
    (".csv", "text/csv; charset=utf-8"),
    (".doc", "application/msword"),
    (".docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    (".ehtml", "text/html; charset=utf-8"),
    (".eml", "message/rfc822"),
    (".eps", "application/postscript"),
    (".exe", "application/octet-stream"),
    (".flac", "audio/flac"),
    (".gif", "image/gif"),
    (".gz", "application/gzip"),
    (".htm", "text/html; charset=utf-8"),
    (".html", "text/html; charset=utf-8"),
    (".ico", "image/vnd.microsoft.icon"),
    (".ics", "text/calendar; charset=utf-8"),
    (".jfif", "image/jpeg"),
    (".jpeg", "image/jpeg"),
    (".jpg", "image/jpeg"),
    (".js", "text/javascript; charset=utf-8"),
    (".json", "application/json"),
    (".m4a", "audio/mp4"),
    (".mjs", "text/javascript; charset=utf-8"),
    (".mp3", "audio/mpeg"),
    (".mp4", "video/mp4"),
    (".oga", "audio/ogg"),
    (".ogg", "audio/ogg"),
    (".ogv", "video/ogg"),
    (".opus", "audio/ogg"),
    (".pdf", "application/pdf"),
    (".pjp", "image/jpeg"),
    (".pjpeg", "image/jpeg"),
    (".png", "image/png"),
    (".ppt", "application/vnd.ms-powerpoint"),
    (".pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    (".ps", "application/postscript"),
    (".rdf", "application/rdf+xml"),
    (".rtf", "application/rtf"),
    (".shtml", "text/html; charset=utf-8"),
    (".svg", "image/svg+xml"),
    (".text", "text/plain; charset=utf-8"),
    (".tif", "image/tiff"),
    (".tiff", "image/tiff"),
    (".txt", "text/plain; charset=utf-8"),
    (".vtt", "text/vtt; charset=utf-8"),
    (".wasm", "application/wasm"),
    (".wav", "audio/wav"),
    (".webm", "audio/webm"),
    (".webp", "image/webp"),
    (".xbl", "text/xml; charset=utf-8"),
    (".xbm", "image/x-xbitmap"),
    (".xht", "application/xhtml+xml"),
    (".xhtml", "application/xhtml+xml"),
    (".xls", "application/vnd.ms-excel"),
    (".xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    (".xml", "text/xml; charset=utf-8"),
    (".xsl", "text/xml; charset=utf-8"),
    (".zip", "application/zip"),
];

/// Types by extension, as written and in lower case.
#[derive(Debug, Default)]
struct Types {
    exact: BTreeMap<String, String>,
    lower: BTreeMap<String, String>,
}

impl Types {
    fn known() -> Types {
        let mut types = Types::default();
        for (extension, kind) in KNOWN {
            types.exact.insert(extension.to_owned(), kind.to_owned());
            types.lower.insert(extension.to_owned(), kind.to_owned());
        }
        types
    }

    fn read() -> Types {
        let mut types = Types::known();
        let text = |file: &&str| sys::fs::read(file).ok();
        if let Some(bytes) = GLOBS.iter().find_map(text) {
            String::from_utf8_lossy(&bytes).lines().for_each(|line| types.glob(line));
            return types;
        }
        for bytes in TABLES.iter().filter_map(text) {
            String::from_utf8_lossy(&bytes).lines().for_each(|line| types.line(line));
        }
        types
    }

    /// `50:text/x-log:*.log` of a glob table; the first entry of an extension counts.
    fn glob(&mut self, line: &str) {
        let mut fields = line.split(':');
        let (Some(weight), Some(kind), Some(glob)) = (fields.next(), fields.next(), fields.next())
        else {
            return;
        };
        let Some(extension) = glob.strip_prefix('*').filter(|e| e.len() > 1) else { return };
        let bare = extension.starts_with('.') && !extension.contains(['?', '*', '[']);
        if bare && !weight.is_empty() && !weight.starts_with('#') {
            if self.exact.contains_key(extension) {
                return;
            }
            self.set(extension, kind);
        }
    }

    /// `text/plain txt log` of an older table.
    fn line(&mut self, line: &str) {
        let mut fields = line.split_whitespace();
        let Some(kind) = fields.next().filter(|kind| !kind.starts_with('#')) else { return };
        for extension in fields.take_while(|extension| !extension.starts_with('#')) {
            self.set(&format!(".{extension}"), kind);
        }
    }

    fn set(&mut self, extension: &str, kind: &str) {
        let charset = if kind.starts_with("text/") { "; charset=utf-8" } else { "" };
        let kind = format!("{kind}{charset}");
        self.exact.insert(extension.to_owned(), kind.clone());
        self.lower.insert(extension.to_lowercase(), kind);
    }

    fn of(&self, extension: &str) -> Option<&String> {
        self.exact.get(extension).or_else(|| self.lower.get(&extension.to_lowercase()))
    }
}

/// The type by the file's extension, if that is known.
pub(super) fn by_name(name: &str) -> Option<String> {
    static TYPES: OnceLock<Types> = OnceLock::new();
    let extension = name.rfind('.').and_then(|at| name.get(at..))?;
    TYPES.get_or_init(Types::read).of(extension).cloned()
}

/// Tags that an HTML page may begin with; a space or a bracket must follow.
const TAGS: [&[u8]; 17] = [
    b"<!DOCTYPE HTML",
    b"<HTML",
    b"<HEAD",
    b"<SCRIPT",
    b"<IFRAME",
    b"<H1",
    b"<DIV",
    b"<FONT",
    b"<TABLE",
    b"<A",
    b"<STYLE",
    b"<TITLE",
    b"<B",
    b"<BODY",
    b"<BR",
    b"<P",
    b"<!--",
];

const DOCUMENTS: [(&[u8], &str); 2] =
    [(b"%PDF-", "application/pdf"), (b"%!PS-Adobe-", "application/postscript")];

/// Byte order marks; at least four bytes must be present.
const MARKS: [(&[u8], &str); 3] = [
    (b"\xfe\xff", "text/plain; charset=utf-16be"),
    (b"\xff\xfe", "text/plain; charset=utf-16le"),
    (b"\xef\xbb\xbf", "text/plain; charset=utf-8"),
];

/// Image and audio signatures; a dot stands for any byte.
const MEDIA: [(&[u8], &str); 14] = [
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"\x00\x00\x02\x00", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"RIFF....WEBPVP", "image/webp"),
    (b"\x89PNG\x0d\x0a\x1a\x0a", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"FORM....AIFF", "audio/aiff"),
    (b"ID3", "audio/mpeg"),
    (b"OggS\x00", "application/ogg"),
    (b"MThd\x00\x00\x00\x06", "audio/midi"),
    (b"RIFF....AVI ", "video/avi"),
    (b"RIFF....WAVE", "audio/wave"),
];

/// Video, font and archive signatures; a dot stands for any byte.
const OTHERS: [(&[u8], &str); 12] = [
    (b"\x1a\x45\xdf\xa3", "video/webm"),
    (b"..................................LP", "application/vnd.ms-fontobject"),
    (b"\x00\x01\x00\x00", "font/ttf"),
    (b"OTTO", "font/otf"),
    (b"ttcf", "font/collection"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1a\x07\x00", "application/x-rar-compressed"),
    (b"Rar!\x1a\x07\x01\x00", "application/x-rar-compressed"),
    (b"\x00\x61\x73\x6d", "application/wasm"),
];

/// Bytes that Go's server examines for a type (Go: `sniffLen`).
const SNIFFED: usize = 512;

/// The type of a body by its first bytes.
pub(crate) fn of_start(text: &[u8]) -> &'static str {
    by_content(text.get(..SNIFFED).unwrap_or(text))
}

/// The type of content that begins with these bytes.
pub(super) fn by_content(head: &[u8]) -> &'static str {
    let blank = |byte: &u8| matches!(byte, b'\t' | b'\n' | 0x0c | b'\r' | b' ');
    let start = head.iter().position(|byte| !blank(byte)).unwrap_or(head.len());
    let text = head.get(start..).unwrap_or_default();
    let among = |list: &[(&[u8], &'static str)]| {
        list.iter().find(|(pattern, _)| fits(head, pattern)).map(|(_, kind)| *kind)
    };
    if TAGS.iter().any(|tag| is_tag(text, tag)) {
        "text/html; charset=utf-8"
    } else if text.starts_with(b"<?xml") {
        "text/xml; charset=utf-8"
    } else if let Some(kind) = among(&DOCUMENTS) {
        kind
    } else if let Some(kind) = among(&MARKS).filter(|_| head.len() >= 4) {
        kind
    } else if let Some(kind) = among(&MEDIA) {
        kind
    } else if is_mp4(head) {
        "video/mp4"
    } else if let Some(kind) = among(&OTHERS) {
        kind
    } else if text.iter().any(|byte| matches!(*byte, 0..=8 | 11 | 14..=26 | 28..=31)) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

fn fits(head: &[u8], pattern: &[u8]) -> bool {
    let same = |(byte, wanted): (&u8, &u8)| byte == wanted || *wanted == b'.';
    head.len() >= pattern.len() && head.iter().zip(pattern).all(same)
}

/// A tag in any case, and the byte that ends it.
fn is_tag(text: &[u8], tag: &[u8]) -> bool {
    let begins = text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag));
    begins && matches!(text.get(tag.len()), Some(b' ' | b'>'))
}

/// Whether one of the brands in the first box is a version of MP4.
fn is_mp4(head: &[u8]) -> bool {
    let Some((size, rest)) = head.split_first_chunk::<4>().filter(|_| head.len() >= 12) else {
        return false;
    };
    let size = usize::try_from(u32::from_be_bytes(*size)).unwrap_or(usize::MAX);
    let Some(all) = head.get(..size).filter(|_| size % 4 == 0 && rest.starts_with(b"ftyp")) else {
        return false;
    };
    // The third word is the version of the major brand, not a brand.
    let brands = all.chunks_exact(4).enumerate().skip(2).filter(|(at, _)| *at != 3);
    brands.into_iter().any(|(_, brand)| brand.starts_with(b"mp4"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_add_to_what_is_known() {
        let mut types = Types::known();
        types.glob("50:text/x-log:*.log");
        types.glob("40:text/plain:*.log");
        types.glob("50:application/x-json:*.json");
        types.glob("50:text/x-changelog:changelog");
        types.glob("# x:y:*.z");
        let of = |types: &Types, name: &str| types.of(name).cloned();
        assert_eq!(of(&types, ".log").as_deref(), Some("text/x-log; charset=utf-8"));
        assert_eq!(of(&types, ".LOG").as_deref(), Some("text/x-log; charset=utf-8"));
        assert_eq!(of(&types, ".json").as_deref(), Some("application/json"));
        assert_eq!(of(&types, ".z"), None);
        types.line("application/x-gone gone # other");
        types.line("# text/plain no");
        assert_eq!(of(&types, ".gone").as_deref(), Some("application/x-gone"));
        assert_eq!((of(&types, ".other"), of(&types, ".no")), (None, None));
    }

    #[test]
    fn first_bytes_tell_the_type() {
        for (head, kind) in [
            (&b""[..], "text/plain; charset=utf-8"),
            (b"2026-01-01 text", "text/plain; charset=utf-8"),
            (b"\x00\x00\x00\x00", "application/octet-stream"),
            (b" \n<html>", "text/html; charset=utf-8"),
            (b"<htmlx>", "text/plain; charset=utf-8"),
            (b"  <?xml version", "text/xml; charset=utf-8"),
            (b"\xfe\xffab", "text/plain; charset=utf-16be"),
            (b"\xff\xfe", "text/plain; charset=utf-8"),
            (b"RIFF1234WAVE", "audio/wave"),
            (b"\x1f\x8b\x08...", "application/x-gzip"),
            (b"\x00\x00\x00\x10ftypmp420000", "video/mp4"),
            (b"0123456789012345678901234567890123LP", "application/vnd.ms-fontobject"),
            (b"\x1b[1mbold", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(by_content(head), kind, "{head:?}");
        }
    }
}
