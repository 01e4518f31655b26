//! The address of a service: `unix://PATH` or a bare path.
//!
//! (cri-client: `GetAddressAndDialer`.) Unix sockets only; the error texts are upstream's.

use std::fmt;
use std::path::{Path, PathBuf};
use units::gourl;

/// The address of a service, as configured and as a socket path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    configured: String,
    path: PathBuf,
}

impl Endpoint {
    /// Parses a configured endpoint.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let refused = |scheme: &str| match scheme {
            "tcp" => EndpointError::NotUnix,
            other => EndpointError::Unsupported(other.to_owned()),
        };
        let path = match gourl::parse(text) {
            Ok(url) if url.scheme == "unix" => url.path,
            Ok(url) if !url.scheme.is_empty() => return Err(refused(&url.scheme)),
            // A text that is not a URL is treated as the part after `unix://`.
            _ => gourl::parse(&format!("unix://{text}")).map_err(EndpointError::NoUrl)?.path,
        };
        Ok(Self { configured: text.to_owned(), path: path.into() })
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
    /// Not a valid address.
    #[error("{0}")]
    NoUrl(String),
    /// Another scheme.
    #[error("protocol {0:?} not supported")]
    Unsupported(String),
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
    fn a_name_alone_is_a_host_without_a_path() {
        for text in ["None", "unix://", "unix:x"] {
            assert_eq!(Endpoint::parse(text).unwrap().path(), Path::new(""), "{text}");
        }
        assert_eq!(Endpoint::parse("://").unwrap().path(), Path::new("//"));
    }

    #[test]
    fn refuses_others_with_the_upstream_text() {
        for (text, want) in [
            ("tcp://localhost:1", "only support unix socket endpoint"),
            ("http://x/y", "protocol \"http\" not supported"),
            ("npipe:////./pipe/x", "protocol \"npipe\" not supported"),
            ("a b", "parse \"unix://a b\": invalid character \" \" in host name"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap_err().to_string(), want);
        }
    }
}
