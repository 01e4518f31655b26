//! Complete lines, from event to bytes.

use std::io;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing_subscriber::layer::SubscriberExt;

use super::{LogConfig, LogFormat, LogHandle, LogLayer, Sinks};

/// A stream whose bytes can be read back.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Runs `body` with a layer of that configuration; returns what was printed, without `file:line`.
fn printed(config: &LogConfig, body: impl FnOnce(&LogHandle)) -> String {
    let out = Captured::default();
    run(config, Sinks::single(out.clone()), body);
    without_place(&out.text())
}

fn run(config: &LogConfig, sinks: Sinks, body: impl FnOnce(&LogHandle)) {
    let clock = Arc::new(|| Timestamp::new(1_763_206_381, 103_014_000).unwrap());
    let layer = LogLayer::new(config, clock, sinks).in_zone(TimeZone::UTC, 15620);
    let handle = layer.handle();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || body(&handle));
}

fn without_place(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        match line.split_once("tests.rs:") {
            Some((before, after)) => {
                let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
                out.push_str(&format!("{before}tests.rs:N{after}"));
            }
            None => out.push_str(line),
        }
    }
    out
}

fn text(verbosity: u32) -> LogConfig {
    LogConfig { verbosity, ..LogConfig::default() }
}

fn json() -> LogConfig {
    LogConfig { format: LogFormat::Json, ..LogConfig::default() }
}

#[derive(Debug, thiserror::Error)]
#[error("dial runtime")]
struct Outer(#[source] io::Error);

#[test]
fn a_text_line_has_klogs_header_and_quoted_values() {
    let got = printed(&text(0), |_| {
        tracing::info!(pod = "default/web", attempt = 3, ready = true, "Pod \"synced\"");
        tracing::warn!(cpu = 0.25, "Slow");
    });
    assert_eq!(
        got,
        "I1115 11:33:01.103014   15620 tests.rs:N] \"Pod \\\"synced\\\"\" pod=\"default/web\" attempt=3 ready=true\n\
         W1115 11:33:01.103014   15620 tests.rs:N] \"Slow\" cpu=0.25\n"
    );
}

#[test]
fn a_plain_message_is_not_quoted() {
    let got = printed(&text(2), |_| tracing::info!(plain = true, "FLAG: --v=\"2\""));
    assert!(got.ends_with("] FLAG: --v=\"2\"\n"), "{got}");
}

#[test]
fn an_error_is_printed_first_with_its_causes() {
    let err = Outer(io::Error::other("refused"));
    let got = printed(&text(0), |_| {
        tracing::error!(pod = "a/b", err = &err as &dyn std::error::Error, "Sync failed");
    });
    assert_eq!(
        got,
        "E1115 11:33:01.103014   15620 tests.rs:N] \"Sync failed\" err=\"dial runtime: refused\" pod=\"a/b\"\n"
    );
}

#[test]
fn a_value_of_several_lines_is_set_off() {
    let got = printed(&text(0), |_| tracing::error!(err = "one\ntwo", "command failed"));
    assert_eq!(
        got,
        "E1115 11:33:01.103014   15620 tests.rs:N] \"command failed\" err=<\n\tone\n\ttwo\n >\n"
    );
}

#[test]
fn span_fields_come_first_and_a_changed_one_moves_to_the_end() {
    let got = printed(&text(0), |_| {
        let _pod = tracing::info_span!("worker", pod = "a/b", phase = "sync").entered();
        tracing::info!(pod = "a/b", container = "c", "one");
        tracing::info!(pod = "x/y", "two");
    });
    let lines: Vec<_> = got.lines().map(|l| l.split("] ").nth(1).unwrap()).collect();
    assert_eq!(
        lines,
        [
            "\"one\" pod=\"a/b\" phase=\"sync\" container=\"c\"",
            "\"two\" phase=\"sync\" pod=\"x/y\""
        ]
    );
}

#[test]
fn json_lines_have_the_upstream_keys_in_order() {
    let got = printed(&json(), |_| {
        tracing::info!(pod = "a/b", n = 3, "say \"hi\"");
        tracing::error!(pod = "a/b", err = "boom", "failed");
    });
    assert_eq!(
        got,
        "{\"ts\":1763206381103.014,\"caller\":\"log/tests.rs:N\",\"msg\":\"say \\\"hi\\\"\",\"v\":0,\"pod\":{\"name\":\"b\",\"namespace\":\"a\"},\"n\":3}\n\
         {\"ts\":1763206381103.014,\"caller\":\"log/tests.rs:N\",\"msg\":\"failed\",\"pod\":{\"name\":\"b\",\"namespace\":\"a\"},\"err\":\"boom\"}\n"
    );
}

#[test]
fn verbosity_hides_detail_and_can_be_raised_while_running() {
    let got = printed(&text(2), |handle| {
        let all = || {
            tracing::info!(v = 2, "two");
            tracing::info!(v = 3, "three");
            tracing::debug!("debug");
            tracing::trace!("trace");
        };
        all();
        tracing::info!("raised");
        handle.set_verbosity(5);
        assert_eq!(handle.verbosity(), 5);
        all();
    });
    let messages: Vec<_> = got.lines().map(|l| l.split('"').nth(1).unwrap()).collect();
    assert_eq!(messages, ["two", "raised", "two", "three", "debug", "trace"]);
}

#[test]
fn vmodule_raises_one_file_and_foreign_crates_are_quieter() {
    let mut config = text(3);
    let got = printed(&config, |_| {
        tracing::debug!(target: "h2::client", "foreign");
        tracing::warn!(target: "h2::client", "foreign warning");
        tracing::debug!("ours");
    });
    let messages: Vec<_> = got.lines().map(|l| l.split('"').nth(1).unwrap()).collect();
    assert_eq!(messages, ["foreign warning", "ours"]);

    config.verbosity = 0;
    config.vmodule = "tes*=5".parse().unwrap();
    let got = printed(&config, |_| tracing::trace!("deep"));
    assert!(got.ends_with("\"deep\"\n"), "{got}");
    config.verbosity = 5;
    config.vmodule = "*=0".parse().unwrap();
    let got = printed(&config, |_| tracing::trace!("still"));
    assert!(got.ends_with("\"still\"\n"), "{got}");
}

#[test]
fn a_split_stream_keeps_errors_apart() {
    let (errors, info) = (Captured::default(), Captured::default());
    run(&text(0), Sinks::split(errors.clone(), info.clone()), |_| {
        tracing::info!("fine");
        tracing::warn!("odd");
        tracing::error!("bad");
    });
    assert!(errors.text().ends_with("\"bad\"\n") && errors.text().lines().count() == 1);
    assert_eq!(info.text().lines().count(), 2);
}

/// The same calls as those whose lines were recorded from Go.
fn recorded(with_spans: bool) {
    tracing::info!(pod = "default/web", attempt = 3, ready = true, "Pod \"synced\"");
    tracing::info!(cpu = 0.25, big = 1e6, neg = -5, "float");
    tracing::error!(err = "dial runtime: refused", pod = "a/b", "Sync failed");
    tracing::error!(err = "one\ntwo", "command failed");
    tracing::info!(
        text = "a\nb\n",
        tab = "x\ty",
        uni = "grüße \u{200b} 世界",
        ctl = "\u{1}",
        "lines"
    );
    if with_spans {
        let _span = tracing::info_span!("w", pod = "a/b", phase = "sync").entered();
        tracing::info!(pod = "a/b", container = "c", "one");
        tracing::info!(pod = "x/y", "two");
    }
    tracing::info!(v = 2, empty = "", "verbose");
}

#[test]
fn prints_what_klog_prints() {
    let got = printed(&text(2), |_| recorded(true));
    let got = got.replace("1115 11:33:01.103014   15620 tests.rs:N]", " HEADER]");
    assert_eq!(got, include_str!("../../goldens/klog.txt"));
}

#[test]
fn prints_the_json_that_kubernetes_prints() {
    let config = LogConfig { verbosity: 2, ..json() };
    let got = printed(&config, |_| recorded(false));
    let got = got.replace("1763206381103.014,\"caller\":\"log/tests.rs:N\"", "0,\"caller\":\"X\"");
    assert_eq!(got, include_str!("../../goldens/json.txt"));
}
