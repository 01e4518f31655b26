//! `/flagz` and `/statusz`: the flags and the state of this process, as text and, for an exact
//! `Accept` header, as structured documents (apiserver: `NegotiateOutputMediaType`).

use crate::accept::{self, Clause};
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::route::Switches;
use crate::serve::ServerDeps;
use crate::target;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::fmt::Write as _;
use units::strconv::{parse_bool, quote};

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";
const TEXT: &str = "text/plain; charset=utf-8";
const REFUSED: &str =
    "only the following media types are accepted: application/json, application/yaml, text/plain";

/// A structured media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    Yaml,
    Text,
}

/// The requested format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Structured(Media, &'static str),
    None,
}

/// Every flag with its value.
pub(crate) fn flagz(deps: &ServerDeps, request: &Request<Incoming>) -> Reply {
    let text = || {
        let mut text = format!("\nkubelet flagz\n{WARNING}\n");
        for (flag, value) in &deps.flags {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{flag}={value}");
        }
        text
    };
    answer(request, "Flagz", text, || vec![("flags", json!(deps.flags))])
}

/// Start, version and paths.
pub(crate) fn statusz(deps: &ServerDeps, switches: Switches, request: &Request<Incoming>) -> Reply {
    let up = deps.clock.now().as_second().saturating_sub(deps.started).max(0);
    let started = jiff::Timestamp::from_second(deps.started).unwrap_or_default();
    let (binary, emulated) = versions(&deps.version);
    let paths = paths(switches);
    let text = || {
        let when = started.strftime("%a %b %e %H:%M:%S UTC %Y");
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        format!(
            "\nkubelet statusz\n{WARNING}\n\nStarted= {when}\nUp= {hours} hr {minutes:02} min {seconds:02} sec\nGo version= none\nBinary version= {binary}\nEmulation version= {emulated}\nPaths= {}\n",
            paths.join(" ")
        )
    };
    let fields = || {
        vec![
            ("startTime", json!(started.to_string())),
            ("uptimeSeconds", json!(up)),
            ("goVersion", json!("none")),
            ("binaryVersion", json!(binary)),
            ("emulationVersion", json!(emulated)),
            ("paths", json!(paths)),
        ]
    };
    answer(request, "Statusz", text, fields)
}

/// The version as written here, and the release it belongs to.
fn versions(version: &str) -> (&str, String) {
    let binary = version.trim_start_matches('v');
    let release: Vec<&str> = binary.splitn(3, '.').take(2).collect();
    (binary, release.join("."))
}

/// Paths handled outside of upstream's router; a disabled page is one of them.
fn paths(switches: Switches) -> Vec<&'static str> {
    let all = [
        ("/configz", true),
        ("/debug", true),
        ("/flagz", switches.flagz),
        ("/healthz", true),
        ("/logs", !switches.system_logs),
        ("/metrics", true),
    ];
    all.into_iter().filter(|(_, listed)| *listed).map(|(path, _)| path).collect()
}

fn answer(
    request: &Request<Incoming>,
    kind: &'static str,
    text: impl FnOnce() -> String,
    fields: impl FnOnce() -> Vec<(&'static str, Value)>,
) -> Reply {
    let accept = request.headers().get(ACCEPT).map(|v| v.as_bytes()).unwrap_or_default();
    let accept = String::from_utf8_lossy(accept);
    let clauses = accept::parse(&accept);
    let pretty = is_pretty(request);
    match form(&accept, &clauses, kind) {
        Form::Text => reply::with_type(StatusCode::OK, TEXT, text()),
        Form::Structured(media, version) => {
            let mut document = vec![
                ("kind", json!(kind)),
                ("apiVersion", json!(format!("config.k8s.io/{version}"))),
                ("metadata", json!({"name": "kubelet"})),
            ];
            document.extend(fields());
            let suffix = format!(";g=config.k8s.io;v={version};as={kind}");
            let mut reply = written(media, pretty, StatusCode::OK, &document, &suffix);
            if version == "v1alpha1" {
                let page = kind.to_ascii_lowercase();
                let warning = format!(
                    "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
                );
                if let Ok(warning) = HeaderValue::from_str(&warning) {
                    reply.headers_mut().insert(HeaderName::from_static("warning"), warning);
                }
            }
            reply
        }
        Form::None => refused(&clauses, pretty),
    }
}

/// The error response is negotiated too, but without any transformation; without a match it is
/// JSON.
fn refused(clauses: &[Clause], pretty: bool) -> Reply {
    let document = [
        ("kind", json!("Status")),
        ("apiVersion", json!("v1")),
        ("metadata", json!({})),
        ("status", json!("Failure")),
        ("message", json!(REFUSED)),
        ("reason", json!("NotAcceptable")),
        ("code", json!(406)),
    ];
    let found = clauses.iter().find_map(|clause| {
        let plain = ["as", "g", "v"].iter().all(|name| !clause.params.contains_key(*name));
        let plain = plain && clause.param("sv").is_empty();
        offered(clause).into_iter().find(|media| plain && *media != Media::Text)
    });
    match found {
        Some(media) => written(media, pretty, StatusCode::NOT_ACCEPTABLE, &document, ""),
        None => {
            let body = pretty_json(&document);
            reply::with_type(StatusCode::NOT_ACCEPTABLE, "application/json", body)
        }
    }
}

fn offered(clause: &Clause) -> Vec<Media> {
    let all = [
        (Media::Json, "application", "json"),
        (Media::Yaml, "application", "yaml"),
        (Media::Text, "text", "plain"),
    ];
    let fits = |kind: &str, sub: &str| {
        (clause.kind == kind && (clause.sub == sub || clause.sub == "*"))
            || (clause.kind == "*" && clause.sub == "*")
    };
    all.into_iter().filter(|(_, kind, sub)| fits(kind, sub)).map(|(media, _, _)| media).collect()
}

fn form(accept: &str, clauses: &[Clause], kind: &str) -> Form {
    if accept.trim().is_empty() {
        return Form::Text;
    }
    for clause in clauses {
        let converts = ["as", "g", "v"].iter().any(|name| clause.params.contains_key(*name));
        if !clause.param("stream").is_empty() || !clause.param("sv").is_empty() {
            continue;
        }
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| {
            clause.param("v") == *v
                && clause.param("g") == "config.k8s.io"
                && clause.param("as") == kind
        });
        for media in offered(clause) {
            match (media, version) {
                (Media::Text, _) if !converts => return Form::Text,
                (Media::Json | Media::Yaml, Some(version)) => {
                    return Form::Structured(media, version);
                }
                _ => {}
            }
        }
    }
    Form::None
}

/// Apiserver: `isPrettyPrint`.
fn is_pretty(request: &Request<Incoming>) -> bool {
    let query = Query::parse(&target::query(request));
    if let Some(pretty) = query.first("pretty").filter(|value| !value.is_empty()) {
        return parse_bool(pretty).unwrap_or(false);
    }
    let agent = request.headers().get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|human| agent.starts_with(human))
}

type Document = [(&'static str, Value)];

fn written(
    media: Media,
    pretty: bool,
    status: StatusCode,
    document: &Document,
    suffix: &str,
) -> Reply {
    let (kind, body) = match media {
        Media::Yaml => ("application/yaml", yaml(document)),
        _ if pretty => ("application/json", pretty_json(document)),
        _ => ("application/json", format!("{}\n", compact_json(document))),
    };
    let mut reply = reply::bare(status, body);
    if let Ok(kind) = HeaderValue::from_str(&format!("{kind}{suffix}")) {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    reply
}

fn compact_json(document: &Document) -> String {
    let fields: Vec<String> =
        document.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
    format!("{{{}}}", fields.join(","))
}

fn pretty_json(document: &Document) -> String {
    let fields: Vec<String> = document
        .iter()
        .map(|(name, value)| {
            let value = serde_json::to_string_pretty(value).unwrap_or_default();
            format!("  {}: {}", json!(name), value.replace('\n', "\n  "))
        })
        .collect();
    format!("{{\n{}\n}}", fields.join(",\n"))
}

/// The document in the order of Go's YAML: fields by name.
fn yaml(document: &Document) -> String {
    let mut fields: Vec<&(&str, Value)> = document.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    let mut text = String::new();
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Object(map) if map.is_empty() => writeln!(text, "{name}: {{}}"),
            Value::Object(map) => {
                let _ = writeln!(text, "{name}:");
                map.iter().try_for_each(|(key, value)| {
                    writeln!(text, "  {key}: {}", scalar(value, key.len() + 4))
                })
            }
            Value::Array(list) => {
                let _ = writeln!(text, "{name}:");
                list.iter().try_for_each(|value| writeln!(text, "- {}", scalar(value, 2)))
            }
            other => writeln!(text, "{name}: {}", scalar(other, name.len() + 2)),
        };
    }
    text
}

/// A scalar; strings that YAML would read as another type are quoted, long ones folded.
fn scalar(value: &Value, column: usize) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let number = text.parse::<f64>().is_ok();
    let word =
        matches!(text.as_str(), "" | "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "~");
    if number || word || text.contains(['\n', '\t']) {
        return quote(text);
    }
    let special = text.contains(": ")
        || text.contains(" #")
        || text.ends_with(':')
        || text.starts_with([
            '[', '{', '\'', '"', '*', '&', '!', '%', '@', '`', '-', '?', '|', '>', '#', ',',
        ]);
    let shown = if special { format!("'{}'", text.replace('\'', "''")) } else { text.clone() };
    fold(&shown, column)
}

/// Lines break at the first space after column 80.
fn fold(text: &str, mut column: usize) -> String {
    let mut out = String::new();
    for (index, word) in text.split(' ').enumerate() {
        if index > 0 {
            if column > 80 {
                out.push_str("\n  ");
                column = 2;
            } else {
                out.push(' ');
                column += 1;
            }
        }
        out.push_str(word);
        column += word.chars().count();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_is_given_only_by_its_full_name() {
        let ask = |accept: &str| form(accept, &accept::parse(accept), "Flagz");
        assert_eq!(ask(""), Form::Text);
        assert_eq!(ask("*/*"), Form::Text);
        assert_eq!(ask("application/json"), Form::None);
        let full = |media: &str, version: &str| {
            ask(&format!("{media};as=Flagz;g=config.k8s.io;v={version}"))
        };
        assert_eq!(full("application/json", "v1beta1"), Form::Structured(Media::Json, "v1beta1"));
        assert_eq!(full("application/yaml", "v1alpha1"), Form::Structured(Media::Yaml, "v1alpha1"));
        assert_eq!(full("text/plain", "v1beta1"), Form::None);
        assert_eq!(full("application/json", "v2"), Form::None);
        assert_eq!(ask("application/json;as=Statusz;g=config.k8s.io;v=v1beta1"), Form::None);
    }

    #[test]
    fn a_version_may_have_more_than_numbers() {
        assert_eq!(versions("v1.36.4"), ("1.36.4", "1.36".to_owned()));
        assert_eq!(versions("v1.36.4-a.1+b.2"), ("1.36.4-a.1+b.2", "1.36".to_owned()));
    }

    #[test]
    fn the_paths_follow_the_switches() {
        let usual = crate::tests::ALL;
        assert_eq!(paths(usual), ["/configz", "/debug", "/flagz", "/healthz", "/metrics"]);
        let other = Switches { flagz: false, system_logs: false, ..usual };
        assert_eq!(paths(other), ["/configz", "/debug", "/healthz", "/logs", "/metrics"]);
    }

    #[test]
    fn a_refusal_in_yaml_folds_its_message() {
        let text = yaml(&[("message", json!(REFUSED)), ("code", json!(406))]);
        let want = "code: 406\nmessage: 'only the following media types are accepted: application/json, application/yaml,\n  text/plain'\n";
        assert_eq!(text, want);
    }
}
