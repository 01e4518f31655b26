//! HTTP(S) for probes, hooks and the URL source.

use super::proxy::Proxies;
use super::url::Url;
use super::wire::{self, Caller, Framing, Head, Headers, Wire};
use super::{Names, ProbeAnswer};
use super::{http2, tcp, texts};
use rustls_pki_types::pem::PemObject;
use std::io::Read as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of a body that a probe reads (`kubelet: maxRespBodyLength`).
const PROBE_BODY: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;
/// Of the body of an answer that leads elsewhere, so much is read.
const REDIRECT_BODY: usize = 2 << 10;

/// A GET request to make.
#[derive(Debug, Clone)]
pub struct HttpFetch {
    /// Where.
    pub url: String,
    /// Headers, in order; names may repeat.
    pub headers: Vec<(String, String)>,
    /// A body of this length or more is an error.
    pub max_body: usize,
}

/// What came back.
#[derive(Debug)]
pub struct HttpAnswer {
    /// Status code.
    pub status: u16,
    /// The body, or the part that was asked for.
    pub body: Vec<u8>,
}

/// Why a request failed. The texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// No answer: dial, TLS or protocol failure.
    #[error("Get {}: {cause}", units::strconv::quote(url))]
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

impl HttpError {
    pub(super) fn transport(url: &Url, cause: impl Into<String>) -> HttpError {
        HttpError::Transport { url: url.redacted(), cause: cause.into(), plain_answer: false }
    }
}

/// Makes one request per connection.
#[derive(Debug, Clone)]
pub struct HttpClient {
    tls: Arc<rustls::ClientConfig>,
    caller: Caller,
    proxies: Proxies,
    names: Names,
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

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follow {
    SameHost,
    All,
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An answer, and what is still to be read of it.
struct Opened {
    head: Head,
    body: Body,
}

enum Body {
    /// Nothing was read yet.
    Ahead(Wire<Box<dyn Stream>>),
    /// All that may be wanted.
    Read(Vec<u8>),
}

impl Opened {
    /// As far as a reader that goes elsewhere reads.
    async fn skip(self) {
        match self.head.body {
            Framing::Length(length) if length > REDIRECT_BODY as u64 => {}
            _ => drop(self.answer(REDIRECT_BODY).await),
        }
    }

    async fn answer(self, max: usize) -> Result<HttpAnswer, HttpError> {
        let mut body = match self.body {
            Body::Ahead(mut wire) => wire
                .body(self.head.body, max)
                .await
                .map_err(|fault| HttpError::Body(fault.of_body()))?,
            Body::Read(body) => body,
        };
        body.truncate(max);
        Ok(HttpAnswer { status: self.head.status, body })
    }
}

impl HttpClient {
    /// A client that takes any certificate: for hooks, which upstream makes over HTTP/1 alone.
    pub fn for_hooks(names: Names) -> Self {
        Self { tls: Arc::clone(&UNVERIFIED), caller: Caller::Hook, proxies: Proxies::Never, names }
    }

    /// The same for probes, which take HTTP/2 from who offers it.
    fn for_probes(names: Names) -> Self {
        Self { tls: Arc::clone(&PROBES), caller: Caller::Probe, proxies: Proxies::Never, names }
    }

    /// A client that checks certificates against the machine's authorities: for pods from a URL.
    pub fn verified(etc: &std::path::Path, names: Names) -> Self {
        let (tls, caller) = (verified_config(etc), Caller::Hook);
        Self { tls, caller, proxies: Proxies::Environment, names }
    }

    /// GET, following redirects as Go's client does: to any host, but without credentials there.
    pub async fn fetch(&self, fetch: HttpFetch) -> Result<HttpAnswer, HttpError> {
        let url = Url::parse(&fetch.url).map_err(HttpError::Request)?;
        let phase = Phase::default();
        let mut headers = Headers::new(&fetch.headers);
        // The place alone says who is asked.
        headers.remove("Host");
        if headers.get("User-Agent").is_none() {
            headers.set("User-Agent", "Go-http-client/1.1".to_owned());
        }
        let said = |name: &str| headers.get(name).is_some_and(|value| !value.is_empty());
        let packed = !said("Accept-Encoding") && !said("Range");
        if packed {
            headers.set("Accept-Encoding", "gzip".to_owned());
        }
        let max = fetch.max_body;
        // What is packed may be longer than what is in it, by so much.
        let room = max.saturating_add(max / 1000).saturating_add(1024);
        let opened = self.follow_in_phases(&url, &headers, (&phase, room), Follow::All).await?;
        let coding = opened.head.headers.get("Content-Encoding").unwrap_or_default();
        let packed = packed && coding.eq_ignore_ascii_case("gzip");
        let mut answer = opened.answer(room).await?;
        if packed && !answer.body.is_empty() {
            answer.body = unpacked(&answer.body, max)?;
        }
        if answer.body.len() >= fetch.max_body {
            return Err(HttpError::Body("the read limit is reached".to_owned()));
        }
        Ok(answer)
    }

    /// GET as a probe does it: redirects to the same host followed, body cut at 10 KiB.
    pub async fn follow(&self, url: &Url, headers: &Headers) -> Result<HttpAnswer, HttpError> {
        self.answer(url, headers, &Phase::default()).await
    }

    async fn answer(
        &self,
        url: &Url,
        headers: &Headers,
        phase: &Phase,
    ) -> Result<HttpAnswer, HttpError> {
        let about = (phase, PROBE_BODY);
        let opened = self.follow_in_phases(url, headers, about, Follow::SameHost).await?;
        opened.answer(PROBE_BODY).await
    }

    async fn follow_in_phases(
        &self,
        first: &Url,
        given: &Headers,
        about: (&Phase, usize),
        follow: Follow,
    ) -> Result<Opened, HttpError> {
        let mut url = first.clone();
        let mut headers = given.clone();
        let mut host = given.get("Host").unwrap_or_default().to_owned();
        let mut asked = 0;
        loop {
            asked += 1;
            let opened = self.open(&url, &headers, &host, about).await?;
            let Some(location) = redirect(&opened.head) else { return Ok(opened) };
            let reference = Url::parse(location).map_err(|error| {
                let shown = units::strconv::quote(location);
                let cause = format!("failed to parse Location header {shown}: {error}");
                HttpError::transport(&url, cause)
            })?;
            let next = url.resolve(&reference);
            if follow == Follow::SameHost && next.hostname() != first.hostname() {
                return Ok(opened);
            }
            if asked >= MAX_REDIRECTS {
                let (url, cause) = (location.to_owned(), "stopped after 10 redirects".to_owned());
                return Err(HttpError::Transport { url, cause, plain_answer: false });
            }
            headers = headers_after_redirect(given, first, &url, &next);
            // A name of its own is kept for as long as nobody names another place.
            if reference.is_absolute() || host == url.host {
                host.clear();
            }
            opened.skip().await;
            url = next;
        }
    }

    async fn open(
        &self,
        url: &Url,
        headers: &Headers,
        host: &str,
        (phase, max): (&Phase, usize),
    ) -> Result<Opened, HttpError> {
        phase.awaits_headers();
        let failed = |cause: String| HttpError::transport(url, cause);
        let mut headers = headers.clone();
        if let Some(credentials) = url.credentials()
            && headers.get("Authorization").unwrap_or_default().is_empty()
        {
            headers.set("Authorization", wire::basic(&credentials));
        }
        if let Some(fault) = not_to_be_asked(url, &headers) {
            return Err(failed(fault));
        }
        let proxy = self.proxies.of(url);
        let stream = match &proxy {
            Some(proxy) => proxy.dial(&self.names, url).await.map_err(failed)?,
            None => {
                let port = url.port();
                let no_port = |_| failed(format!("dial tcp: address {port}: invalid port"));
                let port: u16 = port.parse().map_err(no_port)?;
                tcp::dial(&self.names, url.hostname(), port).await.map_err(failed)?
            }
        };
        let ends = texts::ends_of(&stream);
        let host = if host.is_empty() { &url.host } else { host };
        let stream: Box<dyn Stream> = if url.is_tls() {
            let stream = self.handshake(url, stream).await?;
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let about = (url, ends.as_str(), phase);
                let (head, body) = http2::exchange(stream, (host, &headers), about, max).await?;
                return Ok(Opened { head, body: Body::Read(body) });
            }
            Box::new(stream)
        } else {
            Box::new(stream)
        };
        let mut wire = Wire::new(stream, texts::reset(&ends));
        let mut uri = url.request_uri();
        if let Some(proxy) = proxy.filter(|_| !url.is_tls()) {
            uri = format!("{}://{host}{uri}", url.scheme);
            if let Some(authorization) = proxy.authorization() {
                headers.set("Proxy-Authorization", authorization);
            }
        }
        wire.send(&wire::request(&uri, host, &headers, self.caller)).await;
        let head = wire.head().await.map_err(|fault| failed(fault.of_head()))?;
        phase.reads_body();
        Ok(Opened { head, body: Body::Ahead(wire) })
    }

    async fn handshake(
        &self,
        url: &Url,
        stream: TcpStream,
    ) -> Result<tokio_rustls::client::TlsStream<Watched>, HttpError> {
        let ends = texts::ends_of(&stream);
        let failed = |cause: String| HttpError::transport(url, cause);
        let name = rustls_pki_types::ServerName::try_from(url.hostname().to_owned())
            .map_err(|e| failed(e.to_string()))?;
        let first = Arc::new(Mutex::new(Vec::new()));
        let stream = Watched { stream, first: Arc::clone(&first) };
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
        connector.connect(name, stream).await.map_err(|error| {
            let first = first.lock().map(|first| first.clone()).unwrap_or_default();
            if !is_no_record(&error) {
                return failed(texts::handshake(&error, &ends));
            }
            let plain_answer = first == b"HTTP/";
            let cause = if plain_answer {
                "http: server gave HTTP response to HTTPS client"
            } else {
                "tls: first record does not look like a TLS handshake"
            };
            HttpError::Transport { url: url.redacted(), cause: cause.to_owned(), plain_answer }
        })
    }
}

/// What a packed body holds, up to a bound.
fn unpacked(packed: &[u8], max: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    let bound = u64::try_from(max).unwrap_or(u64::MAX);
    flate2::read::MultiGzDecoder::new(packed)
        .take(bound)
        .read_to_end(&mut body)
        .map_err(|_| HttpError::Body("gzip: invalid header".to_owned()))?;
    Ok(body)
}

/// Where an answer sends us.
fn redirect(head: &Head) -> Option<&str> {
    let location = head.headers.get("Location").filter(|location| !location.is_empty())?;
    matches!(head.status, 301 | 302 | 303 | 307 | 308).then_some(location)
}

/// Those of the first request, without credentials for another place, and whence we come.
fn headers_after_redirect(given: &Headers, first: &Url, from: &Url, to: &Url) -> Headers {
    let mut headers = given.clone();
    let (near, far) = (first.hostname(), to.hostname());
    let below =
        far.strip_suffix(near).is_some_and(|front| front.is_empty() || front.ends_with('.'));
    if !below {
        for secret in [
            "Authorization",
            "Cookie",
            "Cookie2",
            "Proxy-Authenticate",
            "Proxy-Authorization",
            "Www-Authenticate",
        ] {
            headers.remove(secret);
        }
    }
    let betrays = from.is_tls() && !to.is_tls();
    if !betrays && given.get("Referer").unwrap_or_default().is_empty() {
        headers.set("Referer", from.as_referer());
    }
    headers
}

/// Why a request cannot be made at all.
fn not_to_be_asked(url: &Url, headers: &Headers) -> Option<String> {
    if !matches!(url.scheme.as_str(), "http" | "https") {
        let scheme = units::strconv::quote(&url.scheme);
        return Some(format!("unsupported protocol scheme {scheme}"));
    }
    let no_host = || url.host.is_empty().then(|| "http: no Host in request URL".to_owned());
    headers.fault().or_else(no_host)
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

/// A connection that remembers how the other side began.
#[derive(Debug)]
struct Watched {
    stream: TcpStream,
    first: Arc<Mutex<Vec<u8>>>,
}

/// Length of what a TLS record begins with.
const RECORD_START: usize = 5;

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Ok(mut first) = self.first.lock() {
            let room = RECORD_START.saturating_sub(first.len());
            first.extend(buffer.filled().iter().skip(before).take(room));
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// One HTTP probe.
pub async fn probe(names: &Names, url: &Url, headers: &Headers, timeout: Duration) -> ProbeAnswer {
    let (client, phase) = (HttpClient::for_probes(names.clone()), Phase::default());
    let asked = client.answer(url, headers, &phase);
    let answer = match tokio::time::timeout(timeout, asked).await {
        // Something answered, but what it would have said is not known.
        Err(_) if phase.reads_body.load(Ordering::Relaxed) => {
            let message = "context deadline exceeded \
                           (Client.Timeout or context cancellation while reading body)";
            return ProbeAnswer::Error { state: "failure", message: message.to_owned() };
        }
        Err(_) => {
            let cause = "context deadline exceeded \
                         (Client.Timeout exceeded while awaiting headers)";
            return ProbeAnswer::Failure(HttpError::transport(url, cause).to_string());
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
pub fn headers_with_defaults(given: &[(String, String)], agent: &str) -> Headers {
    let mut headers = Headers::new(given);
    if headers.get("User-Agent").is_none() {
        headers.set("User-Agent", agent.to_owned());
    }
    match headers.get("Accept") {
        None => headers.set("Accept", "*/*".to_owned()),
        Some("") => headers.remove("Accept"),
        Some(_) => {}
    }
    headers
}

/// Whether what came is not TLS at all.
fn is_no_record(error: &std::io::Error) -> bool {
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
mod tests;
