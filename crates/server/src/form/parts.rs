//! Multipart forms (Go: `mime/multipart`); their values are returned, their files are skipped.
//!
//! Deliberately absent: quoted-printable parts.

use super::{media, token};

/// Go: `multipartmaxparts`.
const MAX_PARTS: usize = 1000;
/// Go reads the lines between parts through a buffer of this size.
const MAX_LINE: usize = 4096;

/// Names and values in order; `None` if the body is malformed.
pub(crate) fn read(body: &[u8], boundary: &str) -> Option<Vec<(String, String)>> {
    if boundary.is_empty() {
        return None;
    }
    let mark = format!("--{boundary}").into_bytes();
    let mut reader = Reader { rest: body, mark, newline: b"\r\n", first: true };
    let mut values = Vec::new();
    let mut parts = 0;
    while reader.next()? == Next::Part {
        let Some(disposition) = reader.header()? else { break };
        parts += 1;
        if parts > MAX_PARTS {
            return None;
        }
        let value = reader.body()?;
        if let Some(name) = value_name(&disposition) {
            values.push((name, String::from_utf8_lossy(value).into_owned()));
        }
    }
    Some(values)
}

/// The name of a value by its `Content-Disposition`; `None` for files.
fn value_name(disposition: &str) -> Option<String> {
    let (kind, mut params, fault) = media(disposition);
    let filled = |name: Option<String>| name.filter(|name| !name.is_empty());
    let is_value = fault.is_none() && kind == "form-data";
    if !is_value || filled(params.remove("filename")).is_some() {
        return None;
    }
    filled(params.remove("name"))
}

/// What a line between parts begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Part,
    End,
}

struct Reader<'a> {
    rest: &'a [u8],
    /// The boundary with its dashes.
    mark: Vec<u8>,
    /// The line ending; the first boundary decides.
    newline: &'static [u8],
    first: bool,
}

impl<'a> Reader<'a> {
    /// Reads up to the next part's header.
    fn next(&mut self) -> Option<Next> {
        let mut expected = false;
        loop {
            let (line, rest) = line(self.rest);
            if line.len() > MAX_LINE {
                return None;
            }
            if !line.ends_with(b"\n") {
                return self.is_last(line).then_some(Next::End);
            }
            self.rest = rest;
            if self.is_mark(line) {
                self.first = false;
                return Some(Next::Part);
            }
            if self.is_last(line) {
                return Some(Next::End);
            }
            if self.first {
                continue;
            }
            if expected || line != self.newline {
                return None;
            }
            expected = true;
        }
    }

    fn is_mark(&mut self, line: &[u8]) -> bool {
        let Some(rest) = line.strip_prefix(self.mark.as_slice()) else { return false };
        let rest = without_blanks(rest);
        if self.first && rest == b"\n" {
            self.newline = b"\n";
        }
        rest == self.newline
    }

    fn is_last(&self, line: &[u8]) -> bool {
        let rest =
            line.strip_prefix(self.mark.as_slice()).and_then(|rest| rest.strip_prefix(b"--"));
        rest.map(without_blanks).is_some_and(|rest| rest.is_empty() || rest == self.newline)
    }

    /// The part's `Content-Disposition`; `None` if the form ends within the part's header.
    fn header(&mut self) -> Option<Option<String>> {
        let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
        loop {
            if self.rest.is_empty() {
                return Some(None);
            }
            let (whole, rest) = line(self.rest);
            self.rest = rest;
            let text = whole.strip_suffix(b"\n").unwrap_or(whole);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if text.is_empty() {
                break;
            }
            if text.starts_with(b" ") || text.starts_with(b"\t") {
                let (_, value) = fields.last_mut()?;
                value.push(b' ');
                value.extend(text.trim_ascii());
                continue;
            }
            let colon = text.iter().position(|byte| *byte == b':')?;
            let (name, value) = text.split_at(colon);
            let name = std::str::from_utf8(name).ok()?;
            if name.is_empty() || !token(name).1.is_empty() {
                return None;
            }
            let value = value.strip_prefix(b":").unwrap_or(value);
            if value.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
                return None;
            }
            fields.push((name.to_lowercase(), value.trim_ascii().to_vec()));
        }
        let found = fields.into_iter().find(|(name, _)| name == "content-disposition");
        let value = found.map(|(_, value)| value).unwrap_or_default();
        Some(Some(String::from_utf8_lossy(&value).into_owned()))
    }

    /// The content up to the next boundary, which must exist.
    fn body(&mut self) -> Option<&'a [u8]> {
        let text = self.rest;
        if text.strip_prefix(self.mark.as_slice()).is_some_and(ends) {
            return Some(&[]);
        }
        let boundary = [self.newline, self.mark.as_slice()].concat();
        let mut from = 0;
        loop {
            let at = from + find(text.get(from..)?, &boundary)?;
            let (value, rest) = text.split_at_checked(at)?;
            from = at + boundary.len();
            if ends(text.get(from..)?) {
                self.rest = rest;
                return Some(value);
            }
        }
    }
}

/// Whether the boundary ends here rather than being a prefix of a longer word.
fn ends(rest: &[u8]) -> bool {
    matches!(rest, [] | [b' ' | b'\t' | b'\r' | b'\n', ..] | [b'-', b'-', ..])
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The first line including its line ending, and the rest.
fn line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1);
    text.split_at(end)
}

fn without_blanks(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(body: &str) -> Option<String> {
        let values = read(body.as_bytes(), "b")?;
        let shown: Vec<String> = values.iter().map(|(k, v)| format!("{k}={v}")).collect();
        Some(shown.join("&"))
    }

    #[test]
    fn values_are_read_and_files_are_left_out() {
        let part = |field: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; {field}\r\n\r\n{value}\r\n")
        };
        let two = format!("{}{}--b--\r\n", part("name=\"a\"", "1"), part("name=c", "x\r\n--by"));
        assert_eq!(values(&two).unwrap(), "a=1&c=x\r\n--by");
        assert_eq!(values(&format!("preamble\r\n{two}rest")).unwrap(), "a=1&c=x\r\n--by");
        assert_eq!(values(&two.replace("\r\n", "\n")).unwrap(), "a=1&c=x\n--by");
        let file = format!("{}--b--", part("name=a; filename=f", "1"));
        assert_eq!(values(&file).unwrap(), "");
        assert_eq!(values(&format!("{}--b--", part("x=a", "1"))).unwrap(), "");
        assert_eq!(values("--b\r\nX: y\r\n folded\r\n\r\n--b--").unwrap(), "");
        assert_eq!(values("--b--").unwrap(), "");
    }

    #[test]
    fn broken_forms_have_no_values() {
        let whole = "--b\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--b--\r\n";
        assert_eq!(values(whole).unwrap(), "a=1");
        for broken in [
            "",
            "x",
            "--c\r\n\r\n--c--",
            "--b\r\n name: x\r\n\r\n--b--",
            "--b\r\nno colon\r\n\r\n--b--",
            &whole.replace("\r\n--b--\r\n", ""),
            &whole.replace("--b--\r\n", "--b-x"),
        ] {
            assert_eq!(values(broken), None, "{broken:?}");
        }
        assert_eq!(read(whole.as_bytes(), ""), None);
        assert_eq!(values(&"--b\r\n\r\n\r\n".repeat(MAX_PARTS + 1)), None);
    }
}
