//! Image names: the docker reference grammar, normalised as the Docker Hub does.
//!
//! Upstream: `github.com/distribution/reference`, `pkg/util/parsers`.

/// Why a text is not an image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// 64 hex digits would be taken for an image id.
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    /// Upper case in the repository.
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    NotLowercase(String),
    /// Upper case elsewhere in the name.
    #[error("repository name must be lowercase")]
    Uppercase,
    /// Nothing at all.
    #[error("repository name must have at least one component")]
    Empty,
    /// Not in the grammar.
    #[error("invalid reference format")]
    Format,
    /// More than 255 characters.
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    /// An unknown digest algorithm.
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    /// A digest of the wrong length.
    #[error("invalid checksum digest length")]
    DigestLength,
    /// A digest with other characters than lower-case hex.
    #[error("invalid checksum digest format")]
    DigestFormat,
}

/// An image name in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// The repository with its registry: `docker.io/library/busybox`.
    pub repository: String,
    /// The tag, `latest` when neither tag nor digest is given.
    pub tag: String,
    /// The digest, or empty.
    pub digest: String,
}

/// Reads an image name as a pod spec has it, with Docker Hub's defaults filled in.
pub fn parse(image: &str) -> Result<ImageName, ReferenceError> {
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(ReferenceError::Identifier(image.into()));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split_once(':').map_or(remainder.as_str(), |(remote, _)| remote);
    if remote.to_lowercase() != remote {
        return Err(ReferenceError::NotLowercase(remote.into()));
    }
    let full = format!("{domain}/{remainder}");
    let parts = grammar(&full)?;
    let tag = if parts.tag.is_empty() && parts.digest.is_empty() { "latest" } else { parts.tag };
    Ok(ImageName { repository: parts.name.into(), tag: tag.into(), digest: parts.digest.into() })
}

/// The name for CRI calls: as written, with `:latest` when it has neither tag nor digest.
pub fn with_default_tag(image: &str) -> Result<String, ReferenceError> {
    let name = parse(image)?;
    let suffix = format!(":{}", name.tag);
    if name.digest.is_empty() && !name.tag.is_empty() && !image.ends_with(&suffix) {
        return Ok(format!("{image}{suffix}"));
    }
    Ok(image.into())
}

/// The name as written, less its tag and digest.
pub fn without_tag(image: &str) -> Result<&str, ReferenceError> {
    grammar(image).map(|parts| parts.name)
}

struct Parts<'a> {
    name: &'a str,
    tag: &'a str,
    digest: &'a str,
}

fn split_domain(image: &str) -> (String, String) {
    const HUB: &str = "docker.io";
    let (domain, mut rest) = match image.split_once('/') {
        Some(("index.docker.io", rest)) => (HUB, rest.to_string()),
        Some((domain, rest))
            if domain == "localhost"
                || domain.contains(['.', ':'])
                || domain.to_lowercase() != domain =>
        {
            (domain, rest.to_string())
        }
        _ => (HUB, image.to_string()),
    };
    if domain == HUB && !rest.contains('/') {
        rest = format!("library/{rest}");
    }
    (domain.into(), rest)
}

/// `name[:tag][@digest]`.
fn grammar(text: &str) -> Result<Parts<'_>, ReferenceError> {
    let Some(parts) = split(text) else {
        return Err(match text {
            "" => ReferenceError::Empty,
            _ if split(&text.to_lowercase()).is_some() => ReferenceError::Uppercase,
            _ => ReferenceError::Format,
        });
    };
    let path = match parts.name.split_once('/') {
        Some((domain, path)) if is_domain(domain) => path,
        _ => parts.name,
    };
    if path.len() > 255 {
        return Err(ReferenceError::TooLong);
    }
    if !parts.digest.is_empty() {
        check_digest(parts.digest)?;
    }
    Ok(parts)
}

fn split(text: &str) -> Option<Parts<'_>> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    let named = match name.split_once('/') {
        Some((domain, path)) => is_domain(domain) && is_path(path) || is_path(name),
        None => is_path(name),
    };
    let tagged = tag.is_none_or(is_tag);
    let digested = digest.is_none_or(is_digest_shape);
    (named && tagged && digested).then(|| Parts {
        name,
        tag: tag.unwrap_or_default(),
        digest: digest.unwrap_or_default(),
    })
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|p| p.is_empty() || !p.bytes().all(|b| b.is_ascii_digit())) {
        return false;
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        return !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    }
    host.split('.').all(|part| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    })
}

fn is_path(text: &str) -> bool {
    text.split('/').all(is_path_component)
}

/// Lower-case words joined by one dot, one or two underscores, or any number of dashes.
fn is_path_component(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    if !(bytes.first().is_some_and(|b| word(*b)) && bytes.last().is_some_and(|b| word(*b))) {
        return false;
    }
    text.split(|c: char| c.is_ascii() && word(c as u8)).filter(|s| !s.is_empty()).all(|separator| {
        matches!(separator, "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
    })
}

fn is_tag(text: &str) -> bool {
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(word)
        && bytes.iter().all(|b| word(b) || b".-".contains(b))
}

fn is_digest_shape(text: &str) -> bool {
    let Some((algorithm, hex)) = text.split_once(':') else { return false };
    let part = |p: &str| {
        p.as_bytes().first().is_some_and(u8::is_ascii_alphabetic)
            && p.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(part)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), ReferenceError> {
    let (algorithm, hex) = digest.split_once(':').ok_or(ReferenceError::DigestFormat)?;
    if algorithm.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(ReferenceError::DigestFormat);
    }
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(ReferenceError::DigestAlgorithm),
    };
    if hex.len() != length {
        return Err(ReferenceError::DigestLength);
    }
    if hex.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(ReferenceError::DigestFormat);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_belong_to_docker_hub() {
        let hex = "a".repeat(64);
        let digest = format!("sha256:{hex}");
        for (image, repository, tag, digest) in [
            ("busybox", "docker.io/library/busybox", "latest", ""),
            ("busybox:1.36", "docker.io/library/busybox", "1.36", ""),
            ("a/b", "docker.io/a/b", "latest", ""),
            ("index.docker.io/b", "docker.io/library/b", "latest", ""),
            ("localhost/b:x", "localhost/b", "x", ""),
            ("r.io:5000/a/b", "r.io:5000/a/b", "latest", ""),
            ("[fd00::1]:5000/a", "[fd00::1]:5000/a", "latest", ""),
            (&format!("r.io/a@{digest}"), "r.io/a", "", &digest),
            (&format!("r.io/a:t@{digest}"), "r.io/a", "t", &digest),
            ("a__b/c--d.e", "docker.io/a__b/c--d.e", "latest", ""),
        ] {
            let got = parse(image).unwrap();
            let want =
                ImageName { repository: repository.into(), tag: tag.into(), digest: digest.into() };
            assert_eq!(got, want, "{image}");
        }
    }

    #[test]
    fn only_names_without_tag_and_digest_get_the_default_tag() {
        let digest = format!("busybox@sha256:{}", "0".repeat(64));
        for (image, want) in [
            ("busybox", "busybox:latest"),
            ("r.io:5000/a", "r.io:5000/a:latest"),
            ("busybox:1", "busybox:1"),
            (&digest, &digest),
        ] {
            assert_eq!(with_default_tag(image).unwrap(), want);
        }
    }

    #[test]
    fn bad_names_are_refused_with_the_grammars_texts() {
        for (image, want) in [
            ("Foo", "invalid reference format: repository name (library/Foo) must be lowercase"),
            ("foo/Bar", "invalid reference format: repository name (foo/Bar) must be lowercase"),
            ("", "invalid reference format"),
            ("a:b:c", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a..b", "invalid reference format"),
            ("a/", "invalid reference format"),
            ("http://a/b", "invalid reference format"),
            (&format!("a@sha256:{}", "0".repeat(63)), "invalid checksum digest length"),
            (&format!("a@md5:{}", "0".repeat(32)), "unsupported digest algorithm"),
            (
                &"a".repeat(64),
                &format!(
                    "invalid repository name ({}), cannot specify 64-byte hexadecimal strings",
                    "a".repeat(64)
                ),
            ),
            (&"a".repeat(256), "repository name must not be more than 255 characters"),
        ] {
            assert_eq!(parse(image).unwrap_err().to_string(), want, "{image:?}");
        }
    }

    #[test]
    fn tags_and_digests_are_trimmed_without_normalising() {
        let digest = format!("sha256:{}", "0".repeat(64));
        assert_eq!(without_tag("busybox:1").unwrap(), "busybox");
        assert_eq!(without_tag("r:5000/a").unwrap(), "r:5000/a");
        assert_eq!(without_tag(&format!("r.io/a:t@{digest}")).unwrap(), "r.io/a");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_a_name_keeps_its_meaning(text in "\\PC{0,80}") {
            if let Ok(name) = parse(&text) {
                let tagged = with_default_tag(&text).unwrap();
                proptest::prop_assert_eq!(parse(&tagged).unwrap(), name);
                proptest::prop_assert!(text.starts_with(without_tag(&text).unwrap()));
            }
        }

        #[test]
        fn names_of_the_grammar_are_read_back(
            host in "[a-z]{1,8}(\\.[a-z]{1,8}){1,2}(:[0-9]{1,5})?",
            path in "[a-z0-9]{1,8}(/[a-z0-9]{1,8}){0,2}",
            tag in "[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}",
        ) {
            let name = parse(&format!("{host}/{path}:{tag}")).unwrap();
            proptest::prop_assert_eq!(name.repository, format!("{host}/{path}"));
            proptest::prop_assert_eq!(name.tag, tag);
        }
    }
}
