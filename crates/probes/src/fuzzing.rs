//! Parsers of what others wrote, for `fuzz/`: each takes any bytes and must neither panic nor hang.

use crate::url::Url;
use crate::wire;

/// The URL of a probe, and another that an answer sends it on to.
pub fn url(text: &str) {
    let (first, second) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(first) = Url::parse(first) else { return };
    let shown = first.to_string();
    if let Ok(again) = Url::parse(&shown) {
        assert_eq!(again.to_string(), shown, "a URL that was written is the same when it is read");
    }
    if let Ok(second) = Url::parse(second) {
        first.resolve(&second).request_uri();
    }
}

/// The answer to a probe: its head and its body.
pub fn probe_answer(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    if let Ok(runtime) = runtime {
        runtime.block_on(wire::read_whole(input));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::fuzz::replay;

    #[test]
    fn kept_inputs_are_read_or_refused() {
        replay("probe-url", |input| url(&String::from_utf8_lossy(input)));
        replay("probe-answer", probe_answer);
    }
}
