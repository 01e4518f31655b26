//! `/stats/summary`.

use crate::form::Form;
use crate::reply::{self, Reply};
use crate::serve::ServerDeps;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use ports::StatsScope;
use serde::Serialize;

/// Usage of the node and its pods.
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
