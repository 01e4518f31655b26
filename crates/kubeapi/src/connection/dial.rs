//! Opens the TCP connection: directly, or through the proxy of the kubeconfig or environment.

use super::ConnectionError;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// A connection with unacknowledged data for this long is closed.
const SILENCE: Duration = Duration::from_secs(20);
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) enum Dial {
    Direct(HttpConnector),
    Tunnel(Box<Tunnel<HttpConnector>>),
    /// A tunnel through a proxy that is reached over TLS.
    SecureTunnel(Box<Tunnel<HttpsConnector<HttpConnector>>>),
    Socks(Box<SocksV5<HttpConnector>>),
    /// A proxy that forwards plain HTTP: each request names the complete URL.
    Forward(HttpConnector, Uri),
    /// Such a proxy over TLS.
    SecureForward(Box<HttpsConnector<HttpConnector>>, Uri),
}

/// The proxy for a server: the kubeconfig's, or the environment's.
fn intercept(server: &Uri, proxy: Option<&str>) -> Option<Intercept> {
    let proxy = proxy.filter(|p| !p.is_empty()).map(str::to_owned);
    let proxy = proxy.or_else(|| from_environment(server))?;
    Matcher::builder().all(proxy).build().intercept(server)
}

fn is_forwarded(server: &Uri, intercept: &Intercept) -> bool {
    server.scheme_str() == Some("http")
        && matches!(intercept.uri().scheme_str(), Some("http" | "https"))
}

/// The `Proxy-Authorization` header, which each request through a forwarding proxy needs.
pub(crate) fn proxy_authorization(server: &Uri, proxy: Option<&str>) -> Option<HeaderValue> {
    let intercept = intercept(server, proxy).filter(|found| is_forwarded(server, found))?;
    intercept.basic_auth().cloned()
}

impl Dial {
    /// `proxy` is the kubeconfig's `proxy-url`; without it the environment decides. `secure`
    /// performs the TLS handshake with a proxy.
    pub(crate) fn new(
        server: &Uri,
        proxy: Option<&str>,
        secure: impl FnOnce(HttpConnector) -> HttpsConnector<HttpConnector>,
    ) -> Result<Self, ConnectionError> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_DEADLINE));
        connector.set_keepalive(Some(Duration::from_secs(30)));
        connector.set_tcp_user_timeout(Some(SILENCE));
        let Some(intercept) = intercept(server, proxy) else {
            return Ok(Self::Direct(connector));
        };
        let to = intercept.uri().clone();
        if is_forwarded(server, &intercept) {
            return Ok(match to.scheme_str() {
                Some("https") => Self::SecureForward(Box::new(secure(connector)), to),
                _ => Self::Forward(connector, to),
            });
        }
        match to.scheme_str() {
            Some("http") => {
                Ok(Self::Tunnel(Box::new(through(Tunnel::new(to, connector), &intercept))))
            }
            Some("https") => {
                let tunnel = Tunnel::new(to, secure(connector));
                Ok(Self::SecureTunnel(Box::new(through(tunnel, &intercept))))
            }
            Some("socks5" | "socks5h") => {
                let mut socks = SocksV5::new(to, connector);
                if let Some((user, password)) = intercept.raw_auth() {
                    socks = socks.with_auth(user.into(), password.into());
                }
                Ok(Self::Socks(Box::new(socks)))
            }
            _ => Err(ConnectionError::Proxy(to.to_string())),
        }
    }
}

/// The proxy that the environment names for a server, unchanged.
fn from_environment(server: &Uri) -> Option<String> {
    let host = server.host()?.trim_start_matches('[').trim_end_matches(']');
    let port = server.port_u16().map(|port| port.to_string());
    let variable = |name: &str| std::env::var(name).ok();
    units::goproxy::choose(server.scheme_str()?, host, port.as_deref(), variable)
}

fn through<C>(tunnel: Tunnel<C>, intercept: &Intercept) -> Tunnel<C> {
    match intercept.basic_auth() {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    }
}

impl Service<Uri> for Dial {
    type Response = Way;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::Tunnel(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::SecureTunnel(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::Socks(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::Forward(c, _) => c.poll_ready(context).map_err(BoxError::from),
            Self::SecureForward(c, _) => c.poll_ready(context),
        }
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        match self {
            Self::Direct(c) => c.call(target).map(plain).boxed(),
            Self::Tunnel(c) => c.call(target).map(plain).boxed(),
            Self::SecureTunnel(c) => {
                c.call(target).map(|r| r.map(Way::through).map_err(BoxError::from)).boxed()
            }
            Self::Socks(c) => c.call(target).map(plain).boxed(),
            Self::Forward(c, to) => {
                c.call(to.clone()).map(|r| plain(r).map(Way::ending_at_proxy)).boxed()
            }
            Self::SecureForward(c, to) => {
                c.call(to.clone()).map(|r| r.map(|way| Way::through(way).ending_at_proxy())).boxed()
            }
        }
    }
}

fn plain<E: Into<BoxError>>(opened: Result<TokioIo<TcpStream>, E>) -> Result<Way, BoxError> {
    opened.map(|stream| Way::through(MaybeHttpsStream::Http(stream))).map_err(E::into)
}

/// A connection, and whether its peer is a forwarding proxy.
#[derive(Debug)]
pub(crate) struct Way {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    forwarded: bool,
}

impl Way {
    fn through(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        Self { stream, forwarded: false }
    }

    fn ending_at_proxy(self) -> Self {
        Self { forwarded: true, ..self }
    }
}

impl Connection for Way {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.forwarded)
    }
}

impl Read for Way {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Way {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_url_selects_the_way_and_unknown_schemes_are_refused() {
        let server: Uri = "https://api.example:6443".parse().unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let through =
            |proxy| Dial::new(&server, Some(proxy), |tcp| HttpsConnector::from((tcp, tls.clone())));
        assert!(matches!(through("http://proxy.example:3128"), Ok(Dial::Tunnel(_))));
        assert!(matches!(through("socks5://proxy.example:1080"), Ok(Dial::Socks(_))));
        assert!(matches!(through("https://proxy.example"), Ok(Dial::SecureTunnel(_))));
        assert!(matches!(through("socks4://proxy.example"), Err(ConnectionError::Proxy(_))));
        let clear: Uri = "http://api.example:8080".parse().unwrap();
        let forward =
            |proxy| Dial::new(&clear, Some(proxy), |tcp| HttpsConnector::from((tcp, tls.clone())));
        assert!(matches!(forward("http://proxy.example:3128"), Ok(Dial::Forward(..))));
        assert!(matches!(forward("socks5://proxy.example:1080"), Ok(Dial::Socks(_))));
        let known = |server| proxy_authorization(server, Some("http://u:p@proxy.example"));
        assert_eq!(known(&clear).unwrap(), "Basic dTpw");
        assert_eq!(known(&server), None, "a tunnel says it once");
    }
}
