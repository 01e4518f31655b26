//! HTTP(S) for probes, hooks and the URL source.

use super::ProbeAnswer;
use super::ask_first::AskFirst;
use super::url::HttpTarget;
use super::{http2, tcp, texts};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Bytes of a body that a probe reads (`kubelet: maxRespBodyLength`).
const PROBE_BODY: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;

/// A GET request to make.
#[derive(Debug, Clone)]
pub(crate) struct HttpFetch {
    /// Where.
    pub(crate) url: String,
    /// Headers, in order; names may repeat.
    pub(crate) headers: Vec<(String, String)>,
    /// A longer body is an error.
    pub(crate) max_body: usize,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    /// Status code.
    pub(crate) status: u16,
    /// The body, or the part that was asked for.
    pub(crate) body: Vec<u8>,
}

/// Why a request failed. The texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HttpError {
    /// No answer: dial, TLS or protocol failure.
    #[error("Get \"{url}\": {cause}")]
    Transport {
        /// The URL asked for.
        url: String,
        /// Go's text.
        cause: String,
        /// A TLS hello was answered in plain HTTP.
        plain_answer: bool,
    },
    /// The answer broke off in its body.
    #[error("{0}")]
    Body(String),
    /// It cannot even be asked for.
    #[error("{0}")]
    Request(String),
}

/// Makes one request per connection.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    tls: Arc<rustls::ClientConfig>,
}

static UNVERIFIED: LazyLock<Arc<rustls::ClientConfig>> =
    LazyLock::new(|| Arc::new(unverified_config()));
static PROBES: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
    let mut config = unverified_config();
    if std::env::var_os("DISABLE_HTTP2").is_none_or(|value| value.is_empty()) {
        config.alpn_protocols = both_protocols();
    }
    Arc::new(config)
});

impl HttpClient {
    /// A client that takes any certificate: for hooks, which upstream makes over HTTP/1 alone.
    pub(crate) fn unverified() -> Self {
        Self { tls: Arc::clone(&UNVERIFIED) }
    }

    /// The same for probes, which take HTTP/2 from who offers it.
    fn for_probes() -> Self {
        Self { tls: Arc::clone(&PROBES) }
    }

    /// A client that checks certificates against the machine's authorities: for pods from a URL.
    pub(crate) fn verified(etc: &std::path::Path) -> Self {
        Self { tls: verified_config(etc) }
    }

    /// GET, following redirects as Go's client does: to any host, but without credentials there.
    pub(crate) async fn fetch(&self, fetch: HttpFetch) -> Result<HttpAnswer, HttpError> {
        let mut target = HttpTarget::parse(&fetch.url)
            .ok_or_else(|| HttpError::Request(format!("cannot parse URL {:?}", fetch.url)))?;
        let mut headers = header_map(&fetch.headers);
        let phase = Phase::default();
        for _ in 0..MAX_REDIRECTS {
            let (status, answer, body) =
                self.get((&target, &phase), &headers, fetch.max_body, Excess::Error).await?;
            let Some(next) = redirect(status, &answer).and_then(|l| target.join(l)) else {
                return Ok(HttpAnswer { status, body });
            };
            if next.host != target.host {
                for secret in [
                    hyper::header::AUTHORIZATION,
                    hyper::header::COOKIE,
                    hyper::header::WWW_AUTHENTICATE,
                    hyper::header::HOST,
                ] {
                    headers.remove(secret);
                }
            }
            target = next;
        }
        Err(too_many(&target))
    }

    /// GET as a probe does it: redirects to the same host followed, body cut at 10 KiB.
    pub(crate) async fn follow(
        &self,
        first: &HttpTarget,
        headers: &HeaderMap,
    ) -> Result<HttpAnswer, HttpError> {
        self.follow_in_phases(first, headers, &Phase::default()).await
    }

    async fn follow_in_phases(
        &self,
        first: &HttpTarget,
        headers: &HeaderMap,
        phase: &Phase,
    ) -> Result<HttpAnswer, HttpError> {
        let mut target = first.clone();
        let mut headers = headers.clone();
        for _ in 0..MAX_REDIRECTS {
            let (status, answer, body) =
                self.get((&target, phase), &headers, PROBE_BODY, Excess::Cut).await?;
            let next = redirect(status, &answer).and_then(|l| {
                let absolute = l.contains("://") || l.starts_with("//");
                target.join(l).map(|next| (next, absolute))
            });
            match next {
                Some((next, absolute)) if next.host == first.host => {
                    if absolute {
                        headers.remove(hyper::header::HOST);
                    }
                    if let Ok(referer) = HeaderValue::from_str(&target.to_string()) {
                        headers.insert(hyper::header::REFERER, referer);
                    }
                    target = next;
                }
                _ => return Ok(HttpAnswer { status, body }),
            }
        }
        Err(too_many(&target))
    }

    async fn get(
        &self,
        (target, phase): (&HttpTarget, &Phase),
        headers: &HeaderMap,
        max_body: usize,
        excess: Excess,
    ) -> Result<(u16, HeaderMap, Vec<u8>), HttpError> {
        phase.awaits_headers();
        let failed = |cause: String| HttpError::Transport {
            url: target.to_string(),
            cause,
            plain_answer: false,
        };
        let stream = tcp::dial(&target.host, target.dial_port()).await.map_err(failed)?;
        let ends = texts::ends_of(&stream);
        let request = request(target, headers).map_err(HttpError::Request)?;
        if !target.is_tls() {
            let about = (target, ends.as_str(), phase);
            return exchange(stream, request, about, max_body, excess).await;
        }
        let name = rustls_pki_types::ServerName::try_from(target.host.clone())
            .map_err(|e| failed(e.to_string()))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(name, stream).await.map_err(|error| {
            let plain_answer = is_plain_answer(&error);
            let cause = if plain_answer {
                "http: server gave HTTP response to HTTPS client".to_owned()
            } else {
                texts::handshake(&error, &ends)
            };
            HttpError::Transport { url: target.to_string(), cause, plain_answer }
        })?;
        let about = (target, ends.as_str(), phase);
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return http2::exchange(stream, request, about, max_body, excess).await;
        }
        exchange(stream, request, about, max_body, excess).await
    }
}

/// Where an answer sends us.
fn redirect(status: u16, answer: &HeaderMap) -> Option<&str> {
    let location = answer.get(hyper::header::LOCATION)?.to_str().ok()?;
    matches!(status, 301 | 302 | 303 | 307 | 308).then_some(location)
}

fn too_many(target: &HttpTarget) -> HttpError {
    HttpError::Transport {
        url: target.to_string(),
        cause: "stopped after 10 redirects".to_owned(),
        plain_answer: false,
    }
}

/// How far a request is.
#[derive(Debug, Default)]
pub(super) struct Phase {
    reads_body: AtomicBool,
}

impl Phase {
    fn awaits_headers(&self) {
        self.reads_body.store(false, Ordering::Relaxed);
    }

    pub(super) fn reads_body(&self) {
        self.reads_body.store(true, Ordering::Relaxed);
    }
}

/// What a body longer than the bound means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Excess {
    Cut,
    Error,
}

impl Excess {
    /// Adds a piece to what was read; whether that is all that is wanted.
    pub(super) fn is_enough(
        self,
        read: &mut Vec<u8>,
        piece: &[u8],
        max_body: usize,
    ) -> Result<bool, HttpError> {
        let room = max_body.saturating_sub(read.len());
        read.extend_from_slice(piece.get(..room).unwrap_or(piece));
        match self {
            // What comes after the bound is not waited for.
            Self::Cut => Ok(read.len() >= max_body),
            Self::Error if piece.len() > room => {
                Err(HttpError::Body(format!("body exceeds {max_body} bytes")))
            }
            Self::Error => Ok(false),
        }
    }
}

/// One HTTP probe.
pub(crate) async fn probe(
    target: &HttpTarget,
    headers: &HeaderMap,
    timeout: Duration,
) -> ProbeAnswer {
    let (client, phase) = (HttpClient::for_probes(), Phase::default());
    let asked = client.follow_in_phases(target, headers, &phase);
    let answer = match tokio::time::timeout(timeout, asked).await {
        // Something answered, but what it would have said is not known.
        Err(_) if phase.reads_body.load(Ordering::Relaxed) => {
            let message = "context deadline exceeded \
                           (Client.Timeout or context cancellation while reading body)";
            return ProbeAnswer::Error { state: "failure", message: message.to_owned() };
        }
        Err(_) => {
            return ProbeAnswer::Failure(format!(
                "Get \"{target}\": context deadline exceeded \
                 (Client.Timeout exceeded while awaiting headers)"
            ));
        }
        Ok(Err(HttpError::Body(text))) => {
            return ProbeAnswer::Error { state: "failure", message: text };
        }
        Ok(Err(HttpError::Request(text))) => return ProbeAnswer::error(text),
        Ok(Err(error)) => return ProbeAnswer::Failure(error.to_string()),
        Ok(Ok(answer)) => answer,
    };
    match answer.status {
        200..=299 => ProbeAnswer::Success,
        300..=399 => ProbeAnswer::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            units::gojson::text(&answer.body)
        )),
        status => ProbeAnswer::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// Headers as given plus the defaults that are not overridden; an explicitly empty `User-Agent`
/// or `Accept` is not sent.
pub(crate) fn headers_with_defaults(given: &[(String, String)], agent: &str) -> HeaderMap {
    let mut headers = header_map(given);
    for (name, default) in [(hyper::header::USER_AGENT, agent), (hyper::header::ACCEPT, "*/*")] {
        match headers.get(&name).map(HeaderValue::is_empty) {
            Some(true) => {
                headers.remove(&name);
            }
            Some(false) => {}
            None => {
                if let Ok(value) = HeaderValue::from_str(default) {
                    headers.insert(name, value);
                }
            }
        }
    }
    headers
}

fn header_map(given: &[(String, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            headers.append(name, value);
        }
    }
    headers
}

fn request(
    target: &HttpTarget,
    headers: &HeaderMap,
) -> Result<hyper::Request<Empty<Bytes>>, String> {
    let mut request = hyper::Request::get(&target.path)
        .body(Empty::new())
        .map_err(|e| format!("invalid path {:?}: {e}", target.path))?;
    *request.headers_mut() = headers.clone();
    let headers = request.headers_mut();
    if !headers.contains_key(hyper::header::HOST) {
        let host = HeaderValue::from_str(&target.authority()).map_err(|e| e.to_string())?;
        headers.insert(hyper::header::HOST, host);
    }
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn exchange<T>(
    stream: T,
    request: hyper::Request<Empty<Bytes>>,
    (target, ends, phase): (&HttpTarget, &str, &Phase),
    max_body: usize,
    excess: Excess,
) -> Result<(u16, HeaderMap, Vec<u8>), HttpError>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let failed = |cause: String| HttpError::Transport {
        url: target.to_string(),
        cause,
        plain_answer: false,
    };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(AskFirst::new(stream)))
        .await
        .map_err(|e| failed(texts::exchange(&e, ends)))?;
    let talk = async {
        let response =
            sender.send_request(request).await.map_err(|e| failed(texts::exchange(&e, ends)))?;
        phase.reads_body();
        let (parts, mut body) = response.into_parts();
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| HttpError::Body(texts::body(&e, ends)))?;
            let Ok(data) = frame.into_data() else { continue };
            if excess.is_enough(&mut read, &data, max_body)? {
                break;
            }
        }
        Ok((parts.status.as_u16(), parts.headers, read))
    };
    // The connection is driven here rather than in a task of its own: it dies with the request.
    let drive = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = talk => result, // both arms are dropped together: nothing is reused
        () = drive => Err(failed("EOF".to_owned())),
    }
}

fn is_plain_answer(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidMessage(_)))
}

/// Where distributions keep their authorities, below `/etc`; the first that is there counts.
const AUTHORITIES: [&str; 6] = [
    "ssl/certs/ca-certificates.crt",
    "pki/tls/certs/ca-bundle.crt",
    "ssl/ca-bundle.pem",
    "pki/tls/cacert.pem",
    "pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "ssl/cert.pem",
];

fn verified_config(etc: &std::path::Path) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for place in AUTHORITIES {
        let Ok(bytes) = sys::fs::read(etc.join(place)) else { continue };
        let found = rustls_pki_types::CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok);
        roots.add_parsable_certificates(found);
        break;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    #[expect(clippy::expect_used, reason = "ring supports the default versions")]
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = both_protocols();
    Arc::new(config)
}

fn both_protocols() -> Vec<Vec<u8>> {
    vec![b"h2".to_vec(), b"http/1.1".to_vec()]
}

fn unverified_config() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    #[expect(clippy::expect_used, reason = "ring supports the default versions")]
    let builder =
        builder.with_safe_default_protocol_versions().expect("ring supports TLS 1.2 and 1.3");
    let anybody = Arc::new(AnyCertificate { schemes });
    builder.dangerous().with_custom_certificate_verifier(anybody).with_no_client_auth()
}

/// Takes any certificate: a probe asks "do you answer", not "who are you".
#[derive(Debug)]
struct AnyCertificate {
    schemes: Vec<rustls::SignatureScheme>,
}

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls_pki_types::CertificateDer<'_>,
        _intermediates: &[rustls_pki_types::CertificateDer<'_>],
        _server_name: &rustls_pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &rustls_pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &rustls_pki_types::CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.schemes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Answers each connection with the next text and hands back what was asked.
    async fn server(answers: Vec<String>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        #[expect(clippy::disallowed_methods, reason = "a test server")]
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 4096];
                let read = stream.read(&mut buffer).await.unwrap();
                asked.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (port, task)
    }

    fn target(port: u16, path: &str) -> HttpTarget {
        HttpTarget::parse(&format!("http://127.0.0.1:{port}{path}")).unwrap()
    }

    #[tokio::test]
    async fn a_handshake_that_fails_is_told_in_gos_words() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        #[expect(clippy::disallowed_methods, reason = "a test server")]
        let server = tokio::spawn(async move {
            // An alert of the kind "handshake failure", then nothing at all.
            for answer in [&[21, 3, 3, 0, 2, 2, 40][..], &[]] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut hello = vec![0; 4096];
                assert!(stream.read(&mut hello).await.unwrap() > 0);
                stream.write_all(answer).await.unwrap();
            }
        });
        let target = HttpTarget::parse(&format!("https://127.0.0.1:{port}/")).unwrap();
        for cause in ["remote error: tls: handshake failure", "EOF"] {
            let answer = probe(&target, &HeaderMap::new(), Duration::from_secs(30)).await;
            assert_eq!(answer, ProbeAnswer::Failure(format!("Get \"{target}\": {cause}")));
        }
        server.await.unwrap();
    }

    #[tokio::test]
    async fn sends_the_kubelets_headers_and_judges_the_status() {
        let ok = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
        let bad = "HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno".to_owned();
        let (port, task) = server(vec![ok, bad]).await;
        let headers = headers_with_defaults(&[("x-a".into(), "1".into())], "kube-probe/1.36");
        let second = Duration::from_secs(5);
        assert_eq!(probe(&target(port, "/h?q=1"), &headers, second).await, ProbeAnswer::Success);
        assert_eq!(
            probe(&target(port, "/"), &headers, second).await,
            ProbeAnswer::Failure("HTTP probe failed with statuscode: 503".into())
        );
        let asked = task.await.unwrap();
        assert!(asked[0].starts_with("GET /h?q=1 HTTP/1.1\r\n"), "{}", asked[0]);
        for line in ["User-Agent: kube-probe/1.36", "Accept: */*", "Connection: close", "X-A: 1"] {
            assert!(asked[0].contains(line), "{line} missing in {}", asked[0]);
        }
        assert!(asked[0].contains(&format!("Host: 127.0.0.1:{port}")));
    }

    #[tokio::test]
    async fn follows_redirects_to_the_same_host_only() {
        let near = "HTTP/1.1 301 M\r\nLocation: /new\r\nContent-Length: 0\r\n\r\n".to_owned();
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned();
        let far =
            "HTTP/1.1 302 F\r\nLocation: http://example.com/\r\nContent-Length: 4\r\n\r\nbody"
                .to_owned();
        let (port, task) = server(vec![near, ok, far]).await;
        let headers = headers_with_defaults(&[], "kube-probe/1.36");
        let second = Duration::from_secs(5);
        assert_eq!(probe(&target(port, "/"), &headers, second).await, ProbeAnswer::Success);
        assert_eq!(
            probe(&target(port, "/"), &headers, second).await,
            ProbeAnswer::Warning("Probe terminated redirects, Response body: body".into())
        );
        assert!(task.await.unwrap()[1].starts_with("GET /new "));
    }

    #[tokio::test]
    async fn pods_may_be_fetched_from_another_place_but_without_credentials() {
        let there = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npods".to_owned();
        let (far, asked_far) = server(vec![there]).await;
        let away = format!(
            "HTTP/1.1 302 F\r\nLocation: http://localhost:{far}/p\r\nContent-Length: 0\r\n\r\n"
        );
        let (near, asked_near) = server(vec![away]).await;
        let fetch = HttpFetch {
            url: format!("http://127.0.0.1:{near}/"),
            headers: vec![("Authorization".into(), "x".into()), ("X-A".into(), "1".into())],
            max_body: 100,
        };
        let answer = HttpClient::unverified().fetch(fetch).await.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, b"pods".as_slice()));
        assert!(asked_near.await.unwrap()[0].contains("Authorization: x"));
        let asked = asked_far.await.unwrap();
        assert!(asked[0].starts_with("GET /p ") && asked[0].contains("X-A: 1"), "{}", asked[0]);
        assert!(!asked[0].contains("Authorization"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn an_empty_accept_header_is_not_sent() {
        let headers = headers_with_defaults(&[("Accept".into(), String::new())], "x");
        assert!(!headers.contains_key("accept"));
        assert!(headers.contains_key("user-agent"));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error_not_a_failure() {
        let cut = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_owned();
        let (port, task) = server(vec![cut]).await;
        let headers = headers_with_defaults(&[], "x");
        let answer = probe(&target(port, "/"), &headers, Duration::from_secs(5)).await;
        let message = "unexpected EOF".to_owned();
        assert_eq!(answer, ProbeAnswer::Error { state: "failure", message });
        task.await.unwrap();
    }

    /// Answers one request with a text and then keeps the connection open.
    async fn slow_server(answer: String) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        #[expect(clippy::disallowed_methods, reason = "a test server")]
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            let read = stream.read(&mut buffer).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
            // Until the other side leaves.
            while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
            asked
        });
        (port, task)
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_an_error_not_a_failure() {
        let start = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_owned();
        let (port, task) = slow_server(start).await;
        let headers = headers_with_defaults(&[("X-A".into(), "\u{e9}".into())], "x");
        let answer = probe(&target(port, "/"), &headers, Duration::from_secs(2)).await;
        let message = "context deadline exceeded \
                       (Client.Timeout or context cancellation while reading body)";
        assert_eq!(answer, ProbeAnswer::Error { state: "failure", message: message.to_owned() });
        let asked = task.await.unwrap();
        assert!(asked.contains("X-A: \u{e9}\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn what_a_body_has_beyond_the_bound_is_not_waited_for() {
        let long = PROBE_BODY + 1;
        let part = "x".repeat(PROBE_BODY);
        let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {long}\r\n\r\n{part}");
        let (port, task) = slow_server(start).await;
        let headers = headers_with_defaults(&[], "x");
        let answer = probe(&target(port, "/"), &headers, Duration::from_secs(60)).await;
        assert_eq!(answer, ProbeAnswer::Success);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_may_answer_before_it_is_asked() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = target(listener.local_addr().unwrap().port(), "/");
        #[expect(clippy::disallowed_methods, reason = "a test server")]
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            let mut asked = String::new();
            stream.read_to_string(&mut asked).await.unwrap();
            asked
        });
        let headers = headers_with_defaults(&[], "x");
        let answer = probe(&target, &headers, Duration::from_secs(60)).await;
        assert_eq!(answer, ProbeAnswer::Success);
        assert!(task.await.unwrap().starts_with("GET / HTTP/1.1\r\n"));
    }

    #[tokio::test]
    async fn headers_that_do_not_come_are_a_failure() {
        let (port, task) = slow_server(String::new()).await;
        let headers = headers_with_defaults(&[], "x");
        let answer = probe(&target(port, "/"), &headers, Duration::from_secs(2)).await;
        assert!(matches!(&answer, ProbeAnswer::Failure(text) if text.contains("awaiting headers")));
        task.await.unwrap();
    }
}
