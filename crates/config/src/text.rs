//! Go's ways of putting values into messages.

use serde_json::Value;
use std::collections::BTreeSet;
use units::strconv::quote;

/// JSON without white space, Go's escapes.
pub(crate) fn compact_json(value: &Value) -> String {
    units::gojson::to_string(value).unwrap_or_default()
}

/// Several faults as one text: equal ones once, `[a, b]` when there are two or more
/// (apimachinery: `utilerrors.NewAggregate`).
pub(crate) fn aggregate(faults: &[String]) -> String {
    let mut seen = BTreeSet::new();
    let distinct: Vec<&str> =
        faults.iter().map(String::as_str).filter(|fault| seen.insert(*fault)).collect();
    match distinct.as_slice() {
        [only] => (*only).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// A list as `%v` prints it: `[a b]`.
pub(crate) fn list<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    format!("[{}]", items.join(" "))
}

/// A path without `.`, `..` and doubled slashes (Go: `filepath.Clean`).
pub(crate) fn clean_path(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&"..") => parts.push(".."),
                Some(_) => {
                    parts.pop();
                }
                None if rooted => {}
                None => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// A path made absolute from `base` (Go: `filepath.Join` and `filepath.Abs`).
pub(crate) fn absolute_path(base: &str, path: &str) -> String {
    if path.starts_with('/') { clean_path(path) } else { clean_path(&format!("{base}/{path}")) }
}

/// What Go's URL parser objects to in the host of a URL with a scheme.
pub(crate) fn url_fault(url: &str) -> Option<String> {
    let shown = quote(url);
    if url.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Some(format!("parse {shown}: net/url: invalid control character in URL"));
    }
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if url.starts_with(':') {
        return Some(format!("parse {shown}: missing protocol scheme"));
    }
    if host.starts_with('[') && !host.contains(']') {
        return Some(format!("parse {shown}: missing ']' in host"));
    }
    if let Some(bad) = host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        let bad = quote(&bad.to_string());
        return Some(format!("parse {shown}: invalid character {bad} in host name"));
    }
    let after_v6 = host.rsplit_once(']').map_or(host, |(_, after)| after);
    let port = after_v6.rsplit_once(':').map_or("", |(_, port)| port);
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        let port = quote(&format!(":{port}"));
        return Some(format!("parse {shown}: invalid port {port} after host"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_go_does() {
        let cases = [
            ("", "."),
            ("/", "/"),
            ("/a//b/", "/a/b"),
            ("/a/../../b", "/b"),
            ("a/../..", ".."),
            ("./a", "a"),
        ];
        for (path, clean) in cases {
            assert_eq!(clean_path(path), clean, "{path}");
        }
    }

    #[test]
    fn hosts_are_refused_as_go_does() {
        for good in [
            "https://a.io/x y",
            "dns://a:1",
            "unix:///run/x",
            "https://[::1]:5/a",
            "https://*.a.io",
        ] {
            assert_eq!(url_fault(good), None, "{good}");
        }
        assert_eq!(
            url_fault("dns://a b").unwrap(),
            "parse \"dns://a b\": invalid character \" \" in host name"
        );
        assert_eq!(
            url_fault("https://a:x/").unwrap(),
            "parse \"https://a:x/\": invalid port \":x\" after host"
        );
    }

    #[test]
    fn equal_faults_are_told_once() {
        let faults = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        assert_eq!(aggregate(&faults), "[a, b]");
        assert_eq!(aggregate(&faults[..1]), "a");
    }
}
