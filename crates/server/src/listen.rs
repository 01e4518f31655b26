//! Accepting connections: plain or TLS, bounded in number, handshakes side by side.

use crate::head::{self, Aside, Beside};
use crate::reply::{self, AsTold, Reply};
use crate::serve::{Caller, Service};
use crate::target::{BadTarget, Target};
use crate::tls::ServerTls;
use axum::body::{Body, HttpBody};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use ports::{OnExit, Tasks};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 10_000;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// From one request of a connection to the end of the next one's head: Go's idle timeout.
const IDLE_DEADLINE: Duration = Duration::from_secs(90);
const MAX_HEADER_BYTES: usize = 1 << 20;
const MAX_H2_STREAMS: u32 = 250;
/// Go: `bufferBeforeChunkingSize`.
const GO_BUFFER: u64 = 2048;
/// Go: `http2handlerChunkWriteSize`.
const GO_BUFFER_2: u64 = 4096;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const CLEAR: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
const LINGER: Duration = Duration::from_millis(500);

/// Listens at an address. One that names no host means every address of both families, as for Go,
/// where the machine has both.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip().is_unspecified() {
        match sys::listen::on_both_families(address.port()) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
            bound => return TcpListener::from_std(bound?),
        }
    }
    TcpListener::bind(address).await
}

/// A peer's address in its own family.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Serves a listener until the tasks are cancelled.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    service: Arc<Service>,
    tasks: Tasks,
) {
    let cancel = tasks.token();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let accepted = tokio::select! {
            // Cancel-safe: nothing is held.
            () = cancel.cancelled() => return,
            // Cancel-safe: accept loses no connection when dropped.
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok((stream, address)) => (stream, plain(address)),
            Err(error) => {
                tracing::warn!(err = %error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (service, tls, cancel) = (Arc::clone(&service), tls.clone(), cancel.clone());
        tasks.spawn("connection", OnExit::Fine, async move {
            tokio::select! {
                // Cancel-safe: the connection is dropped with the process.
                () = cancel.cancelled() => {}
                // Runs to its end.
                () = connection(stream, address, tls, service) => {}
            }
            drop(slot);
        });
    }
}

/// Tells a client that speaks in the clear so; whether it was one (Go:
/// `tlsRecordHeaderLooksLikeHTTP`).
async fn told_to_use_tls(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    let got = stream.peek(&mut first).await?;
    // No record of TLS begins with one of these.
    if !first.iter().take(got).take(1).all(|byte| b"GHPO".contains(byte)) {
        return Ok(false);
    }
    stream.read_exact(&mut first).await?;
    if [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].contains(&&first) {
        stream.write_all(CLEAR).await?;
        stream.shutdown().await?;
        // What is left unread would make the answer be lost.
        let mut rest = tokio::io::sink();
        let _ = tokio::time::timeout(LINGER, tokio::io::copy(stream, &mut rest)).await;
    }
    Ok(true)
}

async fn connection(
    mut stream: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    service: Arc<Service>,
) {
    // A failure only costs latency.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        let caller = Caller { address, certificates: Vec::new() };
        return serve(stream, Protocol::Http1, caller, service).await;
    };
    let clear = tokio::time::timeout(HANDSHAKE_DEADLINE, told_to_use_tls(&mut stream)).await;
    if !matches!(clear, Ok(Ok(false))) {
        return;
    }
    match tokio::time::timeout(HANDSHAKE_DEADLINE, tls.accept(stream)).await {
        Ok(Ok(stream)) => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificates = chain.iter().map(|c| c.clone().into_owned()).collect();
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            serve(stream, protocol, Caller { address, certificates }, service).await;
        }
        Ok(Err(error)) => tracing::debug!(err = %error, %address, "TLS handshake error"),
        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
    }
}

async fn serve<S>(stream: S, protocol: Protocol, caller: Caller, service: Arc<Service>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let caller = Arc::new(caller);
    let answers = move |request| {
        let (service, caller) = (Arc::clone(&service), Arc::clone(&caller));
        async move { service.answer(request, &caller).await }
    };
    http(stream, protocol, answers).await;
}

/// An answer that Go's server would have begun to send before it knew its length.
fn in_chunks(reply: Reply) -> Reply {
    let long = reply.body().size_hint().exact().is_some_and(|length| length > GO_BUFFER);
    let told = reply.extensions().get::<AsTold>().is_some();
    if !long || told || reply.headers().contains_key(CONTENT_LENGTH) {
        return reply;
    }
    reply.map(|body| Body::from_stream(body.into_data_stream()))
}

/// An answer as Go's server sends it over HTTP/2: with a length if that was known before anything had to
/// be sent, and without its body if only the head was asked for, which hyper leaves out of HTTP/1 alone.
fn over_http2(reply: Reply, method: &Method) -> Reply {
    let (mut head, mut body) = reply.into_parts();
    let asked_for_head = method == Method::HEAD;
    let has_body = !head.status.is_informational()
        && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    let told = head.headers.contains_key(CONTENT_LENGTH);
    if let Some(length) = body.size_hint().exact().filter(|_| !told && has_body) {
        if length > GO_BUFFER_2 {
            body = Body::from_stream(body.into_data_stream());
        } else if length > 0 || !asked_for_head {
            head.headers.insert(CONTENT_LENGTH, length.into());
        }
    }
    Reply::from_parts(head, if asked_for_head { Body::empty() } else { body })
}

/// What was agreed on in the handshake; nobody gets to speak HTTP/2 without that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 or 1.0.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Serves one connection with what `answers` says.
pub(crate) async fn http<S, A, F>(stream: S, protocol: Protocol, answers: A)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    let served = match protocol {
        Protocol::Http1 => {
            let Some(stream) = head::read(stream).await else { return };
            let (upgraded, asides) = (stream.upgraded(), stream.asides());
            let handler = service_fn(move |mut request: Request<Incoming>| {
                let mut old = false;
                let reply = match asides.next() {
                    Aside::Refused(status, text) => Err(reply::refused(status, text)),
                    Aside::Request(beside) => {
                        old = beside.is_old();
                        beside.restore(&mut request);
                        Ok(answers(request))
                    }
                };
                let upgraded = Arc::clone(&upgraded);
                async move {
                    let reply = match reply {
                        Ok(reply) => reply.await,
                        Err(refused) => refused,
                    };
                    if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
                        upgraded.store(true, Ordering::Relaxed);
                    }
                    Ok::<_, Infallible>(Beside::answered(old, in_chunks(reply)))
                }
            });
            builder
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_DEADLINE)
                .max_buf_size(MAX_HEADER_BYTES)
                .max_headers(head::MOST_FIELDS)
                .title_case_headers(true)
                .keep_alive(true);
            let builder = builder.http1_only();
            builder.serve_connection_with_upgrades(TokioIo::new(stream), handler).await
        }
        Protocol::Http2 => {
            let handler = service_fn(move |request: Request<Incoming>| {
                // What Go's parser refuses gets no answer here: its stream is reset.
                let method = request.method().clone();
                let reply = Target::of(&request).map(|_| answers(request));
                async move { Ok::<_, BadTarget>(over_http2(reply?.await, &method)) }
            });
            builder
                .http2()
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_H2_STREAMS)
                .max_header_list_size(1 << 20)
                .keep_alive_interval(Some(Duration::from_secs(60)));
            let builder = builder.http2_only();
            builder.serve_connection(TokioIo::new(stream), handler).await
        }
    };
    if let Err(error) = served {
        tracing::trace!(err = %error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[tokio::test]
    async fn a_client_in_the_clear_is_told_to_use_tls() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap();
        for (said, answer) in [
            ("GET / HTTP/1.1\r\n\r\n", CLEAR),
            ("OPTIONS * HTTP/1.1\r\n\r\n", CLEAR),
            ("GOT / HTTP/1.1\r\n\r\n", b""),
        ] {
            let mut client = TcpStream::connect(own).await.unwrap();
            client.write_all(said.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            assert!(told_to_use_tls(&mut server).await.unwrap(), "{said}");
            drop(server);
            let mut got = Vec::new();
            // What was not read may reset the connection of one that gets no answer.
            let _ = client.read_to_end(&mut got).await;
            assert_eq!(got, answer, "{said}");
        }
        let mut client = TcpStream::connect(own).await.unwrap();
        client.write_all(&[22, 3, 1]).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert!(!told_to_use_tls(&mut server).await.unwrap());
        drop(client);
        assert_eq!(server.read(&mut [0; 9]).await.unwrap(), 3, "nothing was taken");
    }

    #[test]
    fn long_answers_come_in_chunks_unless_their_length_was_said() {
        let length = |bytes: usize, said: bool| {
            let mut reply = Reply::new(Body::from(vec![b'x'; bytes]));
            if said {
                reply.headers_mut().insert(CONTENT_LENGTH, bytes.into());
            }
            in_chunks(reply).body().size_hint().exact()
        };
        assert_eq!(length(2048, false), Some(2048));
        assert_eq!(length(2049, false), None);
        assert_eq!(length(2049, true), Some(2049));
    }

    #[test]
    fn over_http2_the_length_of_a_short_answer_is_said() {
        let length = |bytes: usize, status: StatusCode, method: &Method| {
            let mut reply = Reply::new(Body::from(vec![b'x'; bytes]));
            *reply.status_mut() = status;
            let reply = over_http2(reply, method);
            let said = reply.headers().get(CONTENT_LENGTH).map(|said| said.to_str().unwrap());
            (said.map(str::to_owned), reply.body().size_hint().exact())
        };
        let said = |text: &str| Some(text.to_owned());
        let ok = StatusCode::OK;
        assert_eq!(length(4096, ok, &Method::GET), (said("4096"), Some(4096)));
        assert_eq!(length(4097, ok, &Method::GET), (None, None));
        assert_eq!(length(0, ok, &Method::GET), (said("0"), Some(0)));
        assert_eq!(length(0, StatusCode::NOT_MODIFIED, &Method::GET), (None, Some(0)));
        assert_eq!(length(5, ok, &Method::HEAD), (said("5"), Some(0)));
        assert_eq!(length(0, ok, &Method::HEAD), (None, Some(0)));
        assert_eq!(length(4097, ok, &Method::HEAD), (None, Some(0)));
    }

    #[tokio::test]
    async fn an_address_without_a_host_is_every_address_of_both_families() {
        let both = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        let listener = bind((Ipv4Addr::UNSPECIFIED, 0).into()).await.unwrap();
        let own = listener.local_addr().unwrap();
        assert_eq!(own.is_ipv6(), both);
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, own.port())).await.unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(plain(peer), client.local_addr().unwrap(), "it is shown in its own family");
        let taken = bind((Ipv4Addr::UNSPECIFIED, own.port()).into()).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let one = bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        assert!(one.local_addr().unwrap().is_ipv4());
    }
}
