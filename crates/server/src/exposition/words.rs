//! Families in protobuf's text formats (Go: `prototext`): one field per line, or one family per
//! line.
//!
//! Go's implementation puts one or two spaces between fields, depending on the binary; this one
//! always puts one.

use super::{COUNTER, Family, GAUGE, HISTOGRAM, Metric, SUMMARY, UNTYPED, as_count};
use std::fmt::Write as _;
use units::strconv;

/// The families, each followed by an empty line or on a line of its own.
pub(super) fn write(families: &[Family], lines: bool) -> String {
    let mut words = Words { out: String::new(), lines, depth: 0, fresh: true };
    for family in families {
        words.family(family);
        words.out.push_str(if lines { "\n\n" } else { "\n" });
        words.fresh = true;
    }
    words.out
}

struct Words {
    out: String,
    lines: bool,
    depth: usize,
    /// Nothing of this message was written yet.
    fresh: bool,
}

impl Words {
    fn family(&mut self, family: &Family) {
        self.text("name", &family.name);
        self.text("help", &family.help);
        let kind = match family.kind {
            COUNTER => "COUNTER",
            GAUGE => "GAUGE",
            SUMMARY => "SUMMARY",
            HISTOGRAM => "HISTOGRAM",
            _ => "UNTYPED",
        };
        self.word("type", kind);
        for metric in &family.metrics {
            self.message("metric", |words| words.metric(metric, family.kind));
        }
    }

    fn metric(&mut self, metric: &Metric, kind: u64) {
        for (name, value) in &metric.labels {
            self.message("label", |words| {
                words.text("name", name);
                words.text("value", value);
            });
        }
        let field = match kind {
            COUNTER => "counter",
            GAUGE => "gauge",
            SUMMARY => "summary",
            HISTOGRAM => "histogram",
            _ => "untyped",
        };
        self.message(field, |words| {
            if [COUNTER, GAUGE, UNTYPED].contains(&kind) {
                return words.number("value", metric.value);
            }
            words.word("sample_count", &as_count(metric.count).to_string());
            words.number("sample_sum", metric.sum);
            for (at, value) in metric.points(kind) {
                if kind == HISTOGRAM {
                    words.message("bucket", |words| {
                        words.word("cumulative_count", &as_count(value).to_string());
                        words.number("upper_bound", at);
                    });
                } else {
                    words.message("quantile", |words| {
                        words.number("quantile", at);
                        words.number("value", value);
                    });
                }
            }
        });
        if let Some(time) = metric.time {
            self.word("timestamp_ms", &time.to_string());
        }
    }

    fn message(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.word(name, "{");
        self.depth += 1;
        self.fresh = !self.lines;
        inside(self);
        self.depth -= 1;
        if self.lines {
            self.line();
        }
        self.out.push('}');
        self.fresh = false;
    }

    fn text(&mut self, name: &str, value: &str) {
        let mut quoted = String::from("\"");
        for c in value.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                    let _ = write!(quoted, "\\x{:02x}", u32::from(c));
                }
                '\u{80}'..='\u{9f}' => {
                    let _ = write!(quoted, "\\u{:04x}", u32::from(c));
                }
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.word(name, &quoted);
    }

    fn number(&mut self, name: &str, value: f64) {
        let text = match value {
            value if value.is_nan() => "nan".to_owned(),
            f64::INFINITY => "inf".to_owned(),
            f64::NEG_INFINITY => "-inf".to_owned(),
            value => strconv::float(value),
        };
        self.word(name, &text);
    }

    fn word(&mut self, name: &str, value: &str) {
        if self.lines {
            if !self.fresh {
                self.line();
            }
        } else if !self.fresh {
            self.out.push(' ');
        }
        self.fresh = false;
        let blank = if self.lines { " " } else { "" };
        let _ = write!(self.out, "{name}:{blank}{value}");
    }

    fn line(&mut self) {
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n("  ", self.depth));
    }
}

#[cfg(test)]
mod tests {
    use super::super::families;
    use super::*;

    #[test]
    fn a_family_is_told_in_words() {
        let text = "# HELP a h\\\\i\n# TYPE a gauge\na{x=\"y\\\"z\"} 1e+06 5\n\
                    # HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\n\
                    h_sum 4.5\nh_count 3\n";
        let families = families(text);
        let lines = "name: \"a\"\nhelp: \"h\\\\i\"\ntype: GAUGE\nmetric: {\n  label: {\n    \
                     name: \"x\"\n    value: \"y\\\"z\"\n  }\n  gauge: {\n    value: 1e+06\n  }\n  \
                     timestamp_ms: 5\n}\n\nname: \"h\"\nhelp: \"x\"\ntype: HISTOGRAM\nmetric: {\n  \
                     histogram: {\n    sample_count: 3\n    sample_sum: 4.5\n    bucket: {\n      \
                     cumulative_count: 2\n      upper_bound: 1\n    }\n  }\n}\n\n";
        assert_eq!(write(&families, true), lines);
        let line = "name:\"a\" help:\"h\\\\i\" type:GAUGE metric:{label:{name:\"x\" \
                    value:\"y\\\"z\"} gauge:{value:1e+06} timestamp_ms:5}\n";
        assert_eq!(write(&families[..1], false), line);
    }
}
