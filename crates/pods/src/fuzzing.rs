//! Parsers of what others wrote, for `fuzz/`: each takes any bytes and must neither panic nor hang.

use crate::sources::manifest;
use engine::static_pod;

/// A manifest of pods, from a file or a URL, and the rules that its pods must keep.
pub fn manifest(input: &[u8]) {
    let _ = manifest::decode_pods(input);
    if let Ok(pod) = manifest::decode_pod(input) {
        static_pod::faults(&pod, &static_pod::Rules::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::fuzz::replay;

    #[test]
    fn kept_inputs_are_read_or_refused() {
        replay("manifest", manifest);
    }
}
