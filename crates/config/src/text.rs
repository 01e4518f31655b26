//! Go's ways of putting values into messages.

use serde_json::Value;
use std::collections::BTreeSet;

/// JSON without white space, Go's escapes.
pub(crate) fn compact_json(value: &Value) -> String {
    units::gojson::to_string(value).unwrap_or_default()
}

/// Several faults as one text: equal ones once, `[a, b]` when there are two or more
/// (apimachinery: `utilerrors.NewAggregate`).
pub fn aggregate(faults: &[String]) -> String {
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
pub fn clean_path(path: &str) -> String {
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

/// What Go's URL parser objects to.
pub(crate) fn url_fault(url: &str) -> Option<String> {
    units::gourl::parse(url).err()
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
