//! The same questions over HTTP/2, by a client of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::{Answer, DEADLINE, Wire};
use crate::ask::Ask;

/// Headers that HTTP/2 does not have.
const HEADERS: [&str; 7] =
    ["connection", "upgrade", "host", "transfer-encoding", "te", "keep-alive", "no-host"];

/// The question as HTTP/2 can put it; `None` for what only bytes can say.
#[must_use]
pub fn request(ask: &Ask, own: impl Fn(&str) -> String) -> Option<Request<Full<Bytes>>> {
    let known = |name: &str| HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name));
    if ask.raw.is_some() || ask.version != "HTTP/1.1" || ask.headers.iter().any(|(n, _)| known(n)) {
        return None;
    }
    let path = ask.target.starts_with('/').then(|| own(&ask.target))?;
    let uri: Uri = format!("https://node:10250{path}").parse().ok()?;
    let mut request = Request::builder().method(ask.method.as_str()).uri(uri);
    let has = |name: &str| ask.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    if let Some(token) = ask.who.token().filter(|_| !has("authorization")) {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    for (name, value) in &ask.headers {
        request = request.header(name.as_str(), own(value));
    }
    let body = own(ask.body.as_deref().unwrap_or_default());
    request.body(Full::new(Bytes::from(body))).ok()
}

impl Wire {
    /// Asks a port of this machine over HTTP/2.
    pub fn send_http2(&self, port: u16, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let tls = self.0.as_ref().context("HTTP/2 needs TLS")?;
        let mut config = ClientConfig::clone(tls);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let asked = exchange(Arc::new(config), port, request);
            tokio::time::timeout(DEADLINE + Duration::from_secs(1), asked).await?
        })
    }
}

async fn exchange(
    config: Arc<ClientConfig>,
    port: u16,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.context("connect")?;
    let name = ServerName::try_from("localhost")?;
    let stream = TlsConnector::from(config).connect(name, socket).await?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response: Response<Incoming> = sender.send_request(request).await?;
    let status = response.status().as_u16();
    let headers = response.headers().iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
    });
    let headers = headers.collect();
    let body = response.into_body().collect().await?.to_bytes().to_vec();
    connection.abort();
    Ok(Answer { version: "HTTP/2".to_owned(), status, headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_http2_can_say_is_asked() {
        let own = |text: &str| text.replace("aa1", "aa2");
        let asked = request(&Ask::new("GET", "/run/aa1/x?y").with("Accept", "a/b"), own).unwrap();
        assert_eq!(asked.uri().path_and_query().unwrap().as_str(), "/run/aa2/x?y");
        assert_eq!(asked.headers()["authorization"], "Bearer admin-token");
        assert!(request(&Ask::new("GET", "/").with("Connection", "close"), own).is_none());
        assert!(request(&Ask::new("GET", "*"), own).is_none());
    }
}
