//! Forms of names and other texts. Every function returns the complaints about a text.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

fn ends_with_letters(text: &str, inner: fn(u8) -> bool, outer: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            outer(*first) && outer(*last) && bytes.iter().all(|b| inner(*b))
        }
        _ => false,
    }
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    ends_with_letters(text, |b| lower(b) || b == b'-', lower)
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_key(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    ends_with_letters(text, inner, |b| b.is_ascii_alphanumeric())
}

fn at_most(text: &str, most: usize, unit: &str) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} {unit}"))
}

fn form(what: &str, examples: &[&str], regex: &str) -> String {
    let shown: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    let examples =
        if shown.is_empty() { String::new() } else { format!("e.g. {}", shown.join(" or ")) };
    format!("{what} ({examples}regex used for validation is '{regex}')")
}

fn complaints(list: impl IntoIterator<Item = Option<String>>) -> Vec<String> {
    list.into_iter().flatten().collect()
}

/// An RFC 1123 label.
pub(super) fn label(text: &str) -> Vec<String> {
    let wrong = (!is_label(text)).then(|| {
        if is_subdomain(text) {
            return "must not contain dots".to_owned();
        }
        form(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character",
            &["my-name", "123-abc"],
            LABEL,
        )
    });
    complaints([at_most(text, 63, "characters"), wrong])
}

/// An RFC 1123 subdomain.
pub(super) fn subdomain(text: &str) -> Vec<String> {
    let wrong = (!is_subdomain(text)).then(|| {
        form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            &["example.com"],
            &format!("{LABEL}(\\.{LABEL})*"),
        )
    });
    complaints([at_most(text, 253, "characters"), wrong])
}

/// A subdomain that may have underscores, as search domains do.
pub(super) fn underscored_subdomain(text: &str) -> Vec<String> {
    let part = |part: &str| {
        let inner = |b: u8| lower(b) || matches!(b, b'-' | b'_');
        ends_with_letters(part.strip_prefix('_').unwrap_or(part), inner, lower)
    };
    let wrong = (!text.split('.').all(part)).then(|| {
        let label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
        form(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            &["example.com"],
            &format!("{label}(\\.{label})*"),
        )
    });
    complaints([at_most(text, 253, "characters"), wrong])
}

/// A key of a label or annotation: a name, perhaps after a domain and a slash.
pub(super) fn key(text: &str) -> Vec<String> {
    let rule = || {
        form(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
             character",
            &["MyName", "my.name", "123-abc"],
            KEY,
        )
    };
    let mut found = Vec::new();
    let mut parts = text.split('/');
    let name = match (parts.next().unwrap_or_default(), parts.next(), parts.next()) {
        (name, None, _) => name,
        ("", Some(name), None) => {
            found.push("prefix part must be non-empty".to_owned());
            name
        }
        (prefix, Some(name), None) => {
            let wrong = subdomain(prefix).into_iter();
            found.extend(
                wrong.map(|c| format!("prefix part {}", c.replace("253 characters", "253 bytes"))),
            );
            name
        }
        (_, Some(_), Some(_)) => {
            let tail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {} {tail}", rule())];
        }
    };
    if name.is_empty() {
        found.push("name part must be non-empty".to_owned());
    } else if let Some(long) = at_most(name, 63, "bytes") {
        found.push(format!("name part {long}"));
    }
    if !is_key(name) {
        found.push(format!("name part {}", rule()));
    }
    found
}

/// A label's value.
pub(super) fn label_value(text: &str) -> Vec<String> {
    let wrong = (!text.is_empty() && !is_key(text)).then(|| {
        form(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            &["MyValue", "my_value", "12345"],
            &format!("({KEY})?"),
        )
    });
    complaints([at_most(text, 63, "bytes"), wrong])
}

/// The name of a port.
pub(super) fn port_name(text: &str) -> Vec<String> {
    let charset = !text.is_empty() && text.bytes().all(|b| lower(b) || b == b'-');
    complaints([
        at_most(text, 15, "characters"),
        (!charset).then(|| {
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned()
        }),
        (!text.bytes().any(|b| b.is_ascii_lowercase()))
            .then(|| "must contain at least one letter (a-z)".to_owned()),
        text.contains("--").then(|| "must not contain consecutive hyphens".to_owned()),
        (text.starts_with('-') || text.ends_with('-'))
            .then(|| "must not begin or end with a hyphen".to_owned()),
    ])
}

/// The name of an environment variable.
pub(super) fn variable(text: &str) -> Vec<String> {
    let printable = |c: char| matches!(c, ' '..='~') && c != '=';
    complaints([
        text.is_empty().then(|| "environment variable name must be non-empty".to_owned()),
        (!text.chars().all(printable)).then(|| {
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned()
        }),
    ])
}

/// A key of a config map or secret.
pub(super) fn data_key(text: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let wrong = (text.is_empty() || !text.bytes().all(inner)).then(|| {
        form(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            &["key.name", "KEY_NAME", "key-name"],
            "[-._a-zA-Z0-9]+",
        )
    });
    let dots = match text {
        "." => Some("must not be '.'"),
        ".." => Some("must not be '..'"),
        _ => text.starts_with("..").then_some("must not start with '..'"),
    };
    complaints([at_most(text, 253, "characters"), wrong, dots.map(str::to_owned)])
}

/// The name of an HTTP header.
pub(super) fn header(text: &str) -> Vec<String> {
    let fine = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let wrong = (!fine).then(|| {
        form(
            "a valid HTTP header must consist of alphanumeric characters or '-'",
            &["X-Header-Name"],
            "[-A-Za-z0-9]+",
        )
    });
    complaints([wrong])
}

/// An IP address.
pub(super) fn address(text: &str, strict: bool) -> Vec<String> {
    use std::net::IpAddr;
    let zeros = || {
        let plain: Vec<String> = text
            .split('.')
            .map(|part| {
                let short = part.trim_start_matches('0');
                if short.is_empty() && !part.is_empty() { "0" } else { short }.to_owned()
            })
            .collect();
        plain.len() == 4 && plain.join(".").parse::<std::net::Ipv4Addr>().is_ok()
    };
    let complaint = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if strict && ip.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        Ok(_) => return Vec::new(),
        Err(_) if zeros() && strict => "must not have leading 0s",
        Err(_) if zeros() => return Vec::new(),
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    vec![complaint.to_owned()]
}

/// A name of a kernel setting.
pub(super) fn is_sysctl(text: &str) -> bool {
    let part =
        |part: &str| ends_with_letters(part, |b| lower(b) || matches!(b, b'-' | b'_'), lower);
    text.len() <= 253 && text.split(['.', '/']).all(part)
}

/// A path below something: relative and without `..`.
pub(super) fn descending(path: &str) -> Vec<String> {
    let absolute = path.starts_with('/').then(|| "must be a relative path".to_owned());
    complaints([absolute, backstep(path)])
}

/// A descending path that is not reserved for the atomic writer (`..data`).
pub(super) fn descending_unreserved(path: &str) -> Vec<String> {
    let mut found = descending(path);
    if path.starts_with("..") && !path.starts_with("../") {
        found.push("must not start with '..'".to_owned());
    }
    found
}

/// The complaint about `..` in a path.
pub(super) fn backstep(path: &str) -> Option<String> {
    path.split('/').any(|part| part == "..").then(|| "must not contain '..'".to_owned())
}

/// `host:port` as Go's `net.SplitHostPort` takes it: of each part there may be nothing.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let inner = bracketed.unwrap_or(host);
    let brackets = inner.contains(['[', ']']) || port.contains(['[', ']']);
    !brackets && (bracketed.is_some() || !host.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keys_and_values_have_their_forms() {
        for good in ["a", "a-b", "0", &"a".repeat(63)] {
            assert!(label(good).is_empty(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", &"a".repeat(64)] {
            assert!(!label(bad).is_empty(), "{bad}");
        }
        assert_eq!(label("a.b"), ["must not contain dots"]);
        assert!(subdomain("a.b-c.d").is_empty());
        assert!(!subdomain("a..b").is_empty());
        assert!(underscored_subdomain("_a_b.c").is_empty());
        assert!(!subdomain("_a").is_empty());
        assert!(key("example.com/My.Name").is_empty());
        for bad in ["", "/a", "a/", "a/b/c", "A.com/x", "-a"] {
            assert!(!key(bad).is_empty(), "{bad}");
        }
        assert!(label_value("").is_empty());
        assert!(!label_value("a b").is_empty());
    }

    #[test]
    fn addresses_must_be_written_plainly() {
        assert!(address("10.0.0.1", true).is_empty());
        assert!(address("FE80:0::1", true).is_empty());
        assert_eq!(address("010.0.0.1", true), ["must not have leading 0s"]);
        assert!(address("010.0.0.1", false).is_empty());
        assert!(!address("::ffff:1.2.3.4", true).is_empty());
        assert!(!address("1.2.3", true).is_empty());
        assert!(!address("fe80::1%eth0", true).is_empty());
    }
}
