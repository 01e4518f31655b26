//! Image references and the allow-list of preloaded images.

/// What is wrong with an entry of `preloadedImagesVerificationAllowlist`.
pub(super) fn allowlist_fault(patterns: &[String]) -> Option<String> {
    patterns.iter().find_map(|pattern| pattern_fault(pattern))
}

fn pattern_fault(pattern: &str) -> Option<String> {
    if pattern != pattern.trim() {
        return Some(format!("leading/trailing spaces are not allowed: {pattern}"));
    }
    let wildcard = pattern.ends_with("/*");
    let bare = if wildcard { &pattern[..pattern.len() - 1] } else { pattern };
    if bare.is_empty() {
        return Some(format!("the supplied pattern is too short: {pattern}"));
    }
    if bare.contains('*') {
        return Some(format!(
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        ));
    }
    if wildcard {
        return (bare.len() == 1).then(|| "at least registry hostname is required".to_owned());
    }
    match name_of(bare) {
        Err(fault) => Some(format!("failed to parse as an image name: {fault}")),
        Ok(name) if name != bare => {
            Some(format!("neither tag nor digest is accepted in an image reference: {pattern}"))
        }
        Ok(_) => None,
    }
}

/// The name of a reference without tag and digest (distribution: `reference.Parse`).
fn name_of(reference: &str) -> Result<&str, &'static str> {
    match split(reference) {
        Some(name) if name.len() > 255 => {
            Err("repository name must not be more than 255 characters")
        }
        Some(name) => Ok(name),
        None if reference.is_empty() => Err("repository name must have at least one component"),
        None if split(&reference.to_lowercase()).is_some() => {
            Err("repository name must be lowercase")
        }
        None => Err("invalid reference format"),
    }
}

fn split(reference: &str) -> Option<&str> {
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    if !digest.is_none_or(is_digest) {
        return None;
    }
    if is_name(rest) {
        return Some(rest);
    }
    let (name, tag) = rest.rsplit_once(':')?;
    (is_tag(tag) && is_name(name)).then_some(name)
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let part = |text: &str| {
        text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_name(name: &str) -> bool {
    if name.split('/').all(is_component) {
        return true;
    }
    let Some((domain, path)) = name.split_once('/') else { return false };
    is_domain(domain) && path.split('/').all(is_component)
}

/// Lower-case words joined by `.`, `_`, `__` or any number of `-`.
fn is_component(component: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edges =
        component.bytes().next().is_some_and(word) && component.bytes().last().is_some_and(word);
    let separators_ok = component
        .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .filter(|separator| !separator.is_empty())
        .all(|separator| {
            [".", "_", "__"].contains(&separator) || separator.bytes().all(|b| b == b'-')
        });
    edges && separators_ok
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let port_ok =
        port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    let label_ok = |label: &str| {
        let word = |b: u8| b.is_ascii_alphanumeric();
        label.bytes().next().is_some_and(word)
            && label.bytes().last().is_some_and(word)
            && label.bytes().all(|b| word(b) || b == b'-')
    };
    let v6 = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_ok = match v6 {
        Some(v6) => !v6.is_empty() && v6.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(label_ok),
    };
    port_ok && host_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_patterns_pass() {
        let good = ["registry.io/*", "registry.io/a/b", "localhost:5000/x", "a", "h.io/a__b/c-d"];
        for pattern in good {
            assert_eq!(pattern_fault(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn faults_are_upstreams() {
        let cases = [
            (" a", "leading/trailing spaces are not allowed:  a"),
            ("", "the supplied pattern is too short: "),
            ("a*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*"),
            ("/*", "at least registry hostname is required"),
            ("a/B", "failed to parse as an image name: repository name must be lowercase"),
            ("a//b", "failed to parse as an image name: invalid reference format"),
            ("a:tag", "neither tag nor digest is accepted in an image reference: a:tag"),
        ];
        for (pattern, fault) in cases {
            assert_eq!(pattern_fault(pattern).as_deref(), Some(fault), "{pattern}");
        }
    }
}
