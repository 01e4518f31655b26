//! The metrics pages.

use crate::reply::{self, Reply};
use crate::route::MetricsPage;
use crate::serve::ServerDeps;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;

const KIND: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The page's families as text.
pub(crate) fn answer(deps: &ServerDeps, page: MetricsPage, request: &Request<Incoming>) -> Reply {
    if page == MetricsPage::Slis && request.method() == Method::DELETE {
        return reply::plain(StatusCode::OK, "metrics reset\n".to_owned());
    }
    let text = match page {
        MetricsPage::Main => deps.metrics.render(),
        MetricsPage::Probes => deps.probe_metrics.render(),
        MetricsPage::Cadvisor | MetricsPage::Resource | MetricsPage::Slis => String::new(),
    };
    reply::with_type(StatusCode::OK, KIND, text)
}
