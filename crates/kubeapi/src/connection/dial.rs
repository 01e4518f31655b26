//! Opening the TCP connection: directly, or through the proxy of the kubeconfig or environment.

use super::ConnectionError;
use super::proxy::from_environment;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// Unacknowledged data for this long ends the connection.
const SILENCE: Duration = Duration::from_secs(20);
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) enum Dial {
    Direct(HttpConnector),
    Tunnel(Box<Tunnel<HttpConnector>>),
    /// The proxy is spoken to over TLS.
    SecureTunnel(Box<Tunnel<HttpsConnector<HttpConnector>>>),
    Socks(Box<SocksV5<HttpConnector>>),
}

impl Dial {
    /// `proxy` is the kubeconfig's `proxy-url`; without it the environment decides. `secure` speaks
    /// TLS to a proxy.
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
        let proxy = proxy.filter(|p| !p.is_empty()).map(str::to_owned);
        let proxy = proxy.or_else(|| from_environment(server));
        let intercept =
            proxy.and_then(|proxy| Matcher::builder().all(proxy).build().intercept(server));
        let Some(intercept) = intercept else {
            return Ok(Self::Direct(connector));
        };
        let to = intercept.uri().clone();
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

fn through<C>(tunnel: Tunnel<C>, intercept: &Intercept) -> Tunnel<C> {
    match intercept.basic_auth() {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    }
}

impl Service<Uri> for Dial {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::Tunnel(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::SecureTunnel(c) => c.poll_ready(context).map_err(BoxError::from),
            Self::Socks(c) => c.poll_ready(context).map_err(BoxError::from),
        }
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        match self {
            Self::Direct(c) => c.call(target).map(plain).boxed(),
            Self::Tunnel(c) => c.call(target).map(plain).boxed(),
            Self::SecureTunnel(c) => c.call(target).map(|r| r.map_err(BoxError::from)).boxed(),
            Self::Socks(c) => c.call(target).map(plain).boxed(),
        }
    }
}

fn plain<E: Into<BoxError>>(
    opened: Result<TokioIo<TcpStream>, E>,
) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
    opened.map(MaybeHttpsStream::Http).map_err(E::into)
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
    }
}
