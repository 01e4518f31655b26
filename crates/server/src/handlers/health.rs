//! `/healthz` and its named checks.

use crate::reply::{self, Reply};
use crate::serve::{ServerDeps, Service};
use http::StatusCode;
use std::fmt::Write as _;

/// All checks, or the named one.
pub(crate) fn answer(service: &Service, name: Option<&str>, query: Option<&str>) -> Reply {
    match name {
        Some("ping") => reply::health(StatusCode::OK, "ok".to_owned()),
        Some(name) => one(&service.deps, name),
        None => all(service, query.unwrap_or_default()),
    }
}

fn one(deps: &ServerDeps, name: &str) -> Reply {
    let check = deps.checks.iter().find(|(known, _)| *known == name);
    match check.map_or(Ok(()), |(_, check)| check()) {
        Ok(()) => reply::health(StatusCode::OK, "ok".to_owned()),
        Err(error) => reply::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("internal server error: {error}"),
        ),
    }
}

fn all(service: &Service, query: &str) -> Reply {
    let deps = &service.deps;
    let pairs: Vec<(&str, &str)> =
        query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let verbose = pairs.iter().any(|(key, _)| *key == "verbose");
    let mut excluded: Vec<&str> =
        pairs.iter().filter(|(key, _)| *key == "exclude").map(|(_, value)| *value).collect();
    let mut text = String::new();
    let mut failed = false;
    let ping: crate::serve::HealthCheck = std::sync::Arc::new(|| Ok(()));
    let checks = std::iter::once(("ping", &ping)).chain(deps.checks.iter().map(|(n, c)| (*n, c)));
    for (name, check) in checks {
        // Writing to a string cannot fail.
        let _ = if excluded.contains(&name) {
            excluded.retain(|other| *other != name);
            writeln!(text, "[+]{name} excluded: ok")
        } else if let Err(error) = check() {
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
        let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
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
    let body = if verbose { format!("{text}healthz check passed\n") } else { "ok".to_owned() };
    reply::health(StatusCode::OK, body)
}
