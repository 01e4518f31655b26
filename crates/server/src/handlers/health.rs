//! `/healthz` and its named checks.

use crate::health_metrics::HealthMetrics;
use crate::query::Query;
use crate::reply::{self, Reply};
use crate::serve::{ServerDeps, Service};
use http::StatusCode;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use units::strconv::quote_bytes;

const ORDER: [&str; 4] = ["ping", "log", "syncloop", "device-plugin"];

/// All checks, or the named one.
pub(crate) fn answer(service: &Service, name: Option<&str>, query: &str) -> Reply {
    match name {
        Some(name) => one(&service.deps, name),
        None => all(service, query),
    }
}

fn run(deps: &ServerDeps, name: &str) -> Result<(), String> {
    let check = deps.checks.iter().find(|(known, _)| *known == name);
    check.map_or(Ok(()), |(_, check)| check())
}

fn one(deps: &ServerDeps, name: &str) -> Reply {
    match run(deps, name) {
        Ok(()) => reply::plain(StatusCode::OK, "ok".to_owned()),
        Err(error) => reply::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("internal server error: {error}"),
        ),
    }
}

fn all(service: &Service, query: &str) -> Reply {
    let results = ORDER.map(|name| (name, move || run(&service.deps, name)));
    let checks = results.each_ref().map(|(name, result)| Check { name, result });
    respond(&checks, query, &service.counts.health)
}

/// One check of a list.
pub(crate) struct Check<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Runs the check; not called if the check is excluded.
    pub(crate) result: &'a dyn Fn() -> Result<(), String>,
}

/// Runs the checks and reports the results (apiserver: `healthz.handleRootHealth`).
pub(crate) fn respond(checks: &[Check<'_>], query: &str, metrics: &HealthMetrics) -> Reply {
    let query = Query::parse(query);
    let mut excluded: BTreeSet<&[u8]> = query.all_bytes("exclude").collect();
    let mut text = String::new();
    let mut failed = false;
    for Check { name, result } in checks {
        // Writing to a string cannot fail.
        let _ = if excluded.remove(name.as_bytes()) {
            writeln!(text, "[+]{name} excluded: ok")
        } else if let Err(error) = result() {
            tracing::info!(check = name, err = error, "healthz check failed");
            failed = true;
            metrics.record(name, false);
            writeln!(text, "[-]{name} failed: reason withheld")
        } else {
            metrics.record(name, true);
            writeln!(text, "[+]{name} ok")
        };
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| quote_bytes(name)).collect();
        let _ = writeln!(
            text,
            "warn: some health checks cannot be excluded: no matches for {}",
            names.join(",")
        );
    }
    if failed {
        let body = format!("{text}healthz check failed");
        return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &body);
    }
    let verbose = query.has("verbose");
    let body = if verbose { format!("{text}healthz check passed\n") } else { "ok".to_owned() };
    reply::no_sniff(reply::plain(StatusCode::OK, body))
}
