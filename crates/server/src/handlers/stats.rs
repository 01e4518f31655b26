//! `/stats/summary`.

use crate::form::Form;
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use ports::StatsScope;
use serde::Serialize;
use std::fmt::Write as _;

/// Resource usage of the node and its pods.
pub(crate) async fn summary(deps: &ServerDeps, request: Request<Incoming>) -> Reply {
    let failed = |error: String| {
        tracing::error!(err = error, "HTTP InternalServerError serving /stats/summary");
        reply::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
    };
    let form = Form::read(request).await;
    if let Some(error) = form.fault() {
        return failed(format!("parse form failed: {error}"));
    }
    let wanted: Vec<&str> = form.all("only_cpu_and_memory").collect();
    let scope = if wanted == ["true"] { StatsScope::CpuAndMemory } else { StatsScope::All };
    match deps.stats.summary(scope).await {
        Ok(summary) => indented(&*summary),
        Err(error) => failed(error.to_string()),
    }
}

/// JSON indented by one space, as Go's `json.MarshalIndent` writes it.
fn indented(value: &impl Serialize) -> Reply {
    let mut body = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut writer = serde_json::Serializer::with_formatter(&mut body, format);
    match value.serialize(&mut writer) {
        Ok(()) => reply::json(escaped(&String::from_utf8_lossy(&body))),
        Err(error) => reply::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Escapes the characters that Go escapes in strings; they occur nowhere else in JSON.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_go_does() {
        assert_eq!(
            escaped("{\n \"name\": \"a<b>&\u{2028}\"\n}"),
            concat!("{\n \"name\": ", r#""a\u003cb\u003e\u0026\u2028""#, "\n}")
        );
    }
}
