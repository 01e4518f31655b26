//! Which names a plugin may offer.

/// Whether this is the name of an extended resource (upstream: `IsExtendedResourceName`).
pub fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && is_qualified(&format!("requests.{name}"))
}

/// A DNS subdomain, a slash and a name.
fn is_qualified(name: &str) -> bool {
    let Some((prefix, rest)) = name.split_once('/') else { return false };
    is_subdomain(prefix) && is_label_name(rest)
}

fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        edge(label.bytes().next()) && edge(label.bytes().last()) && label.bytes().all(inner)
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn is_label_name(text: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= 63
        && edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendor_domain_and_a_name_make_an_extended_resource() {
        let cases = [
            ("example.com/resource", true),
            ("nvidia.com/gpu.shared", true),
            ("cpu", false),
            ("kubernetes.io/batch", false),
            ("requests.example.com/a", false),
            ("example.com/", false),
            ("Example.com/a", false),
            ("example.com/a/b", false),
            ("example.com/-a", false),
        ];
        for (name, wanted) in cases {
            assert_eq!(is_extended_resource(name), wanted, "{name}");
        }
    }
}
