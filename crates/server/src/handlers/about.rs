//! `/flagz` and `/statusz`: what was asked of this process and how it is, for people.

use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};
use std::fmt::Write as _;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";
const TEXT: &str = "text/plain; charset=utf-8";
const OLD_VERSION: &str = "299 - \"This endpoint's v1alpha1 version is deprecated\"";

/// In which form an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
    None,
}

/// Every flag with its value.
pub(crate) fn flagz(deps: &ServerDeps, headers: &HeaderMap) -> Reply {
    match form(headers, "Flagz") {
        Form::Text => {
            let mut text = format!("\nkubelet flagz\n{WARNING}\n");
            for (flag, value) in &deps.flags {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{flag}={value}");
            }
            reply::with_type(StatusCode::OK, TEXT, text)
        }
        Form::Json(version) => structured("Flagz", version, json!({"flags": deps.flags})),
        Form::None => not_acceptable(),
    }
}

/// Start, version and paths.
pub(crate) fn statusz(deps: &ServerDeps, headers: &HeaderMap) -> Reply {
    let up = deps.clock.now().as_second().saturating_sub(deps.started).max(0);
    let started = jiff::Timestamp::from_second(deps.started).unwrap_or_default();
    let binary = units::release::KUBERNETES_VERSION.trim_start_matches('v');
    let emulated = binary.rsplit_once('.').map_or(binary, |(minor, _)| minor);
    let paths = ["/configz", "/debug", "/flagz", "/healthz", "/metrics"];
    match form(headers, "Statusz") {
        Form::Text => {
            let when = started.strftime("%a %b %d %H:%M:%S UTC %Y");
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let text = format!(
                "\nkubelet statusz\n{WARNING}\n\nStarted= {when}\nUp= {hours} hr {minutes:02} min {seconds:02} sec\nGo version= none\nBinary version= {binary}\nEmulation version= {emulated}\nPaths= {}\n",
                paths.join(" ")
            );
            reply::with_type(StatusCode::OK, TEXT, text)
        }
        Form::Json(version) => structured(
            "Statusz",
            version,
            json!({
                "startTime": started.to_string(),
                "uptimeSeconds": up,
                "goVersion": "none",
                "binaryVersion": binary,
                "emulationVersion": emulated,
                "paths": paths,
            }),
        ),
        Form::None => not_acceptable(),
    }
}

fn structured(kind: &str, version: &str, fields: Value) -> Reply {
    let mut document = json!({
        "kind": kind,
        "apiVersion": format!("config.k8s.io/{version}"),
        "metadata": {"name": "kubelet"},
    });
    if let (Some(document), Value::Object(fields)) = (document.as_object_mut(), fields) {
        document.extend(fields);
    }
    let mut reply = reply::json(&document);
    if version == "v1alpha1" {
        let name = HeaderName::from_static("warning");
        reply.headers_mut().insert(name, HeaderValue::from_static(OLD_VERSION));
    }
    reply
}

fn not_acceptable() -> Reply {
    let text = "only the following media types are accepted: application/json;as=…;g=config.k8s.io;v=v1beta1, text/plain";
    reply::error(StatusCode::NOT_ACCEPTABLE, text)
}

fn form(headers: &HeaderMap, kind: &str) -> Form {
    let Some(accept) = headers.get(ACCEPT).and_then(|v| v.to_str().ok()) else {
        return Form::Text;
    };
    if accept.trim().is_empty() {
        return Form::Text;
    }
    for offer in accept.split(',') {
        let mut parts = offer.split(';').map(str::trim);
        match parts.next().unwrap_or_default() {
            "text/plain" | "text/*" | "*/*" => return Form::Text,
            "application/json" => {
                let parts: Vec<&str> = parts.collect();
                let has = |part: &str| parts.contains(&part);
                let right = has(&format!("as={kind}")) && has("g=config.k8s.io");
                if right && has("v=v1beta1") {
                    return Form::Json("v1beta1");
                }
                if right && has("v=v1alpha1") {
                    return Form::Json("v1alpha1");
                }
            }
            _ => {}
        }
    }
    Form::None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_given_only_by_its_full_name() {
        let ask = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            form(&headers, "Flagz")
        };
        assert_eq!(form(&HeaderMap::new(), "Flagz"), Form::Text);
        assert_eq!(ask("*/*"), Form::Text);
        assert_eq!(ask("application/json"), Form::None);
        assert_eq!(
            ask("application/json;as=Flagz;g=config.k8s.io;v=v1beta1"),
            Form::Json("v1beta1")
        );
        assert_eq!(ask("application/json;as=Statusz;g=config.k8s.io;v=v1beta1"), Form::None);
    }
}
