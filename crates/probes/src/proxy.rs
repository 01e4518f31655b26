//! Proxies on the way to a URL with pods, by the rules of Go's transport.
//!
//! Promises: what is asked for in the clear is asked of the proxy by its whole URL; TLS goes through a tunnel
//! that the proxy is asked for. Deliberately absent: proxies that are spoken to over TLS or SOCKS.

use super::url::Url;
use super::wire::{Wire, basic};
use super::{Names, tcp};
use tokio::net::TcpStream;

/// Who is asked for proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proxies {
    /// Nobody: there is none.
    Never,
    /// The environment.
    Environment,
    /// This one, unless the rules of the environment spare the place.
    #[cfg(test)]
    Always(u16),
}

impl Proxies {
    /// The proxy for a URL; one that cannot be understood is none.
    pub(super) fn of(self, url: &Url) -> Option<Proxy> {
        let given = match self {
            Self::Never => return None,
            Self::Environment => {
                let port = Some(url.port());
                let variable = |name: &str| std::env::var(name).ok();
                units::goproxy::choose(&url.scheme, url.hostname(), port, variable)?
            }
            #[cfg(test)]
            Self::Always(port) => format!("user:word@127.0.0.1:{port}"),
        };
        let whole = |url: &Url| !url.scheme.is_empty() && !url.host.is_empty();
        let parsed = Url::parse(&given).ok().filter(whole);
        parsed.or_else(|| Url::parse(&format!("http://{given}")).ok()).map(Proxy)
    }
}

/// A proxy.
#[derive(Debug)]
pub(super) struct Proxy(Url);

impl Proxy {
    /// The value of a header that says who we are to it, if it is to know.
    pub(super) fn authorization(&self) -> Option<String> {
        self.0.credentials().map(|credentials| basic(&credentials))
    }

    /// A connection on which a URL can be asked for.
    pub(super) async fn dial(&self, names: &Names, url: &Url) -> Result<TcpStream, String> {
        let proxy = &self.0;
        if proxy.scheme != "http" {
            return Err(format!("proxy with scheme {} is not supported", proxy.scheme));
        }
        let failed = |cause: String| format!("proxyconnect tcp: {cause}");
        let port = proxy.port().parse().map_err(|_| failed("invalid port".to_owned()))?;
        let stream = tcp::dial(names, proxy.hostname(), port).await.map_err(failed)?;
        if url.is_tls() { self.tunnel(stream, url).await } else { Ok(stream) }
    }

    async fn tunnel(&self, stream: TcpStream, url: &Url) -> Result<TcpStream, String> {
        let host = url.hostname();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let place = format!("{host}:{}", url.port());
        let mut asked = format!(
            "CONNECT {place} HTTP/1.1\r\nHost: {place}\r\nUser-Agent: Go-http-client/1.1\r\n"
        );
        if let Some(authorization) = self.authorization() {
            asked.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        asked.push_str("\r\n");
        let mut wire = Wire::new(stream, "connection reset by peer".to_owned());
        wire.send(asked.as_bytes()).await;
        let (stream, head) = wire.tunnel().await.map_err(|fault| fault.of_head())?;
        match head.status {
            200 => Ok(stream),
            status => Err(hyper::StatusCode::from_u16(status)
                .ok()
                .and_then(|status| status.canonical_reason())
                .unwrap_or("unknown status code")
                .to_owned()),
        }
    }
}
