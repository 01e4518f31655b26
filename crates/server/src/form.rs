//! Forms: what a client asks for in its query and, by some methods, in its body (Go:
//! `Request.ParseForm`).
//!
//! Deliberately absent: forms of several parts, which nobody sends here.

use crate::body::{self, Unread};
use crate::query::Query;
use crate::target;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use hyper::body::Incoming;
use std::collections::BTreeMap;

/// Go: `maxFormSize`.
const MAX_FORM: usize = 10 << 20;
const FORM: &str = "application/x-www-form-urlencoded";

/// The values of a request.
#[derive(Debug, Default)]
pub(crate) struct Form {
    body: Query,
    query: Query,
    fault: Option<String>,
}

impl Form {
    /// Reads the body, if it can be a form, and the query. What can be read counts, even if the rest
    /// cannot.
    pub(crate) async fn read(request: Request<Incoming>) -> Form {
        let text = target::query(&request).to_owned();
        let mut form = Form { query: Query::parse(&text), ..Form::default() };
        if [Method::POST, Method::PUT, Method::PATCH].contains(request.method()) {
            let kind = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
            let kind = String::from_utf8_lossy(kind.unwrap_or_default()).into_owned();
            let (kind, fault) = match kind.as_str() {
                "" => (String::new(), None),
                kind => media_type(kind),
            };
            form.fault = fault.map(str::to_owned);
            if kind == FORM {
                let read = body::read(request.into_body(), MAX_FORM).await;
                let fault = form.take(read);
                form.fault = form.fault.or(fault);
            }
        }
        form.fault = form.fault.or_else(|| Query::strict(&text).err());
        form
    }

    fn take(&mut self, read: Result<Vec<u8>, Unread>) -> Option<String> {
        match read {
            Ok(body) => {
                let body = String::from_utf8_lossy(&body).into_owned();
                self.body = Query::parse(&body);
                Query::strict(&body).err()
            }
            Err(Unread::TooLarge) => Some("http: POST too large".to_owned()),
            Err(Unread::Broken(why)) => Some(why.to_owned()),
        }
    }

    /// What could not be read.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The first value of a key: those of the body come before those of the query.
    pub(crate) fn first(&self, key: &str) -> Option<&str> {
        self.body.first(key).or_else(|| self.query.first(key))
    }

    /// Every value of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.body.all(key).chain(self.query.all(key))
    }
}

/// The media type in lower case, and what is wrong with it or its parameters (Go:
/// `mime.ParseMediaType`).
pub(crate) fn media_type(text: &str) -> (String, Option<&'static str>) {
    let (base, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let kind = base.to_lowercase().trim().to_owned();
    if let Some(fault) = kind_fault(&kind) {
        return (String::new(), Some(fault));
    }
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return (kind, None);
        }
        let Some((name, value, behind)) = parameter(rest) else {
            let fault = (rest.trim() != ";").then_some("mime: invalid media parameter");
            return (kind, fault);
        };
        if known.get(&name).is_some_and(|before| *before != value) {
            return (String::new(), Some("mime: duplicate parameter name"));
        }
        known.insert(name, value);
        rest = behind;
    }
}

fn kind_fault(kind: &str) -> Option<&'static str> {
    let (first, rest) = token(kind);
    if first.is_empty() {
        return Some("mime: no media type");
    }
    if rest.is_empty() {
        return None;
    }
    let Some(rest) = rest.strip_prefix('/') else {
        return Some("mime: expected slash after first token");
    };
    match token(rest) {
        ("", _) => Some("mime: expected token after slash"),
        (_, "") => None,
        _ => Some("mime: unexpected content after media subtype"),
    }
}

/// The parameter in front, in lower case, its value, and what is behind.
fn parameter(text: &str) -> Option<(String, String, &str)> {
    let (name, rest) = token(text.strip_prefix(';')?.trim_start());
    let rest = rest.trim_start().strip_prefix('=').filter(|_| !name.is_empty())?.trim_start();
    let (value, behind) = match rest.strip_prefix('"') {
        Some(quoted) => unquoted(quoted)?,
        None => {
            let (value, behind) = token(rest);
            (value.to_owned(), behind)
        }
    };
    (behind.len() < rest.len()).then(|| (name.to_lowercase(), value, behind))
}

/// A quoted text up to its end. Only marks are escaped.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next_if(|(_, next)| "()<>@,;:\\\"/[]?=".contains(*next)) {
                Some((_, next)) => value.push(next),
                None => value.push('\\'),
            },
            '\r' | '\n' => return None,
            other => value.push(other),
        }
    }
    None
}

fn token(text: &str) -> (&str, &str) {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let end = text.bytes().position(|byte| !inside(byte)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_are_read_as_go_reads_them() {
        for (text, kind, fault) in [
            ("application/x-www-form-urlencoded", FORM, None),
            ("APPLICATION/X-WWW-FORM-URLENCODED ; charset=utf-8", FORM, None),
            ("application/x-www-form-urlencoded;", FORM, None),
            ("application/x-www-form-urlencoded; x", FORM, Some("mime: invalid media parameter")),
            ("x", "x", None),
            ("", "", Some("mime: no media type")),
            ("a b", "", Some("mime: expected slash after first token")),
            ("a/", "", Some("mime: expected token after slash")),
            ("a/b c", "", Some("mime: unexpected content after media subtype")),
            ("a/b; c=\"", "a/b", Some("mime: invalid media parameter")),
            ("a/b; c=\"d\\\"\"; c=\"d\\\"\"", "a/b", None),
            ("a/b; c=d; C=e", "", Some("mime: duplicate parameter name")),
        ] {
            assert_eq!(media_type(text), (kind.to_owned(), fault), "{text}");
        }
    }
}
