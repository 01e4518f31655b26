//! The metrics endpoints.

use super::volume_metrics;
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

/// The families of the endpoint, compressed if the client accepts it.
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
    let accept = headers.get(ACCEPT).map(|value| value.as_bytes()).unwrap_or_default();
    let (kind, format) = exposition::negotiate(&String::from_utf8_lossy(accept));
    let mut pieces: Box<dyn Iterator<Item = Bytes> + Send> = match format {
        Format::Text => Box::new(text.map(Bytes::from)),
        other => {
            Box::new(std::iter::once(exposition::convert(text.collect::<String>(), other).into()))
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

/// The metrics of the process, the log size of each running container, and the volume stats of
/// claims.
async fn main_page(deps: &ServerDeps) -> String {
    let summary = match deps.stats.summary(StatsScope::All).await {
        Ok(summary) => Some(summary),
        Err(error) => {
            tracing::error!(err = %Chain(&error), "Failed to get pod stats");
            None
        }
    };
    deps.metrics.render_with(|scrape| {
        volume_metrics::add(summary.as_deref().map_or(&[], |s| &s.pods), scrape);
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

/// Whether gzip is preferred (promhttp: `NegotiateContentEncoding`, which offers identity and gzip,
/// in this order).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let asked: Vec<(String, f64)> =
        headers.get_all(ACCEPT_ENCODING).iter().flat_map(|line| codings(line.as_bytes())).collect();
    let (mut packed, mut best) = (false, -1.0);
    for offer in ["identity", "gzip"] {
        for (name, quality) in &asked {
            if *quality > best && (name == "*" || name == offer) {
                best = *quality;
                packed = offer == "gzip";
            }
        }
    }
    packed && best > 0.0
}

/// The codings of one header with how much they are wanted; what cannot be read ends the list.
fn codings(line: &[u8]) -> Vec<(String, f64)> {
    let text = String::from_utf8_lossy(line);
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let (mut rest, mut found) = (&*text, Vec::new());
    loop {
        let part = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/".contains(c);
        let behind = rest.trim_start_matches(part);
        let (name, behind) = rest.split_at(rest.len() - behind.len());
        if name.is_empty() {
            return found;
        }
        rest = behind.trim_start_matches(blank);
        let mut quality = 1.0;
        if let Some(parameter) = rest.strip_prefix(';') {
            let Some(number) = parameter.trim_start_matches(blank).strip_prefix("q=") else {
                return found;
            };
            let Some((read, behind)) = weight(number) else { return found };
            (quality, rest) = (read, behind);
        }
        found.push((name.to_owned(), quality));
        rest = match rest.trim_start_matches(blank).strip_prefix(',') {
            Some(rest) => rest.trim_start_matches(blank),
            None => return found,
        };
    }
}

/// A number from 0 on, of which only the fraction may have several digits.
fn weight(text: &str) -> Option<(f64, &str)> {
    let whole = if text.starts_with('0') { 0.0 } else { 1.0 };
    let rest = text.strip_prefix(['0', '1'])?;
    let Some(fraction) = rest.strip_prefix('.') else { return Some((whole, rest)) };
    let behind = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = fraction.get(..fraction.len() - behind.len()).unwrap_or_default();
    let fraction = format!("0.{digits}").parse().unwrap_or(0.0);
    Some((whole + fraction, behind))
}

/// The body of a response. The one endpoint with megabytes is generated while it is sent, as fast
/// as the client reads.
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

/// Compresses pieces with gzip.
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
            // Writing to a vector cannot fail.
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
        assert!(!asks("*") && !asks("GZIP") && !asks("gzip;x=1") && !asks("gzip;q=.5"));
        assert!(!asks("gzip;q=0.5, identity") && asks("identity;q=0.5, gzip;q=0.6"));
        assert!(asks("br;q=1.0, gzip;q=0.8, *;q=0.1") && asks("gzip;q=0.001"));
        assert!(asks("identity;q=0, gzip ;q=1") && !asks(" gzip") && !asks("zstd;x, gzip"));
    }
}
