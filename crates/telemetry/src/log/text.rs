//! klog's text format of a line.

use std::fmt::Write;

use super::fields::Value;
use super::layer::Line;
use crate::go_text::quote;

pub(super) fn format(line: &Line<'_>) -> String {
    let at = line.time.to_zoned(line.zone.clone());
    let mut out = String::with_capacity(128);
    let file = line.file.rsplit('/').next().unwrap_or(line.file);
    let _ = write!(
        out,
        "{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {file}:{}] {}",
        line.severity.letter(),
        at.month(),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.subsec_nanosecond() / 1000,
        line.pid,
        line.line,
        if line.plain { line.message.to_owned() } else { quote(line.message) },
    );
    if let Some(err) = line.err {
        write_text(&mut out, "err", err);
    }
    for (key, value) in &line.pairs.0 {
        match value {
            Value::Text(text) => write_text(&mut out, key, text),
            Value::Bare(text) => {
                let _ = write!(out, " {key}={text}");
            }
        }
    }
    out.push('\n');
    out
}

/// A text of one line is quoted; in one with line breaks each line is on its own, indented by a
/// tab.
fn write_text(out: &mut String, key: &str, text: &str) {
    let _ = write!(out, " {key}=");
    if !text.contains('\n') {
        out.push_str(&quote(text));
        return;
    }
    out.push_str("<\n");
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        let _ = writeln!(out, "\t{line}");
    }
    out.push_str(" >");
}
