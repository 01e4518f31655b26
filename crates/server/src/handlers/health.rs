//! `/healthz` and its named checks.

use crate::query::Query;
use crate::reply::{self, Reply};
use crate::serve::{ServerDeps, Service};
use http::StatusCode;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use units::strconv::quote;

const ORDER: [&str; 4] = ["ping", "log", "syncloop", "device-plugin"];

/// All checks, or the named one.
pub(crate) fn answer(service: &Service, name: Option<&str>, query: Option<&str>) -> Reply {
    match name {
        Some(name) => one(&service.deps, name),
        None => all(service, query.unwrap_or_default()),
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
    let deps = &service.deps;
    let query = Query::parse(query);
    let mut excluded: BTreeSet<&str> = query.all("exclude").collect();
    let mut text = String::new();
    let mut failed = false;
    for name in ORDER {
        // Writing to a string cannot fail.
        let _ = if excluded.remove(name) {
            writeln!(text, "[+]{name} excluded: ok")
        } else if let Err(error) = run(deps, name) {
            tracing::info!(check = name, err = error, "healthz check failed");
            failed = true;
            service.counts.health.record(name, false);
            writeln!(text, "[-]{name} failed: reason withheld")
        } else {
            service.counts.health.record(name, true);
            writeln!(text, "[+]{name} ok")
        };
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| quote(name)).collect();
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
