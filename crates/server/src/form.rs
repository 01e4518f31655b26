//! Form values of a request, from its query and, for some methods, its body (Go:
//! `Request.ParseForm`, `Request.FormValue`).

pub(crate) mod parts;

use crate::body::{self, Unread};
use crate::connections;
use crate::query::Query;
use crate::target;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use hyper::body::{Body as _, Incoming};
use std::collections::BTreeMap;

/// Go: `maxFormSize`. For multipart forms Go allows four times as much.
const MAX_FORM: usize = 10 << 20;
const FORM: &str = "application/x-www-form-urlencoded";
const PARTS: &str = "multipart/form-data";

/// The form values of a request.
#[derive(Debug, Default)]
pub(crate) struct Form {
    body: Query,
    query: Query,
    parts: Vec<(String, String)>,
    fault: Option<String>,
}

/// A request with its body separated.
pub(crate) struct Apart {
    /// Everything but the body.
    pub(crate) request: Request<()>,
    /// The body; `None` if it was read as a form.
    pub(crate) body: Option<Incoming>,
}

impl Apart {
    /// Separates the body of a request.
    pub(crate) fn of(request: Request<Incoming>) -> Apart {
        let (head, body) = request.into_parts();
        Apart { request: Request::from_parts(head, ()), body: Some(body) }
    }

    /// Reads the body that is passed on to the runtime.
    pub(crate) async fn unread(body: Option<Incoming>) -> Result<Vec<u8>, &'static str> {
        let Some(body) = body else { return Ok(Vec::new()) };
        body::read(body, MAX_FORM).await.map_err(|unread| match unread {
            Unread::TooLarge => "http: request body too large",
            Unread::Broken(why) => why,
        })
    }
}

impl Form {
    /// Reads the body, if it can be a form, and the query. Values that can be parsed count even if
    /// others cannot.
    pub(crate) async fn read(request: Request<Incoming>) -> Form {
        let Apart { request, body } = Apart::of(request);
        let mut form = Form::of(&request);
        if has_form(request.method())
            && kind(&request).0 == FORM
            && let Some(body) = body
        {
            weigh(&request, &body);
            form.take(body::read(body, MAX_FORM).await);
        }
        form.check(&request);
        form
    }

    /// The same, and also multipart forms, for any method.
    pub(crate) async fn of_parts(request: Request<Incoming>) -> (Form, Apart) {
        let Apart { request, mut body } = Apart::of(request);
        let (kind, mut params, fault) = kind(&request);
        let mut form = Form::of(&request);
        let is_form = has_form(request.method()) && kind == FORM;
        let boundary = params.remove("boundary").filter(|_| kind == PARTS && fault.is_none());
        if let Some(body) = body.take_if(|_| is_form) {
            weigh(&request, &body);
            form.take(body::read(body, MAX_FORM).await);
        } else if let Some(boundary) = boundary
            && let Some(body) = body.take()
        {
            weigh(&request, &body);
            let body = body::read(body, MAX_FORM).await.unwrap_or_default();
            form.parts = parts::read(&body, &boundary).unwrap_or_default();
        }
        (form, Apart { request, body })
    }

    fn of(request: &Request<()>) -> Form {
        Form { query: Query::parse(&target::query(request)), ..Form::default() }
    }

    /// Records an error in the media type or, if there is no other error, in the query.
    fn check(&mut self, request: &Request<()>) {
        let unread = self.fault.take();
        let media = kind(request).2.filter(|_| has_form(request.method()));
        let query = || Query::strict(&target::query(request)).err();
        self.fault = media.map(str::to_owned).or(unread).or_else(query);
    }

    fn take(&mut self, read: Result<Vec<u8>, Unread>) {
        self.fault = match read {
            Ok(body) => {
                let body = String::from_utf8_lossy(&body).into_owned();
                self.body = Query::parse(&body);
                Query::strict(&body).err()
            }
            Err(Unread::TooLarge) => Some("http: POST too large".to_owned()),
            Err(Unread::Broken(why)) => Some(why.to_owned()),
        };
    }

    /// The first error of parsing.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether the first value is `1`, as for the stream parameters. Values of the body come before
    /// those of the query; multipart values come last.
    pub(crate) fn one(&self, key: &str) -> bool {
        let part = || self.parts.iter().find(|(name, _)| name == key).map(|(_, value)| &**value);
        let first = self.body.first(key).or_else(|| self.query.first(key)).or_else(part);
        first == Some("1")
    }

    /// Every value of a key.
    pub(crate) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.body.all(key).chain(self.query.all(key))
    }
}

/// Counts the bytes of a body that is about to be read completely.
fn weigh(request: &Request<()>, body: &Incoming) {
    let most = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    if let Some(answering) = connections::Request::of(request) {
        answering.weighs(most.unwrap_or(MAX_FORM).min(MAX_FORM));
    }
}

/// Whether bodies of this method are parsed as forms.
fn has_form(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// The media type of a body, if it has one.
fn kind(request: &Request<()>) -> Media {
    let kind = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    match &*String::from_utf8_lossy(kind.unwrap_or_default()) {
        "" => Media::default(),
        kind => media(kind),
    }
}

/// A media type in lower case, its parameters, and the error in either.
type Media = (String, BTreeMap<String, String>, Option<&'static str>);

/// Parses a media type (Go: `mime.ParseMediaType`).
pub(crate) fn media(text: &str) -> Media {
    let (base, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let kind = base.to_lowercase().trim().to_owned();
    if let Some(fault) = kind_fault(&kind) {
        return (String::new(), BTreeMap::new(), Some(fault));
    }
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return (kind, known, None);
        }
        let Some((name, value, behind)) = parameter(rest) else {
            if rest.trim() == ";" {
                return (kind, known, None);
            }
            return (kind, BTreeMap::new(), Some("mime: invalid media parameter"));
        };
        if known.get(&name).is_some_and(|before| *before != value) {
            return (String::new(), BTreeMap::new(), Some("mime: duplicate parameter name"));
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

/// The first parameter, its name in lower case, its value, and the rest of the text.
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

/// A quoted string up to its closing quote. Only punctuation can be escaped.
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
            let (got, _, why) = media(text);
            assert_eq!((got.as_str(), why), (kind, fault), "{text}");
        }
        assert_eq!(media("a/b; C=\"d e\"").1["c"], "d e");
    }
}
