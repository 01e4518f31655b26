//! Names of event objects (upstream: `record/util.GenerateEventName`).

use crate::watch::random_bits;
use jiff::Timestamp;

/// The longest name of an object.
const LONGEST: usize = 253;

/// The name of an event about this object at this time; a random one where the object's name is
/// unsuitable, for example too long.
pub(super) fn of_event(object: &str, at: Timestamp) -> String {
    let name = plain(object, at);
    if is_subdomain(&name) { name } else { random() }
}

/// The object's name and the time, without validation.
pub(super) fn plain(object: &str, at: Timestamp) -> String {
    format!("{object}.{:x}", at.as_nanosecond())
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= LONGEST && name.split('.').all(label)
}

/// A UUID of version 4.
fn random() -> String {
    let (high, low) = (random_bits(), random_bits());
    let high = (high & !0xf000) | 0x4000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    let [a, b, c] = [high >> 32, (high >> 16) & 0xffff, high & 0xffff];
    let [d, e] = [low >> 48, low & 0xffff_ffff_ffff];
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_be_refused_is_a_random_one() {
        let at = Timestamp::from_nanosecond(0x1234).unwrap();
        assert_eq!(of_event("pod", at), "pod.1234");
        let long = "p".repeat(250);
        for object in [long.as_str(), "Pod", "a:b"] {
            let name = of_event(object, at);
            let parts: Vec<usize> = name.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{name}");
            assert!(is_subdomain(&name) && name.as_bytes()[14] == b'4', "{name}");
            assert_ne!(of_event(object, at), name);
        }
        assert_eq!(of_event(&"p".repeat(248), at).len(), 253);
    }
}
