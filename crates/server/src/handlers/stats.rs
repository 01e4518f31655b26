//! `/stats/summary`.

use crate::body::{self, Unread};
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use crate::target;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use ports::StatsScope;
use serde::Serialize;

/// Go: `maxFormSize`.
const MAX_FORM: usize = 10 << 20;

/// Usage of the node and its pods.
pub(crate) async fn summary(deps: &ServerDeps, request: Request<Incoming>) -> Reply {
    let failed = |error: String| {
        tracing::error!(err = error, "HTTP InternalServerError serving /stats/summary");
        reply::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
    };
    let unreadable = |error: String| failed(format!("parse form failed: {error}"));
    let query = target::query(&request).to_owned();
    let mut wanted = Vec::new();
    if request.method() == Method::POST && is_form(&request) {
        let body = match body::read(request.into_body(), MAX_FORM).await {
            Ok(body) => String::from_utf8_lossy(&body).into_owned(),
            Err(Unread::TooLarge) => return unreadable("http: POST too large".to_owned()),
            Err(Unread::Broken(why)) => return unreadable(why.to_owned()),
        };
        match Query::strict(&body) {
            Ok(form) => wanted.extend(form.all("only_cpu_and_memory").map(str::to_owned)),
            Err(error) => return unreadable(error),
        }
    }
    match Query::strict(&query) {
        Ok(query) => wanted.extend(query.all("only_cpu_and_memory").map(str::to_owned)),
        Err(error) => return unreadable(error),
    }
    let scope = if wanted == ["true"] { StatsScope::CpuAndMemory } else { StatsScope::All };
    match deps.stats.summary(scope).await {
        Ok(summary) => indented(&*summary),
        Err(error) => failed(error.to_string()),
    }
}

fn is_form(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"))
}

/// JSON indented by one space.
fn indented(value: &impl Serialize) -> Reply {
    let mut body = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut writer = serde_json::Serializer::with_formatter(&mut body, format);
    match value.serialize(&mut writer) {
        Ok(()) => reply::with_type(StatusCode::OK, "application/json", body),
        Err(error) => reply::plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
