//! The metrics pages.

use crate::exposition::{self, Format};
use crate::reply::{self, Reply};
use crate::route::MetricsPage;
use crate::serve::{ServerDeps, Service};
use axum::body::Body;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue,
};
use http::{HeaderMap, Method, StatusCode};
use ports::StatsScope;
use std::io::Write as _;
use telemetry::Chain;
use telemetry::metrics::{Desc, Kind, SampleValue};

const LOG_BYTES: Desc = Desc::alpha(
    "kubelet_container_log_filesystem_used_bytes",
    "Bytes used by the container's logs on the filesystem.",
)
.labels(LOG_LABELS);
const LOG_LABELS: &[&str] = &["uid", "namespace", "pod", "container"];
const START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// The page's families as text, packed if the client takes it so.
pub(crate) async fn answer(
    service: &Service,
    page: MetricsPage,
    method: &Method,
    headers: &HeaderMap,
) -> Reply {
    let (deps, health) = (&service.deps, &service.counts.health);
    if page == MetricsPage::Slis && method == Method::DELETE {
        health.reset();
        return reply::plain(StatusCode::OK, "metrics reset\n".to_owned());
    }
    let text = match page {
        MetricsPage::Main => main_page(deps).await,
        MetricsPage::Probes => deps.probe_metrics.render(),
        MetricsPage::Slis => health.render(),
        MetricsPage::Cadvisor => deps.stats.container_metrics().await,
        MetricsPage::Resource => deps.stats.resource_metrics().await,
    };
    let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (kind, format) = exposition::negotiate(accept);
    let page = match format {
        Format::Text => text.into_bytes(),
        Format::Delimited => exposition::delimited(&text),
    };
    let packed = takes_gzip(headers).then(|| gzip(&page)).flatten();
    let is_packed = packed.is_some();
    let body = packed.map_or_else(|| Body::from(page), Body::from);
    let mut reply = reply::bare(StatusCode::OK, body);
    if let Ok(kind) = HeaderValue::from_str(&kind) {
        reply.headers_mut().insert(CONTENT_TYPE, kind);
    }
    if is_packed {
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(started) = HeaderValue::from_str(&deps.started.to_string()) {
        reply.headers_mut().insert(START, started);
    }
    reply
}

/// What the process counts, and the size of each running container's logs.
async fn main_page(deps: &ServerDeps) -> String {
    let summary = match deps.stats.summary(StatsScope::All).await {
        Ok(summary) => Some(summary),
        Err(error) => {
            tracing::error!(err = %Chain(&error), "Failed to get pod stats");
            None
        }
    };
    deps.metrics.render_with(|scrape| {
        for pod in summary.iter().flat_map(|summary| &summary.pods) {
            let reference = &pod.pod_ref;
            for container in &pod.containers {
                let Some(used) = container.logs.as_ref().and_then(|logs| logs.used_bytes) else {
                    continue;
                };
                let labels =
                    [&*reference.uid, &*reference.namespace, &*reference.name, &*container.name];
                #[expect(clippy::cast_precision_loss, reason = "a gauge")]
                let value = SampleValue::Number(used as f64);
                let family = scrape.family(&LOG_BYTES, Kind::Gauge);
                family.push_values(LOG_LABELS, &labels, value, None);
            }
        }
    })
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let offers = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    offers.flat_map(|v| v.split(',')).any(|offer| {
        let mut parts = offer.split(';').map(str::trim);
        let named = parts.next() == Some("gzip");
        named && !parts.any(|p| matches!(p, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn gzip(text: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_only_when_offered() {
        let asks = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            takes_gzip(&headers)
        };
        assert!(asks("gzip") && asks("deflate, gzip;q=0.5"));
        assert!(!asks("identity") && !asks("gzip;q=0") && !takes_gzip(&HeaderMap::new()));
    }
}
