//! A client that sends exactly the bytes it is told, over TLS, and shows the answer as it came.

pub mod http2;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

const DEADLINE: Duration = Duration::from_secs(20);
/// More than any page that is compared.
const MOST: usize = 64 << 20;

/// How to talk to one server: in the clear, or over TLS with or without a client certificate.
#[derive(Debug, Clone)]
pub struct Wire(Option<Arc<ClientConfig>>);

/// An answer: status line, headers in order, decoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// The status code.
    pub status: u16,
    /// Header names in lower case with their values.
    pub headers: Vec<(String, String)>,
    /// The body without its chunks.
    pub body: Vec<u8>,
}

impl Answer {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    /// A caller without a certificate.
    pub fn plain() -> anyhow::Result<Wire> {
        let builder = builder()?;
        Ok(Wire(Some(Arc::new(builder.with_no_client_auth()))))
    }

    /// A caller without TLS.
    #[must_use]
    pub fn clear() -> Wire {
        Wire(None)
    }

    /// A caller with a certificate.
    pub fn with_certificate(certificate: &Path, key: &Path) -> anyhow::Result<Wire> {
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&std::fs::read(key)?)?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        // Whatever the certificate is: the server has to judge it.
        let pair = rustls::sign::SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let config = builder()?.with_client_cert_resolver(Arc::new(pair));
        Ok(Wire(Some(Arc::new(config))))
    }

    /// Sends bytes to a port of this machine and reads one answer. `head` means that the answer to
    /// a request has no body.
    pub fn send(&self, port: u16, request: &[u8], head: bool) -> anyhow::Result<Answer> {
        let socket = connect(port)?;
        let Some(tls) = &self.0 else { return ask(socket, request, head) };
        let name = ServerName::try_from("localhost")?;
        let connection = ClientConnection::new(Arc::clone(tls), name)?;
        ask(StreamOwned::new(connection, socket), request, head)
    }

    /// A connection over TLS, for whoever says by himself what he sends.
    pub fn open(&self, port: u16) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
        let tls = self.0.as_ref().context("a caller without TLS")?;
        let name = ServerName::try_from("localhost")?;
        let connection = ClientConnection::new(Arc::clone(tls), name)?;
        Ok(StreamOwned::new(connection, connect(port)?))
    }

    /// Sends requests one after the other on one connection, each when the answer to the one before is
    /// there; fewer answers if the server ends the connection.
    pub fn converse(&self, port: u16, requests: &[&[u8]]) -> anyhow::Result<Vec<Answer>> {
        let socket = connect(port)?;
        let Some(tls) = &self.0 else { return Ok(answers(socket, requests)) };
        let name = ServerName::try_from("localhost")?;
        let connection = ClientConnection::new(Arc::clone(tls), name)?;
        Ok(answers(StreamOwned::new(connection, socket), requests))
    }
}

/// A connection to a port of this machine.
fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", port)).context("connect")?;
    socket.set_read_timeout(Some(DEADLINE))?;
    socket.set_write_timeout(Some(DEADLINE))?;
    Ok(socket)
}

/// The answers to requests one after the other; fewer if the server ends the connection.
fn answers(mut stream: impl Read + Write, requests: &[&[u8]]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for request in requests {
        let sent = stream.write_all(request).and_then(|()| stream.flush());
        match (sent, read_answer(&mut stream, false)) {
            (Ok(()), Ok(answer)) => answers.push(answer),
            _ => break,
        }
    }
    answers
}

/// A connection over TLS that nothing was said on yet.
pub fn connect_tls(port: u16) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let config = Arc::new(builder()?.with_no_client_auth());
    let mut socket = connect(port)?;
    let mut connection = ClientConnection::new(config, ServerName::try_from("localhost")?)?;
    connection.complete_io(&mut socket).context("handshake")?;
    Ok(StreamOwned::new(connection, socket))
}

/// A connection that speaks HTTP/2; an error if the server does not.
pub fn connect_http2(port: u16) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut config = builder()?.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = connect(port)?;
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost")?)?;
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").context("preface")?;
    stream.flush()?;
    anyhow::ensure!(stream.conn.alpn_protocol() == Some(b"h2"), "no HTTP/2 was agreed on");
    Ok(stream)
}

/// Sends and reads. A server that refuses may close before it was told everything: its answer counts.
fn ask(mut stream: impl Read + Write, request: &[u8], head: bool) -> anyhow::Result<Answer> {
    let sent = stream.write_all(request).and_then(|()| stream.flush());
    match (read_answer(&mut stream, head), sent) {
        (Ok(answer), _) => Ok(answer),
        (Err(_), Err(error)) => Err(error).context("write"),
        (Err(error), Ok(())) => Err(error),
    }
}

/// Reads one answer from a stream.
pub fn read_answer(stream: &mut impl Read, head: bool) -> anyhow::Result<Answer> {
    let mut raw = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    let end = loop {
        if let Some(end) = raw.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        let got = stream.read(&mut piece).context("read head")?;
        if got == 0 {
            bail!("connection closed after {:?}", String::from_utf8_lossy(&raw));
        }
        raw.extend_from_slice(&piece[..got]);
    };
    let text = String::from_utf8_lossy(&raw[..end]).into_owned();
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let mut words = first.splitn(3, ' ');
    let version = words.next().unwrap_or_default().to_owned();
    let status = words.next().unwrap_or_default().parse().context("status line")?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut answer = Answer { version, status, headers, body: raw.split_off(end + 4) };
    if status == 101 || head || status == 204 || status == 304 {
        return Ok(answer);
    }
    let length = answer.header("content-length").map(str::parse::<usize>).transpose()?;
    let chunked = answer.header("transfer-encoding").is_some_and(|v| v.contains("chunked"));
    loop {
        if let Some(whole) = length.filter(|length| answer.body.len() >= *length) {
            answer.body.truncate(whole);
            return Ok(answer);
        }
        if chunked && let Some(body) = unchunk(&answer.body) {
            answer.body = body;
            return Ok(answer);
        }
        let got = match stream.read(&mut piece) {
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(error).context("read body"),
        };
        if got == 0 {
            return Ok(answer);
        }
        answer.body.extend_from_slice(&piece[..got]);
        if answer.body.len() > MOST {
            bail!("the answer has no end");
        }
    }
}

/// The body of complete chunks; `None` while some are missing.
fn unchunk(raw: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    let mut rest = raw;
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn builder() -> anyhow::Result<Builder> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(schemes))))
}

/// The kubelet's certificate is its own; this client only compares.
#[derive(Debug)]
struct Anybody(Vec<SignatureScheme>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_lengths_are_read_alike() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let counted = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde";
        for raw in [&chunked[..], &counted[..]] {
            let answer = read_answer(&mut &raw[..], false).unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "abcde"));
        }
        assert!(read_answer(&mut &b"HTTP/1.1 200"[..], false).is_err());
    }
}
