//! Where a service listens: `unix://PATH` or a bare path.
//!
//! (cri-client: `GetAddressAndDialer`.) Sockets only; the texts of refusals are upstream's.

use std::fmt;
use std::path::{Path, PathBuf};

/// The address of a service, as configured and as a socket path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    configured: String,
    path: PathBuf,
}

impl Endpoint {
    /// Reads a configured endpoint.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let endpoint = |path: &str| Ok(Self { configured: text.to_owned(), path: path.into() });
        if text.chars().any(char::is_control) {
            return Err(EndpointError::Control(format!("unix://{text}")));
        }
        match scheme_of(text) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("unix") => {
                endpoint(unix_path(rest))
            }
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("tcp") => Err(EndpointError::NotUnix),
            Some((other, _)) => Err(EndpointError::Unsupported(other.to_ascii_lowercase())),
            None => endpoint(text),
        }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text it was configured with.
    pub fn as_str(&self) -> &str {
        &self.configured
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.configured)
    }
}

/// Why an endpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A network address.
    #[error("only support unix socket endpoint")]
    NotUnix,
    /// A character that no address has.
    #[error("parse {}: net/url: invalid control character in URL", quoted(.0))]
    Control(String),
    /// Another scheme.
    #[error("protocol {0:?} not supported")]
    Unsupported(String),
}

/// As Go quotes it.
fn quoted(text: &str) -> String {
    units::strconv::quote(text)
}

/// Splits off a URL scheme: a letter, then letters, digits, `+`, `-`, `.`, up to the first colon.
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let valid = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    valid.then_some((scheme, rest))
}

/// The path of a `unix:` URL: what follows `//host`.
fn unix_path(rest: &str) -> &str {
    match rest.strip_prefix("//") {
        Some(authority) => authority.find('/').map_or("", |at| &authority[at..]),
        None => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_unix_url_or_a_bare_path() {
        for text in ["unix:///run/a.sock", "/run/a.sock", "unix:/run/a.sock"] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.path(), Path::new("/run/a.sock"), "{text}");
            assert_eq!(endpoint.as_str(), text);
        }
    }

    #[test]
    fn refuses_others_with_the_upstream_text() {
        for (text, want) in [
            ("tcp://localhost:1", "only support unix socket endpoint"),
            ("http://x/y", "protocol \"http\" not supported"),
            ("npipe:////./pipe/x", "protocol \"npipe\" not supported"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap_err().to_string(), want);
        }
    }
}
