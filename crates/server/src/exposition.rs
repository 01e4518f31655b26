//! Negotiates the format of a metrics response, and converts to Prometheus' protobuf formats (Go:
//! `expfmt`).

mod words;

use crate::accept;
use std::collections::BTreeMap;

const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The text format.
    Text,
    /// One length-delimited message per family.
    Delimited,
    /// The messages in protobuf's text format, one field per line.
    Words,
    /// The messages in protobuf's compact text format, one family per line.
    CompactWords,
}

impl Format {
    fn of(encoding: &str) -> Option<Format> {
        match encoding {
            "delimited" => Some(Format::Delimited),
            "text" => Some(Format::Words),
            "compact-text" => Some(Format::CompactWords),
            _ => None,
        }
    }
}

/// The content type of the response, and its format (Go: `expfmt.Negotiate`).
pub(crate) fn negotiate(header: &str) -> (String, Format) {
    let mut escaping = "underscores".to_owned();
    for clause in accept::parse(header) {
        let asked = clause.param("escaping");
        if matches!(asked, "allow-utf-8" | "underscores" | "dots" | "values") {
            asked.clone_into(&mut escaping);
        }
        let protobuf = clause.kind == "application"
            && clause.sub == "vnd.google.protobuf"
            && clause.param("proto") == "io.prometheus.client.MetricFamily";
        let encoding = clause.param("encoding");
        if let Some(format) = Format::of(encoding).filter(|_| protobuf) {
            return (format!("{PROTOBUF}{encoding}; escaping={escaping}"), format);
        }
        let plain = clause.kind == "text" && clause.sub == "plain";
        if plain && matches!(clause.param("version"), "0.0.4" | "") {
            break;
        }
    }
    (format!("{TEXT}; escaping={escaping}"), Format::Text)
}

/// A family, parsed from the text format.
#[derive(Debug, Default)]
struct Family {
    name: String,
    help: String,
    kind: u64,
    /// The metrics in order, grouped by their labels without `le` and `quantile`.
    metrics: Vec<Metric>,
    index: BTreeMap<Vec<(String, String)>, usize>,
}

#[derive(Debug, Default)]
struct Metric {
    labels: Vec<(String, String)>,
    value: f64,
    sum: f64,
    count: f64,
    points: Vec<(f64, f64)>,
    time: Option<i64>,
}

const COUNTER: u64 = 0;
const GAUGE: u64 = 1;
const SUMMARY: u64 = 2;
const UNTYPED: u64 = 3;
const HISTOGRAM: u64 = 4;

/// Converts the text format to another format.
pub(crate) fn convert(text: String, format: Format) -> Vec<u8> {
    match format {
        Format::Text => text.into_bytes(),
        Format::Delimited => delimited(&text),
        Format::Words => words::write(&families(&text), true).into_bytes(),
        Format::CompactWords => words::write(&families(&text), false).into_bytes(),
    }
}

/// The families as length-delimited `MetricFamily` messages.
fn delimited(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families(text) {
        let message = family.encode();
        varint(&mut out, u64::try_from(message.len()).unwrap_or(0));
        out.extend(message);
    }
    out
}

fn families(text: &str) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let help = help.replace("\\n", "\n").replace("\\\\", "\\");
            all.push(Family { name: name.to_owned(), help, kind: UNTYPED, ..Family::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            if all.last().is_none_or(|family| family.name != name) {
                all.push(Family { name: name.to_owned(), ..Family::default() });
            }
            if let Some(family) = all.last_mut() {
                family.kind = match kind {
                    "counter" => COUNTER,
                    "gauge" => GAUGE,
                    "summary" => SUMMARY,
                    "histogram" => HISTOGRAM,
                    _ => UNTYPED,
                };
            }
        } else if let Some(family) = all.last_mut()
            && let Some(sample) = sample(line)
        {
            family.add(sample);
        }
    }
    all
}

struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
    time: Option<i64>,
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = unquote(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
        }
        rest = rest.strip_prefix('}')?;
    }
    let mut words = rest.split_whitespace();
    let value = number(words.next()?)?;
    let time = words.next().and_then(|word| word.parse().ok());
    Some(Sample { name: name.to_owned(), labels, value, time })
}

/// A value up to its closing quote, and the rest of the text.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        other => other.parse().ok(),
    }
}

impl Family {
    fn add(&mut self, sample: Sample) {
        let point = match self.kind {
            HISTOGRAM => "le",
            SUMMARY => "quantile",
            _ => "",
        };
        let at = sample.labels.iter().find(|(name, _)| name == point);
        let at = at.and_then(|(_, value)| number(value));
        let labels: Vec<_> = sample
            .labels
            .into_iter()
            .filter(|(name, _)| point.is_empty() || name != point)
            .collect();
        let next = self.metrics.len();
        let index = *self.index.entry(labels.clone()).or_insert(next);
        if index == next {
            self.metrics.push(Metric { labels, ..Metric::default() });
        }
        let Some(metric) = self.metrics.get_mut(index) else { return };
        metric.time = sample.time.or(metric.time);
        match (sample.name.strip_prefix(self.name.as_str()).unwrap_or_default(), at) {
            ("_sum", _) if !point.is_empty() => metric.sum = sample.value,
            ("_count", _) if !point.is_empty() => metric.count = sample.value,
            (_, Some(at)) => metric.points.push((at, sample.value)),
            _ => metric.value = sample.value,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        bytes(&mut out, 1, self.name.as_bytes());
        bytes(&mut out, 2, self.help.as_bytes());
        varint(&mut out, 3 << 3);
        varint(&mut out, self.kind);
        for metric in &self.metrics {
            bytes(&mut out, 4, &metric.encode(self.kind));
        }
        out
    }
}

impl Metric {
    /// Buckets or quantiles; the `+Inf` bucket is the count.
    fn points(&self, kind: u64) -> impl Iterator<Item = (f64, f64)> {
        let all = move |at: f64| kind == HISTOGRAM && at == f64::INFINITY;
        self.points.iter().copied().filter(move |(at, _)| !all(*at))
    }

    fn encode(&self, kind: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in &self.labels {
            let mut pair = Vec::new();
            bytes(&mut pair, 1, name.as_bytes());
            bytes(&mut pair, 2, value.as_bytes());
            bytes(&mut out, 1, &pair);
        }
        let mut body = Vec::new();
        let field = match kind {
            GAUGE | COUNTER | UNTYPED => {
                double(&mut body, 1, self.value);
                [3, 2, 0, 5].get(usize::try_from(kind).unwrap_or(3)).copied().unwrap_or(5)
            }
            _ => {
                varint(&mut body, 1 << 3);
                varint(&mut body, as_count(self.count));
                double(&mut body, 2, self.sum);
                for (at, value) in self.points(kind) {
                    let mut point = Vec::new();
                    if kind == HISTOGRAM {
                        varint(&mut point, 1 << 3);
                        varint(&mut point, as_count(value));
                        double(&mut point, 2, at);
                    } else {
                        double(&mut point, 1, at);
                        double(&mut point, 2, value);
                    }
                    bytes(&mut body, 3, &point);
                }
                if kind == HISTOGRAM { 7 } else { 4 }
            }
        };
        bytes(&mut out, field, &body);
        if let Some(time) = self.time {
            varint(&mut out, 6 << 3);
            varint(&mut out, u64::from_ne_bytes(time.to_ne_bytes()));
        }
        out
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are whole and not negative"
)]
fn as_count(value: f64) -> u64 {
    value as u64
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, (field << 3) | 2);
    varint(out, u64::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, (field << 3) | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_accept() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        assert_eq!(negotiate(protobuf).1, Format::Delimited);
        for (encoding, format) in [("text", Format::Words), ("compact-text", Format::CompactWords)]
        {
            let (kind, got) = negotiate(&protobuf.replace("delimited", encoding));
            assert_eq!(
                (kind, got),
                (format!("{PROTOBUF}{encoding}; escaping=underscores"), format)
            );
        }
        assert_eq!(negotiate(&protobuf.replace("delimited", "x")).1, Format::Text);
        assert_eq!(negotiate("application/openmetrics-text").1, Format::Text);
        let (kind, _) = negotiate("text/plain;version=0.0.4;escaping=allow-utf-8");
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8; escaping=allow-utf-8");
        assert!(negotiate("").0.ends_with("escaping=underscores"));
    }

    #[test]
    fn a_counter_becomes_one_message() {
        let text = "# HELP a_total h\n# TYPE a_total counter\na_total{x=\"y\\\"z\"} 3\n";
        let want: &[u8] = &[
            39, 10, 7, b'a', b'_', b't', b'o', b't', b'a', b'l', 18, 1, b'h', 24, 0, 34, 21, 10, 8,
            10, 1, b'x', 18, 3, b'y', b'"', b'z', 26, 9, 9, 0, 0, 0, 0, 0, 0, 8, 64,
        ];
        let got = delimited(text);
        assert_eq!(&got[1..], &want[1..]);
        assert_eq!(usize::from(got[0]), got.len() - 1);
    }

    #[test]
    fn histograms_are_gathered_from_their_lines() {
        let text = "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_sum 4.5\nh_count 3\n";
        let all = families(text);
        assert_eq!((all.len(), all[0].metrics.len()), (1, 1));
        let metric = &all[0].metrics[0];
        assert_eq!(metric.points, [(1.0, 2.0), (f64::INFINITY, 3.0)]);
        assert_eq!(metric.points(HISTOGRAM).collect::<Vec<_>>(), [(1.0, 2.0)]);
        assert_eq!((metric.sum, metric.count), (4.5, 3.0));
    }
}
