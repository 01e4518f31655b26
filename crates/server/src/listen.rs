//! Accepts connections: plain or TLS, bounded in number, with concurrent handshakes.

use crate::connections::{self, BETWEEN_REQUESTS, Connections, Limits, Place};
use crate::head::{self, HeadVerdict, RequestExtras};
use crate::reply::{self, Reply, Verbatim};
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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Concurrent connections of one listener. An unauthenticated one costs about 30 KiB.
pub(crate) const LIMITS: Limits =
    Limits { strangers: 512, known: 4096, of_one: 2048, buffered_bytes: 8 << 20 };
/// The same for the read-only port, where nobody authenticates and responses are large.
const READ_ONLY_LIMITS: Limits = Limits { buffered_bytes: 64 << 20, ..LIMITS };
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Go: `defaultMaxStreams`.
const MAX_H2_STREAMS: u32 = 250;
/// The maximal size of all headers of an HTTP/2 request; exec commands, which can be long, use
/// HTTP/1.
const MAX_H2_HEADER_BYTES: u32 = 128 << 10;
/// The HTTP/2 receive windows of a stream and of a connection.
const H2_WINDOW: u32 = 64 << 10;
const H2_CONNECTION_WINDOW: u32 = 256 << 10;
/// The response bytes buffered for an HTTP/2 client that does not read.
const H2_SEND_BUFFER: usize = 64 << 10;
/// The time limit for a graceful shutdown of a connection.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Go: `bufferBeforeChunkingSize`.
const GO_BUFFER: u64 = 2048;
/// Go: `http2handlerChunkWriteSize`.
const GO_BUFFER_2: u64 = 4096;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const CLEAR: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
const LINGER: Duration = Duration::from_millis(500);

/// Listens on an address. An unspecified address means all addresses of both families, as in Go,
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

/// A peer's address; an IPv4-mapped one as IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A connection that was accepted.
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) place: Place,
}

/// The next connection, with a place; a connection that must make room for it is evicted.
pub(crate) async fn accept(listener: &TcpListener, connections: &Connections) -> Accepted {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let address = plain(address);
                // A failure only costs latency, or delays the detection of a dead peer.
                let _ = stream.set_nodelay(true);
                let _ = sys::listen::keep_alive(&stream);
                return Accepted { stream, address, place: connections.enter(address.ip()) };
            }
            Err(error) => {
                tracing::warn!(err = %error, "Failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a listener until the tasks are cancelled.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    service: Arc<Service>,
    tasks: Tasks,
) {
    let cancel = tasks.token();
    let connections = Connections::new(if tls.is_some() { LIMITS } else { READ_ONLY_LIMITS });
    loop {
        let accepted = tokio::select! {
            // Cancel-safe: nothing is held.
            () = cancel.cancelled() => return,
            // Cancel-safe: accept loses no connection when dropped.
            accepted = accept(&listener, &connections) => accepted,
        };
        let (service, tls, cancel) = (Arc::clone(&service), tls.clone(), cancel.clone());
        // Boxed: the future is large, and spawning moves it.
        let served = Box::pin(connection(accepted, tls, service));
        tasks.spawn("connection", OnExit::Alone, async move {
            tokio::select! {
                // Cancel-safe: the connection is dropped with the process.
                () = cancel.cancelled() => {}
                // Runs to its end.
                () = served => {}
            }
        });
    }
}

/// Responds to a client that sends plain HTTP to the TLS port; returns whether it did (Go:
/// `tlsRecordHeaderLooksLikeHTTP`).
async fn rejected_plain_http(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    let got = stream.peek(&mut first).await?;
    // No TLS record begins with one of these.
    if !first.iter().take(got).take(1).all(|byte| b"GHPO".contains(byte)) {
        return Ok(false);
    }
    stream.read_exact(&mut first).await?;
    if [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].contains(&&first) {
        stream.write_all(CLEAR).await?;
        stream.shutdown().await?;
        // Closing with unread input would reset the connection before the response is read.
        let mut rest = tokio::io::sink();
        let _ = tokio::time::timeout(LINGER, tokio::io::copy(stream, &mut rest)).await;
    }
    Ok(true)
}

async fn connection(accepted: Accepted, tls: Option<Arc<ServerTls>>, service: Arc<Service>) {
    let Accepted { mut stream, address, place } = accepted;
    let Some(tls) = tls else {
        let caller = Caller { address, certificates: Vec::new(), place: place.clone() };
        return serve(place.watch(stream), Protocol::Http1, caller, service).await;
    };
    let handshake = async {
        match rejected_plain_http(&mut stream).await {
            Ok(false) => tls.accept(place.watch(stream)).await.map(Some),
            Ok(true) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let handshake = tokio::select! {
        // Cancel-safe: an evicted connection needs no handshake.
        () = place.over() => return,
        // Runs to its end, or to that of the connection.
        done = tokio::time::timeout(HANDSHAKE_DEADLINE, handshake) => done,
    };
    match handshake {
        Ok(Ok(Some(stream))) => {
            place.meet();
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let certificates = chain.iter().map(|c| c.clone().into_owned()).collect();
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            serve(stream, protocol, Caller { address, certificates, place }, service).await;
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::debug!(err = %error, %address, "TLS handshake error"),
        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
    }
}

async fn serve<S>(stream: S, protocol: Protocol, caller: Caller, service: Arc<Service>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = caller.place.clone();
    let caller = Arc::new(caller);
    let answers = move |request| {
        let (service, caller) = (Arc::clone(&service), Arc::clone(&caller));
        async move { service.answer(request, &caller).await }
    };
    http(stream, protocol, place, answers).await;
}

/// A response that Go's server would have begun to send before it knew its length.
fn in_chunks(reply: Reply) -> Reply {
    let long = reply.body().size_hint().exact().is_some_and(|length| length > GO_BUFFER);
    let from_runtime = reply.extensions().get::<Verbatim>().is_some();
    if !long || from_runtime || reply.headers().contains_key(CONTENT_LENGTH) {
        return reply;
    }
    reply.map(|body| Body::from_stream(body.into_data_stream()))
}

/// A response as Go's server sends it over HTTP/2: with a length if that was known before anything
/// had to be sent, and without a body for HEAD, which hyper does for HTTP/1 only.
fn over_http2(reply: Reply, method: &Method) -> Reply {
    let (mut head, mut body) = reply.into_parts();
    let asked_for_head = method == Method::HEAD;
    let has_body = !head.status.is_informational()
        && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    let has_length = head.headers.contains_key(CONTENT_LENGTH);
    if let Some(length) = body.size_hint().exact().filter(|_| !has_length && has_body) {
        if length > GO_BUFFER_2 {
            body = Body::from_stream(body.into_data_stream());
        } else if length > 0 || !asked_for_head {
            head.headers.insert(CONTENT_LENGTH, length.into());
        }
    }
    Reply::from_parts(head, if asked_for_head { Body::empty() } else { body })
}

/// Counts the bytes of a response that is in memory.
fn weigh(reply: &Reply, answering: &connections::Request) {
    let bytes = reply.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    answering.weighs(bytes.unwrap_or(0));
}

/// The protocol negotiated in the handshake; HTTP/2 is not served without ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 or 1.0.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Serves one connection with the handler `answers`, until either side closes it or it is evicted.
pub(crate) async fn http<S, A, F>(stream: S, protocol: Protocol, place: Place, answers: A)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let served = match protocol {
        Protocol::Http1 => http1(stream, place, answers).await,
        Protocol::Http2 => http2(stream, place, answers).await,
    };
    if let Err(error) = served {
        tracing::trace!(err = %error, "connection ended");
    }
}

type Served = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn http1<S, A, F>(stream: S, place: Place, answers: A) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let Some(stream) = head::read(stream, place.clone()).await else { return Ok(()) };
    let (current_request, over) = (stream.current_request(), place.clone());
    let handler = service_fn(move |mut request: Request<Incoming>| {
        let answering = place.request();
        request.extensions_mut().insert(answering.clone());
        let mut old = false;
        let reply = match current_request.verdict() {
            HeadVerdict::Refused(status, text) => Err(reply::refused(status, text)),
            HeadVerdict::Request(extras) => {
                old = extras.is_old();
                extras.restore(&mut request);
                Ok(Box::pin(answers(request)))
            }
        };
        let current_request = current_request.clone();
        async move {
            let reply = match reply {
                Ok(reply) => reply.await,
                Err(refused) => refused,
            };
            current_request.answered(reply.status() == StatusCode::SWITCHING_PROTOCOLS);
            weigh(&reply, &answering);
            let reply = reply::holding(in_chunks(reply), answering);
            Ok::<_, Infallible>(RequestExtras::answered(old, reply))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(BETWEEN_REQUESTS)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(head::MOST_FIELDS)
        .title_case_headers(true)
        .keep_alive(true);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), handler);
    let mut connection = pin!(connection);
    tokio::select! {
        // Runs to its end.
        served = connection.as_mut() => return served,
        // Cancel-safe: only waits.
        () = over.over() => connection.as_mut().graceful_shutdown(),
    }
    tokio::time::timeout(SHUTDOWN_TIMEOUT, connection).await.unwrap_or(Ok(()))
}

async fn http2<S, A, F>(stream: S, place: Place, answers: A) -> Served
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Reply> + Send + 'static,
{
    let over = place.clone();
    let handler = service_fn(move |mut request: Request<Incoming>| {
        let answering = place.request();
        request.extensions_mut().insert(answering.clone());
        // A target that Go's parser rejects gets no response: its stream is reset.
        let method = request.method().clone();
        // Boxed, so that a stream whose response is not read holds only that.
        let reply = Target::of(&request).map(|_| Box::pin(answers(request)));
        async move {
            let reply = reply?.await;
            weigh(&reply, &answering);
            Ok::<_, BadTarget>(reply::holding(over_http2(reply, &method), answering))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(MAX_H2_HEADER_BYTES)
        .initial_stream_window_size(H2_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_send_buf_size(H2_SEND_BUFFER)
        .keep_alive_interval(Some(Duration::from_secs(60)));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), handler));
    tokio::select! {
        // Runs to its end.
        served = connection.as_mut() => return served,
        // Cancel-safe: only waits.
        () = over.over() => connection.as_mut().graceful_shutdown(),
    }
    tokio::time::timeout(SHUTDOWN_TIMEOUT, connection).await.unwrap_or(Ok(()))
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
            assert!(rejected_plain_http(&mut server).await.unwrap(), "{said}");
            drop(server);
            let mut got = Vec::new();
            // Unread input may reset the connection of a client that gets no response.
            let _ = client.read_to_end(&mut got).await;
            assert_eq!(got, answer, "{said}");
        }
        let mut client = TcpStream::connect(own).await.unwrap();
        client.write_all(&[22, 3, 1]).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        assert!(!rejected_plain_http(&mut server).await.unwrap());
        drop(client);
        assert_eq!(server.read(&mut [0; 9]).await.unwrap(), 3, "nothing was taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_nothing_is_not_waited_for() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (protocol, said) in [
            (Protocol::Http1, &b""[..]),
            (Protocol::Http1, b"GET / HTTP/1.1\r\n"),
            (Protocol::Http2, b""),
            (Protocol::Http2, b"PRI * HTTP/2.0"),
            (Protocol::Http2, preface),
        ] {
            let place = Connections::new(LIMITS).enter(Ipv4Addr::LOCALHOST.into());
            let (mut client, server) = tokio::io::duplex(1 << 16);
            client.write_all(said).await.unwrap();
            let begin = tokio::time::Instant::now();
            let answers = |_| async { Reply::new(Body::empty()) };
            http(place.watch(server), protocol, place, answers).await;
            let took = begin.elapsed();
            let most = connections::FIRST_REQUEST + 2 * SHUTDOWN_TIMEOUT;
            assert!(took >= connections::FIRST_REQUEST && took < most, "{said:?}: {took:?}");
        }
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
