//! The Prometheus text format, version 0.0.4, byte for byte as the Go client writes it.
//!
//! Families by name; samples by label values (labels themselves sorted by name), then by time;
//! floats in Go's shortest form. A label set that appears twice in a family is printed once, since
//! a scraper would reject the whole response otherwise.

use std::cmp::Ordering;
use std::fmt::Write;

use super::desc::{Desc, Kind};
use super::scrape::{FamilySamples, Sample, SampleValue, Scrape};
use units::strconv::push_float;

/// The content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn write(scrape: Scrape) -> String {
    let mut out = String::new();
    for (name, mut family) in scrape.families {
        family.samples.sort_by(order);
        family.samples.dedup_by(|a, b| a.labels == b.labels && a.timestamp_ms == b.timestamp_ms);
        write_family(&mut out, &name, &family);
    }
    out
}

fn order(a: &Sample, b: &Sample) -> Ordering {
    let by_count = a.labels.len().cmp(&b.labels.len());
    let by_value =
        || a.labels.iter().map(|(_, value)| value).cmp(b.labels.iter().map(|(_, value)| value));
    by_count.then_with(by_value).then(a.timestamp_ms.cmp(&b.timestamp_ms))
}

fn write_family(out: &mut String, name: &str, family: &FamilySamples) {
    if family.samples.is_empty() {
        return;
    }
    push_head(out, name, &family.help, family.kind);
    for sample in &family.samples {
        write_sample(out, name, sample);
    }
}

fn write_sample(out: &mut String, name: &str, sample: &Sample) {
    match &sample.value {
        SampleValue::Number(value) => write_line(out, (name, ""), sample, None, *value),
        SampleValue::Histogram { buckets, sum, count } => {
            for (bound, below) in buckets {
                write_line(out, (name, "_bucket"), sample, Some(("le", *bound)), exact(*below));
            }
            if buckets.last().is_none_or(|(bound, _)| *bound != f64::INFINITY) {
                let all = Some(("le", f64::INFINITY));
                write_line(out, (name, "_bucket"), sample, all, exact(*count));
            }
            write_line(out, (name, "_sum"), sample, None, *sum);
            write_line(out, (name, "_count"), sample, None, exact(*count));
        }
        SampleValue::Summary { quantiles, sum, count } => {
            for (quantile, value) in quantiles {
                write_line(out, (name, ""), sample, Some(("quantile", *quantile)), *value);
            }
            write_line(out, (name, "_sum"), sample, None, *sum);
            write_line(out, (name, "_count"), sample, None, exact(*count));
        }
    }
}

/// Counts are printed as floats, as in Go.
#[expect(clippy::cast_precision_loss, reason = "the format prints counts as floats")]
fn exact(count: u64) -> f64 {
    count as f64
}

fn write_line(
    out: &mut String,
    (name, suffix): (&str, &str),
    sample: &Sample,
    extra: Option<(&str, f64)>,
    value: f64,
) {
    out.push_str(name);
    out.push_str(suffix);
    let mut separator = '{';
    for (label, text) in &sample.labels {
        out.push(separator);
        push_label(out, label, text);
        separator = ',';
    }
    if let Some((label, bound)) = extra {
        out.push(separator);
        out.push_str(label);
        out.push_str("=\"");
        push_float(out, bound);
        out.push('"');
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
    out.push(' ');
    push_float(out, value);
    if let Some(timestamp) = sample.timestamp_ms {
        let _ = write!(out, " {timestamp}");
    }
    out.push('\n');
}

/// Adds the two header lines above a metric's samples.
pub fn push_header(out: &mut String, desc: &Desc, kind: Kind) {
    push_head(out, desc.name, &desc.help_text(), kind);
}

fn push_head(out: &mut String, name: &str, help: &str, kind: Kind) {
    for part in ["# HELP ", name, " "] {
        out.push_str(part);
    }
    push_escaped(out, help, false);
    for part in ["\n# TYPE ", name, " ", kind.as_str(), "\n"] {
        out.push_str(part);
    }
}

/// Adds a label with its value between quotes.
pub fn push_label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    push_escaped(out, value, true);
    out.push('"');
}

/// Adds text with backslashes, line breaks and (in label values) quotes escaped.
fn push_escaped(out: &mut String, text: &str, quotes: bool) {
    if !text.contains(['\\', '\n', '"']) {
        out.push_str(text);
        return;
    }
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Desc, Kind, Registry, exponential_buckets};

    #[test]
    fn prints_a_histogram_with_sorted_labels_and_the_bound_last() {
        let registry = Registry::new();
        let desc = Desc::alpha("req_seconds", "Latency.").labels(&["verb", "host"]);
        let family = registry.histogram(desc, &[0.1, 2.5]);
        family.observe(&["GET", "b"], 0.1);
        family.observe(&["GET", "b"], 7.0);
        family.observe(&["GET", "a"], 1.0);
        assert_eq!(
            registry.render(),
            r#"# HELP req_seconds [ALPHA] Latency.
# TYPE req_seconds histogram
req_seconds_bucket{host="a",verb="GET",le="0.1"} 0
req_seconds_bucket{host="a",verb="GET",le="2.5"} 1
req_seconds_bucket{host="a",verb="GET",le="+Inf"} 1
req_seconds_sum{host="a",verb="GET"} 1
req_seconds_count{host="a",verb="GET"} 1
req_seconds_bucket{host="b",verb="GET",le="0.1"} 1
req_seconds_bucket{host="b",verb="GET",le="2.5"} 1
req_seconds_bucket{host="b",verb="GET",le="+Inf"} 2
req_seconds_sum{host="b",verb="GET"} 7.1
req_seconds_count{host="b",verb="GET"} 2
"#
        );
    }

    #[test]
    fn prints_what_the_go_client_prints() {
        let registry = Registry::new();
        let desc = Desc::alpha("req_seconds", "Latency \\ of\n\"x\".").labels(&["verb", "host"]);
        let latency = registry.histogram(desc, &exponential_buckets(0.005, 2.5, 14));
        for (verb, host, value) in
            [("GET", "b", 0.1), ("GET", "b", 700.0), ("GET", "a", 1.0), ("Aa", "é", 1e9)]
        {
            latency.observe(&[verb, host], value);
        }
        let gauge = registry.gauge(Desc::unstated("g", "").labels(&["z", "a"]));
        for (z, a, value) in
            [("1", "2", 1e6), ("1", "10", -0.00001), ("", "B", f64::NAN), ("0", "b", 123456.0)]
        {
            gauge.set(&[z, a], value);
        }
        registry.counter(Desc::unstated("a_total", "A.")).with(&[]).add(21e20);
        registry.collector(|scrape| {
            let desc = Desc::unstated("node_x_total", "X.");
            let family = scrape.family(&desc, Kind::Counter);
            for (label, value) in [("b\"q\\w\nz", 12345678.9), ("a", f64::INFINITY)] {
                family.push_values(&["l"], &[label], value.into(), Some(1_700_000_000_123));
            }
        });
        assert_eq!(registry.render(), include_str!("../../goldens/prometheus.txt"));
    }

    #[test]
    fn escapes_help_and_label_values() {
        let registry = Registry::new();
        let desc = Desc::unstated("m", "one\\two\n\"three\"").labels(&["path"]);
        registry.gauge(desc).set(&["a\"b\\c\nd"], 1e6);
        assert_eq!(
            registry.render(),
            "# HELP m one\\\\two\\n\"three\"\n# TYPE m gauge\nm{path=\"a\\\"b\\\\c\\nd\"} 1e+06\n"
        );
    }

    #[test]
    fn sorts_families_and_samples_and_drops_a_repeated_label_set() {
        let mut scrape = Scrape::default();
        let b = Desc::unstated("b", "B.");
        let a = Desc::unstated("a", "A.");
        for (value, number) in [("y", 1.0), ("x", 2.0), ("y", 3.0)] {
            scrape.family(&b, Kind::Gauge).push_values(&["l"], &[value], number.into(), None);
        }
        scrape.family(&a, Kind::Untyped).push_values(&[], &[], f64::NAN.into(), None);
        assert_eq!(
            write(scrape),
            "# HELP a A.\n# TYPE a untyped\na NaN\n\
             # HELP b B.\n# TYPE b gauge\nb{l=\"x\"} 2\nb{l=\"y\"} 1\n"
        );
    }

    #[test]
    fn prints_a_summary() {
        let mut scrape = Scrape::default();
        let value = SampleValue::Summary { quantiles: vec![(0.5, 0.25)], sum: 1.5, count: 3 };
        let desc = Desc::unstated("gc", "Pauses.");
        scrape.family(&desc, Kind::Summary).push_values(&[], &[], value, None);
        assert_eq!(
            write(scrape),
            "# HELP gc Pauses.\n# TYPE gc summary\ngc{quantile=\"0.5\"} 0.25\ngc_sum 1.5\ngc_count 3\n"
        );
    }
}
