//! One request over a connection that speaks HTTP/2.
//!
//! Deliberately absent: keeping the connection. Each request has its own, as over HTTP/1.

use super::http::{HttpError, Phase};
use super::texts;
use super::url::Url;
use super::wire::{Framing, Head, Headers};
use bytes::Bytes;
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Parts, Scheme, Uri};

/// Headers that only mean something to HTTP/1, and those that are sent otherwise.
const NOT_SENT: [&str; 8] = [
    "Connection",
    "Content-Length",
    "Host",
    "Keep-Alive",
    "Proxy-Connection",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

/// What the headers of an answer may take when they are unpacked, which a few bytes can be made to fill: less
/// than the 10 MiB that Go takes of each, so that no number of probes takes much.
const MAX_HEADERS: u32 = 256 << 10;

/// The answer with as much of its body as is wanted.
pub(super) async fn exchange<T>(
    io: T,
    (host, headers): (&str, &Headers),
    (url, ends, phase): (&Url, &str, &Phase),
    max: usize,
) -> Result<(Head, Vec<u8>), HttpError>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let failed = |cause: String| HttpError::transport(url, cause);
    let broken = |error: h2::Error| failed(texts::http2(&error, ends));
    let request = request(url, host, headers)
        .ok_or_else(|| failed("http2: invalid Host header".to_owned()))?;
    let handshake = h2::client::Builder::new()
        .enable_push(false)
        .max_header_list_size(MAX_HEADERS)
        .handshake::<_, Bytes>(io);
    let (sender, connection) = handshake.await.map_err(broken)?;
    let talk = async {
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, _) = sender.send_request(request, true).map_err(broken)?;
        let (parts, mut body) = response.await.map_err(broken)?.into_parts();
        phase.reads_body();
        let mut read = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(|e| HttpError::Body(texts::http2(&e, ends)))?;
            // What cannot be given back belongs to a stream that is over.
            let _ = body.flow_control().release_capacity(data.len());
            let room = max.saturating_sub(read.len());
            read.extend_from_slice(data.get(..room).unwrap_or(&data));
            // What comes after the bound is not waited for.
            if read.len() >= max {
                break;
            }
        }
        let given = parts.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        let headers = Headers::new(&given.collect::<Vec<_>>());
        let length = u64::try_from(read.len()).unwrap_or(u64::MAX);
        let head = Head { status: parts.status.as_u16(), headers, body: Framing::Length(length) };
        Ok((head, read))
    };
    // Driven here, so that it dies with the request; its end is told to the request too.
    let drive = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = talk => result, // both arms are dropped together: nothing is reused
        () = drive => Err(failed("unexpected EOF".to_owned())),
    }
}

/// The request as HTTP/2 has it: the host is part of the address.
fn request(url: &Url, host: &str, headers: &Headers) -> Option<Request<()>> {
    let mut parts = Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(host.parse().ok()?);
    parts.path_and_query = Some(url.request_uri().parse().ok()?);
    let mut request =
        Request::get(Uri::from_parts(parts).ok()?).version(hyper::Version::HTTP_2).body(()).ok()?;
    for (name, value) in headers.iter().filter(|(name, _)| !NOT_SENT.contains(name)) {
        // An empty name of the program means that none is sent.
        if name == "User-Agent" && value.is_empty() {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::super::http::{headers_with_defaults, probe};
    use super::super::{Names, ProbeAnswer};
    use super::*;
    use rustls_pki_types::PrivateKeyDer;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn probed(target: &Url, headers: &Headers) -> ProbeAnswer {
        probe(&Names::here(), target, headers, PATIENCE).await
    }

    async fn listener() -> (TcpListener, Url) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/h?q=1", listener.local_addr().unwrap());
        (listener, Url::parse(&url).unwrap())
    }

    fn acceptor(protocols: &[&str]) -> TlsAcceptor {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// Serves one connection of HTTP/2 with what `answer` makes of the request.
    async fn serve<K>(
        listener: &TcpListener,
        answer: impl FnOnce(Request<h2::RecvStream>, h2::server::SendResponse<Bytes>) -> K,
    ) {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor(&["h2", "http/1.1"]).accept(stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (request, respond) = connection.accept().await.unwrap().unwrap();
        let _kept = answer(request, respond);
        // Until the other side leaves.
        while connection.accept().await.is_some_and(|next| next.is_ok()) {}
    }

    #[tokio::test]
    async fn a_server_that_offers_http_2_is_asked_over_it() {
        let (listener, target) = listener().await;
        let given = [("X-A".into(), "1".into()), ("Host".into(), "web.example".into())];
        let headers = headers_with_defaults(&given, "kube-probe/1.36");
        let server = serve(&listener, |request, mut respond| {
            assert_eq!(request.uri(), "https://web.example/h?q=1");
            let said: BTreeSet<_> = request.headers().keys().map(HeaderName::as_str).collect();
            assert_eq!(said, ["x-a", "user-agent", "accept"].into());
            let head = hyper::Response::builder().status(204).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        });
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        assert_eq!(answer, ProbeAnswer::Success);
    }

    #[tokio::test]
    async fn status_body_and_faults_are_judged_as_over_http_1() {
        let (listener, target) = listener().await;
        let headers = headers_with_defaults(&[], "kube-probe/1.36");
        let status = |status: u16| hyper::Response::builder().status(status).body(()).unwrap();
        let server = serve(&listener, |_, mut respond| {
            respond.send_response(status(503), true).unwrap();
        });
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        let failure = "HTTP probe failed with statuscode: 503".to_owned();
        assert_eq!(answer, ProbeAnswer::Failure(failure));

        let server = serve(&listener, |_, mut respond| {
            let mut stream = respond.send_response(status(304), false).unwrap();
            stream.send_data("elsewhere".into(), true).unwrap();
        });
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        let warning = "Probe terminated redirects, Response body: elsewhere".to_owned();
        assert_eq!(answer, ProbeAnswer::Warning(warning));

        let server = serve(&listener, |_, mut respond| {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        });
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        let cause = "stream error: stream ID 1; INTERNAL_ERROR; received from peer";
        assert_eq!(answer, ProbeAnswer::Failure(format!("Get \"{target}\": {cause}")));

        let server = serve(&listener, |_, mut respond| {
            let mut stream = respond.send_response(status(200), false).unwrap();
            // More than is read; no end of it is waited for.
            stream.send_data(vec![b'x'; 11 << 10].into(), false).unwrap();
            stream
        });
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        assert_eq!(answer, ProbeAnswer::Success);
    }

    #[tokio::test]
    async fn a_server_that_leaves_is_told_in_gos_words() {
        let (listener, target) = listener().await;
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor(&["h2"]).accept(stream).await.unwrap();
            assert!(stream.read(&mut [0; 16]).await.unwrap() > 0);
            stream.shutdown().await.unwrap();
        };
        let headers = headers_with_defaults(&[], "kube-probe/1.36");
        let (answer, ()) = tokio::join!(probed(&target, &headers), server);
        let text = format!("Get \"{target}\": unexpected EOF");
        assert_eq!(answer, ProbeAnswer::Failure(text));
    }

    #[tokio::test]
    async fn a_server_that_does_not_offer_http_2_is_asked_over_http_1() {
        let (listener, target) = listener().await;
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor(&["http/1.1"]).accept(stream).await.unwrap();
            let mut asked = vec![0; 4096];
            let got = stream.read(&mut asked).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            String::from_utf8_lossy(&asked[..got]).into_owned()
        };
        let headers = headers_with_defaults(&[], "kube-probe/1.36");
        let (answer, asked) = tokio::join!(probed(&target, &headers), server);
        assert_eq!(answer, ProbeAnswer::Success);
        assert!(asked.starts_with("GET /h?q=1 HTTP/1.1\r\n"), "{asked}");
    }
}
