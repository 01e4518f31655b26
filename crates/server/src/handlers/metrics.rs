//! The metrics pages.

use crate::exposition::{self, Format};
use crate::reply::{self, Reply};
use crate::route::MetricsPage;
use crate::serve::{ServerDeps, Service};
use axum::body::{Body, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue,
};
use http::{HeaderMap, Method, StatusCode};
use ports::{Pieces, StatsScope};
use std::convert::Infallible;
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
    let whole = |text: String| -> Pieces { Box::new(std::iter::once(text)) };
    let text = match page {
        MetricsPage::Main => whole(main_page(deps).await),
        MetricsPage::Probes => whole(deps.probe_metrics.render()),
        MetricsPage::Slis => whole(health.render()),
        MetricsPage::Cadvisor => deps.stats.container_metrics().await,
        MetricsPage::Resource => whole(deps.stats.resource_metrics().await),
    };
    let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (kind, format) = exposition::negotiate(accept);
    let mut pieces: Box<dyn Iterator<Item = Bytes> + Send> = match format {
        Format::Text => Box::new(text.map(Bytes::from)),
        Format::Delimited => {
            Box::new(std::iter::once(exposition::delimited(&text.collect::<String>()).into()))
        }
    };
    let is_packed = takes_gzip(headers);
    if is_packed {
        pieces = Box::new(Packed::new(pieces));
    }
    let mut reply = reply::bare(StatusCode::OK, body(pieces, page));
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

/// The body of an answer. The one page that has megabytes is made while it is sent, as fast as the client takes it.
fn body(pieces: Box<dyn Iterator<Item = Bytes> + Send>, page: MetricsPage) -> Body {
    if page == MetricsPage::Cadvisor {
        return Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)));
    }
    let whole: Vec<Bytes> = pieces.collect();
    match whole.as_slice() {
        [one] => Body::from(one.clone()),
        several => Body::from(several.concat()),
    }
}

/// Packs pieces with gzip.
struct Packed<I> {
    pieces: I,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I: Iterator<Item = Bytes>> Packed<I> {
    fn new(pieces: I) -> Self {
        Self { pieces, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for Packed<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let encoder = self.encoder.as_mut()?;
        for piece in self.pieces.by_ref() {
            // A vector takes everything.
            encoder.write_all(&piece).ok()?;
            if !encoder.get_ref().is_empty() {
                return Some(std::mem::take(encoder.get_mut()).into());
            }
        }
        self.encoder.take()?.finish().ok().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn packed_pieces_are_one_packed_text() {
        let pieces = ["a", "b"].map(|letter| letter.repeat(100_000));
        let whole = pieces.concat();
        let packed: Vec<Bytes> = Packed::new(pieces.into_iter().map(Bytes::from)).collect();
        let packed = packed.concat();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&*packed).read_to_string(&mut text).unwrap();
        assert!(text == whole && packed.len() < whole.len() / 10);
    }

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
