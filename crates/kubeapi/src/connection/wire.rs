//! Connections to the API server, as many as the requests of one wire need.
//!
//! ```text
//!   request ─▶ a connection with a free stream? ──yes──▶ Slot (released at the end of the response)
//!                     │ no                                 ▲
//!                     └─▶ one dial for all waiting requests ┘
//! ```
//!
//! A server limits the streams of a connection (`SETTINGS_MAX_CONCURRENT_STREAMS`, for
//! kube-apiserver `--http2-max-streams-per-connection`), and a watch holds its stream for minutes.
//! A request above that limit would wait inside the HTTP/2 layer for a watch to end; therefore
//! streams are counted here, and another connection is opened before that happens.
//!
//! Promises: no request waits for another request's stream; there is one dial at a time, whose
//! failure is returned to all requests that waited for it and to those sent right after it;
//! connections that are no longer needed are closed after a while; a server with HTTP/1.1 only is
//! served by hyper's own pool.

use super::ConnectionError;
use super::dial::Dial;
use super::transport::Peer;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use http::uri::{Scheme, Uri};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, Connection as Http2, SendRequest};
use hyper::rt::Executor;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::{BoxError, Service};

/// An idle connection is pinged this often…
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// …and closed when there is no response within this time; together under 30 s.
const PING_DEADLINE: Duration = Duration::from_secs(10);
/// How long it may take until a connection is usable, TLS and the server's settings included.
const DIAL_DEADLINE: Duration = Duration::from_secs(15);
/// An additional connection is closed when it was unused for this long.
const IDLE: Duration = Duration::from_secs(90);
/// Maximal connections of one wire. Beyond that requests wait inside the HTTP/2 layer.
const CONNECTIONS: usize = 64;
/// After a failed dial there is no new one for this long: requests fail with the same error.
const HOLD_OFF: Duration = Duration::from_millis(200);
/// How often a request that was not sent is retried on another connection.
const RESENDS: usize = 3;
/// How often the server's stream limit is polled, until it has sent one and later on.
const FIRST_LOOKS: Duration = Duration::from_millis(2);
const LOOKS: Duration = Duration::from_secs(1);

type Connector = HttpsConnector<Dial>;
type Stream = MaybeHttpsStream<super::dial::Way>;
/// Hyper's pool, for servers without HTTP/2.
type Plain = HyperClient<FirstThen, Body>;
type Dialling = BoxFuture<'static, Result<Opened, DialError>>;

/// The dial failed; returned to all requests that waited for it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("client error (Connect): {0}")]
pub(crate) struct DialError(Arc<str>);

impl DialError {
    fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The connection broke, or was closed during the request.
    #[error("client error (SendRequest)")]
    Send(#[source] hyper::Error),
    /// The same, over HTTP/1.1.
    #[error(transparent)]
    Plain(#[from] hyper_util::client::legacy::Error),
}

/// The result of a dial.
#[derive(Clone)]
enum Opened {
    Http2 { sender: SendRequest<Body>, limit: watch::Receiver<usize> },
    Plain(Box<Plain>),
}

/// The connections of some lanes.
#[derive(Debug)]
pub(crate) struct Wire {
    peer: Arc<Peer>,
    state: Mutex<State>,
    dialled: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    connector: Connector,
    /// Counts [`Wire::redial`]: older connections are not used for new requests.
    generation: u64,
    /// In the order in which they were opened: the first with a free stream is used.
    open: Vec<Link>,
    plain: Option<Plain>,
    dialling: Option<(u64, WeakShared<Dialling>)>,
    /// The last dial, if it failed.
    failed: Option<(Instant, DialError)>,
    /// The next number of a link or dial.
    next: u64,
}

/// One connection.
#[derive(Debug)]
struct Link {
    number: u64,
    sender: SendRequest<Body>,
    limit: watch::Receiver<usize>,
    streams: usize,
    /// Since when it has had no stream.
    idle: Option<Instant>,
}

impl Link {
    fn has_room(&self) -> bool {
        self.streams < *self.limit.borrow()
    }
}

impl State {
    /// A stream on a connection that has one free.
    fn free(&mut self, now: Instant) -> Option<(u64, SendRequest<Body>)> {
        self.open.retain(|link| !link.sender.is_closed());
        let spare = |link: &Link| link.idle.is_some_and(|since| now > since + IDLE);
        if let Some(at) = self.open.iter().rposition(spare)
            && self.open.len() > 1
        {
            self.open.remove(at);
        }
        let full = self.open.len() >= CONNECTIONS;
        let link = match self.open.iter().position(Link::has_room) {
            Some(at) => self.open.get_mut(at),
            None if full => self.open.iter_mut().min_by_key(|link| link.streams),
            None => None,
        }?;
        link.streams += 1;
        link.idle = None;
        Some((link.number, link.sender.clone()))
    }

    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Adds a connection that was dialled for this generation.
    fn keep(&mut self, opened: Opened, now: Instant) {
        match opened {
            Opened::Plain(client) => self.plain = Some(*client),
            Opened::Http2 { sender, limit } => {
                let number = self.number();
                self.open.push(Link { number, sender, limit, streams: 0, idle: Some(now) });
            }
        }
    }
}

/// Which connection a request uses.
#[derive(Debug)]
enum Way {
    Http2(SendRequest<Body>, Slot),
    Plain(Box<Plain>),
}

/// A stream of a connection, released when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    wire: Arc<Wire>,
    link: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.wire.lock();
        if let Some(link) = state.open.iter_mut().find(|link| link.number == self.link) {
            link.streams = link.streams.saturating_sub(1);
            if link.streams == 0 {
                link.idle = Some(Instant::now());
            }
        }
    }
}

impl Wire {
    pub(crate) fn new(peer: Arc<Peer>) -> Result<Self, ConnectionError> {
        let connector = peer.connector(&[b"h2", b"http/1.1"])?;
        let mut state = State {
            connector,
            generation: 0,
            open: Vec::new(),
            plain: None,
            dialling: None,
            failed: None,
            next: 0,
        };
        if peer.scheme() == &Scheme::HTTP {
            state.plain = Some(plain(FirstThen::new(None, state.connector.clone())));
        }
        Ok(Self { peer, state: Mutex::new(state), dialled: watch::Sender::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with every [`Wire::redial`].
    pub(crate) fn redialled(&self) -> watch::Receiver<u64> {
        self.dialled.subscribe()
    }

    /// The generation of the connections in use; see [`Wire::redial_after`].
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// The next request opens a new connection. Old ones stay open while a request uses them.
    pub(crate) fn redial(&self) {
        let generation = self.generation();
        self.redial_after(generation);
    }

    /// The same, unless it was done since `generation` was current: of a hundred requests without a
    /// response only the first one redials.
    pub(crate) fn redial_after(&self, generation: u64) {
        let connector = match self.peer.connector(&[b"h2", b"http/1.1"]) {
            Ok(connector) => connector,
            Err(err) => {
                tracing::warn!(err = %err, "keeping the old API server connection");
                return;
            }
        };
        let mut state = self.lock();
        if state.generation != generation {
            return;
        }
        state.generation = state.generation.wrapping_add(1);
        state.open.clear();
        (state.dialling, state.failed) = (None, None);
        let plain = || plain(FirstThen::new(None, connector.clone()));
        state.plain = (self.peer.scheme() == &Scheme::HTTP).then(plain);
        state.connector = connector;
        let generation = state.generation;
        drop(state);
        self.dialled.send_replace(generation);
    }

    /// Sends a request once there is a stream for it; the slot must be held until the end of the
    /// response.
    pub(crate) async fn send(
        self: &Arc<Self>,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<Slot>), WireError> {
        let mut resends = 0;
        loop {
            let (mut sender, slot) = match self.way().await? {
                Way::Plain(client) => return Ok((client.request(request).await?, None)),
                Way::Http2(sender, slot) => (sender, slot),
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Some(slot))),
                Err(mut error) => match error.take_message() {
                    // The connection was closed before the request was sent.
                    Some(unsent) if resends < RESENDS => {
                        resends += 1;
                        request = unsent;
                        self.lock().open.retain(|link| link.number != slot.link);
                    }
                    _ => return Err(WireError::Send(error.into_error())),
                },
            }
        }
    }

    async fn way(self: &Arc<Self>) -> Result<Way, DialError> {
        loop {
            let (number, generation, dialling) = {
                let mut state = self.lock();
                if let Some(client) = &state.plain {
                    return Ok(Way::Plain(Box::new(client.clone())));
                }
                if let Some((link, sender)) = state.free(Instant::now()) {
                    return Ok(Way::Http2(sender, Slot { wire: Arc::clone(self), link }));
                }
                if let Some((at, error)) = &state.failed
                    && at.elapsed() < HOLD_OFF
                {
                    return Err(error.clone());
                }
                let (number, dialling) = self.dial(&mut state);
                (number, state.generation, dialling)
            };
            let opened = dialling.await;
            let mut state = self.lock();
            if state.dialling.as_ref().is_some_and(|(current, _)| *current == number) {
                state.dialling = None;
                let now = Instant::now();
                state.failed = opened.as_ref().err().map(|error| (now, error.clone()));
                if let Ok(opened) = &opened
                    && state.generation == generation
                {
                    state.keep(opened.clone(), now);
                }
            }
            drop(state);
            opened?;
        }
    }

    /// The dial in progress, or a new one.
    fn dial(&self, state: &mut State) -> (u64, Shared<Dialling>) {
        if let Some((number, dialling)) = &state.dialling
            && let Some(dialling) = dialling.upgrade()
        {
            return (*number, dialling);
        }
        let dialling = dial(Arc::clone(&self.peer), state.connector.clone()).boxed().shared();
        let number = state.number();
        state.dialling = dialling.downgrade().map(|weak| (number, weak));
        (number, dialling)
    }
}

/// Returns the connection that showed that the server has no HTTP/2, then dials new ones.
#[derive(Debug, Clone)]
struct FirstThen {
    first: Arc<Mutex<Option<Stream>>>,
    then: Connector,
}

impl FirstThen {
    fn new(first: Option<Stream>, then: Connector) -> Self {
        Self { first: Arc::new(Mutex::new(first)), then }
    }
}

impl Service<Uri> for FirstThen {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.then.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        match self.first.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(first) => std::future::ready(Ok(first)).boxed(),
            None => self.then.call(target).boxed(),
        }
    }
}

fn plain(connector: FirstThen) -> Plain {
    HyperClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(300))
        .build(connector)
}

async fn dial(peer: Arc<Peer>, connector: Connector) -> Result<Opened, DialError> {
    match tokio::time::timeout(DIAL_DEADLINE, open(&peer, connector)).await {
        Ok(opened) => opened,
        Err(_) => {
            let seconds = DIAL_DEADLINE.as_secs();
            Err(DialError::new(&format!("no connection within {seconds}s")))
        }
    }
}

async fn open(peer: &Peer, mut connector: Connector) -> Result<Opened, DialError> {
    let target = peer.uri(&Uri::default()).map_err(|e| DialError::new(&e.to_string()))?;
    let stream = connector.call(target).await;
    let stream = stream.map_err(|error| DialError::new(&crate::error::chain(&*error)))?;
    if !stream.connected().is_negotiated_h2() {
        let connector = peer.connector(&[b"http/1.1"]);
        let connector = connector.map_err(|e| DialError::new(&crate::error::chain(&e)))?;
        let client = plain(FirstThen::new(Some(stream), connector));
        return Ok(Opened::Plain(Box::new(client)));
    }
    let handshake = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_DEADLINE)
        .keep_alive_while_idle(true)
        // None until the server has sent its limit.
        .initial_max_send_streams(0)
        .handshake(stream)
        .await;
    let (sender, connection) =
        handshake.map_err(|error| DialError::new(&crate::error::chain(&error)))?;
    let (limit_sender, mut limit) = watch::channel(0);
    TokioExecutor::new().execute(drive(connection, limit_sender));
    if limit.wait_for(|limit| *limit > 0).await.is_err() {
        return Err(DialError::new("connection closed before it could be used"));
    }
    Ok(Opened::Http2 { sender, limit })
}

/// Drives a connection, and publishes the server's stream limit.
async fn drive(connection: Http2<Stream, Body, TokioExecutor>, limit: watch::Sender<usize>) {
    let mut connection = std::pin::pin!(connection);
    loop {
        let said = connection.current_max_send_streams();
        limit.send_if_modified(|limit| std::mem::replace(limit, said) != said);
        let pause = if said == 0 { FIRST_LOOKS } else { LOOKS };
        match tokio::time::timeout(pause, connection.as_mut()).await {
            Err(_) => {}
            Ok(Ok(())) => return,
            Ok(Err(err)) => {
                tracing::debug!(err = crate::error::chain(&err), "API server connection ended");
                return;
            }
        }
    }
}
