//! URLs of probes and hooks, put together as the Go kubelet does it.

use api::core::v1::{Container, HTTPGetAction};
use api::machinery::util::intstr::IntOrString;

/// Where an HTTP request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpTarget {
    /// `http` or `https`.
    pub(crate) scheme: String,
    /// Name or address, without brackets.
    pub(crate) host: String,
    /// Port; `None` means the scheme's own.
    pub(crate) port: Option<u16>,
    /// Path and query, always beginning with `/`.
    pub(crate) path: String,
}

impl HttpTarget {
    /// The URL of an `httpGet` action; the pod's IP stands in for a missing host.
    pub(crate) fn of_action(
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
    ) -> Result<Self, String> {
        let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip).to_owned();
        let port = resolve_port(&action.port, container)?;
        let path = normal_path(action.path.as_deref().unwrap_or("/"));
        Ok(Self { scheme, host, port: Some(port), path })
    }

    /// Parses an absolute URL.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let split = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_authority(authority)?;
        let path = normal_path(path);
        Some(Self { scheme: scheme.to_lowercase(), host, port, path })
    }

    /// Follows a `Location` header.
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        if location.contains("://") {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme));
        }
        let path = if location.starts_with('/') || location.is_empty() {
            normal_path(location)
        } else if location.starts_with('?') {
            let base = self.path.split('?').next().unwrap_or("/");
            normal_path(&format!("{base}{location}"))
        } else {
            let base = self.path.split('?').next().unwrap_or("/");
            let folder = base.rsplit_once('/').map_or("", |(folder, _)| folder);
            normal_path(&format!("{folder}/{location}"))
        };
        Some(Self { path, ..self.clone() })
    }

    /// `host:port` as it stands in the URL and the Host header.
    pub(crate) fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }

    /// The port to dial.
    pub(crate) fn dial_port(&self) -> u16 {
        self.port.unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    /// Whether TLS is spoken.
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == "https"
    }
}

impl std::fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)
    }
}

fn split_authority(authority: &str) -> Option<(String, Option<u16>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(port.parse().ok()?),
            None => None,
        };
        return Some((host.to_owned(), port));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => Some((host.to_owned(), Some(port.parse().ok()?))),
        None => Some((authority.to_owned(), None)),
    }
}

/// A path as sent: scheme, authority and fragment dropped, leading `/` added, bytes that may not
/// stand in a request line percent-encoded.
fn normal_path(path: &str) -> String {
    let path = match path.split_once("://") {
        Some((scheme, rest)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => path,
    };
    let path = path.split('#').next().unwrap_or_default();
    let mut sent = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        sent.push('/');
    }
    let mut query = false;
    for byte in path.bytes() {
        query |= byte == b'?';
        let plain = byte.is_ascii_graphic()
            && !matches!(byte, b'"' | b'<' | b'>' | b'`')
            && (query || !matches!(byte, b'^' | b'{' | b'}' | b'|' | b'\\'));
        if plain {
            sent.push(char::from(byte));
        } else {
            sent.push_str(&format!("%{byte:02X}"));
        }
    }
    sent
}

/// A port given as number, numeric text or name of a port of this container.
pub(crate) fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            match named {
                Some(port) => i64::from(port.container_port),
                None => name
                    .parse()
                    .map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
            }
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("invalid port number: {number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::core::v1::ContainerPort;

    fn action(path: &str, port: IntOrString) -> HTTPGetAction {
        HTTPGetAction { path: Some(path.to_owned()), port, ..Default::default() }
    }

    #[test]
    fn builds_urls_as_the_go_kubelet_does() {
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("web".into()),
                container_port: 8080,
                ..Default::default()
            }]),
            ..Default::default()
        };
        let url = |path: &str, port: IntOrString, ip: &str| {
            HttpTarget::of_action(&action(path, port), &container, ip).map(|t| t.to_string())
        };
        assert_eq!(
            url("healthz?a=b#c", IntOrString::Int(80), "10.0.0.5").unwrap(),
            "http://10.0.0.5:80/healthz?a=b"
        );
        assert_eq!(
            url("/a b", IntOrString::String("web".into()), "fd00::1").unwrap(),
            "http://[fd00::1]:8080/a%20b"
        );
        assert_eq!(url("/", IntOrString::String("81".into()), "h").unwrap(), "http://h:81/");
        assert_eq!(
            url("/", IntOrString::String("x".into()), "h").unwrap_err(),
            "strconv.Atoi: parsing \"x\": invalid syntax"
        );
    }

    #[test]
    fn follows_locations_relative_and_absolute() {
        let base = HttpTarget::parse("http://10.0.0.5:80/a/b?c").unwrap();
        assert_eq!(base.join("/x").unwrap().to_string(), "http://10.0.0.5:80/x");
        assert_eq!(base.join("x").unwrap().to_string(), "http://10.0.0.5:80/a/x");
        assert_eq!(base.join("https://other/y").unwrap().to_string(), "https://other/y");
        assert_eq!(base.join("//other:8/y").unwrap().to_string(), "http://other:8/y");
    }
}
