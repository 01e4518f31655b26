//! The connections of one listener: their limits, and which connection is closed to make room for a
//! new one.
//!
//! ```text
//! accepted ──▶ stranger ──a request is authenticated──▶ known ──▶ closed
//!                 └── evicted: too many strangers, too many bytes buffered
//! ```
//!
//! Owns: the [place](Place) of each connection, from accept to its last byte, also after an upgrade
//! from HTTP. Promises: a client without credentials cannot lock out others by opening connections,
//! not even from the same address; idle connections are closed. [`crowd`] chooses which connection
//! is closed.

mod crowd;

pub(crate) use crowd::Limits;

use crowd::{Crowd, Does, Doing, Id, Peer, Stage};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// From accept to the first request (kubelet: `ReadHeaderTimeout`).
pub(crate) const FIRST_REQUEST: Duration = Duration::from_secs(32);
/// From the end of a response to the next request (kubelet: `IdleTimeout`).
pub(crate) const BETWEEN_REQUESTS: Duration = Duration::from_secs(90);
/// An unauthenticated client that reads nothing of a response for this long is disconnected.
const STALLED: Duration = Duration::from_secs(60);
/// The same for an authenticated client. Followed logs are exempt: a person may read them for
/// hours.
const KNOWN_STALLED: Duration = Duration::from_secs(300);
/// The memory assumed for a request in progress, besides its headers and its response.
const REQUEST_BYTES: usize = 4 << 10;

/// The connections of a listener. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    crowd: Mutex<Crowd<Arc<Entry>>>,
    /// Bytes buffered for all unauthenticated connections together.
    buffered: AtomicUsize,
    most_buffered: usize,
    start: Instant,
    names: RandomState,
}

#[derive(Debug)]
struct Entry {
    evicted: CancellationToken,
    /// Milliseconds from the listener's start to the last byte transferred.
    moved: AtomicU64,
    /// Milliseconds from the listener's start to the end of the last request.
    answered: AtomicU64,
    /// Milliseconds from the listener's start since when the client has read nothing of a response;
    /// 0 if it is reading.
    blocked: AtomicU64,
    requests: AtomicUsize,
    /// Whether the client has sent any byte.
    heard: AtomicBool,
    /// Whether the TLS handshake is complete.
    met: AtomicBool,
    /// Whether there was any request.
    spoken: AtomicBool,
    known: AtomicBool,
    /// Whether the connection is exempt from the stall timeout.
    patient: AtomicBool,
    /// Bytes of buffers for request headers; `answers` has those of requests in progress.
    buffered: AtomicUsize,
    answers: AtomicUsize,
    start: Instant,
}

impl Entry {
    fn at(&self, millis: &AtomicU64) -> Instant {
        self.start + Duration::from_millis(millis.load(Ordering::Relaxed))
    }

    fn stamp(&self, millis: &AtomicU64) {
        let passed = self.start.elapsed().as_millis();
        millis.store(u64::try_from(passed).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    fn stage(&self) -> Stage {
        if self.is_busy() {
            Stage::Busy
        } else if self.met.load(Ordering::Relaxed) {
            Stage::Met
        } else if self.heard.load(Ordering::Relaxed) {
            Stage::Heard
        } else {
            Stage::Silent
        }
    }

    /// Whether its buffered bytes count towards the limit.
    fn counts(&self) -> bool {
        !self.known.load(Ordering::Relaxed) && !self.evicted.is_cancelled()
    }

    /// Stops counting its bytes, and returns how many were counted.
    fn settle(&self) -> usize {
        self.buffered.swap(0, Ordering::Relaxed) + self.answers.swap(0, Ordering::Relaxed)
    }
}

impl Does for Arc<Entry> {
    fn doing(&self) -> Doing {
        let buffered = self.buffered.load(Ordering::Relaxed) + self.answers.load(Ordering::Relaxed);
        Doing { moved: self.at(&self.moved), stage: self.stage(), buffered }
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            crowd: Mutex::new(Crowd::new(limits)),
            buffered: AtomicUsize::new(0),
            most_buffered: limits.buffered_bytes,
            start: Instant::now(),
            names: RandomState::new(),
        }))
    }

    /// A place for a new connection; another connection may be closed for it.
    pub(crate) fn enter(&self, address: IpAddr) -> Place {
        let entry = Entry {
            evicted: CancellationToken::new(),
            moved: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            heard: AtomicBool::new(false),
            met: AtomicBool::new(false),
            spoken: AtomicBool::new(false),
            known: AtomicBool::new(false),
            patient: AtomicBool::new(false),
            buffered: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            start: self.0.start,
        };
        entry.stamp(&entry.moved);
        entry.stamp(&entry.answered);
        let entry = Arc::new(entry);
        let entered = self.0.crowd.lock().ok();
        let entered = entered.map(|mut all| all.enter(Peer::of(address), Arc::clone(&entry)));
        let (id, gone) = entered.unwrap_or_default();
        self.0.evict(gone);
        Place(Arc::new(Seat { shared: Arc::clone(&self.0), entry, id }))
    }
}

impl Shared {
    fn evict(&self, gone: Option<Arc<Entry>>) {
        if let Some(gone) = gone {
            gone.evicted.cancel();
            // The buffers of the evicted connection are about to be freed.
            self.less(gone.settle());
        }
    }

    fn less(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts more bytes; over the limit, the connection with the most bytes is closed.
    fn more(&self, bytes: usize) {
        if self.buffered.fetch_add(bytes, Ordering::Relaxed) + bytes > self.most_buffered {
            let gone = self.crowd.lock().ok().and_then(|mut all| all.greediest());
            self.evict(gone);
        }
    }
}

/// The place of one connection; it is released when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Place(Arc<Seat>);

#[derive(Debug)]
struct Seat {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    id: Id,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.less(self.entry.settle());
        if let Ok(mut all) = self.shared.crowd.lock() {
            all.leave(self.id);
        }
    }
}

/// A request in progress.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    counted: Arc<Counted>,
}

impl Request {
    /// Counts so many more bytes until the request is done.
    pub(crate) fn weighs(&self, bytes: usize) {
        let Counted { place, bytes: own } = &*self.counted;
        let Seat { shared, entry, .. } = &*place.0;
        if entry.counts() {
            own.fetch_add(bytes, Ordering::Relaxed);
            entry.answers.fetch_add(bytes, Ordering::Relaxed);
            shared.more(bytes);
        }
    }

    /// The handle of a request whose stream outlives its handler.
    pub(crate) fn of<T>(request: &http::Request<T>) -> Option<Self> {
        request.extensions().get::<Self>().cloned()
    }
}

#[derive(Debug)]
struct Counted {
    place: Place,
    bytes: AtomicUsize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Seat { shared, entry, .. } = &*self.place.0;
        entry.stamp(&entry.answered);
        entry.requests.fetch_sub(1, Ordering::Relaxed);
        let mut counted = 0;
        let bytes = self.bytes.load(Ordering::Relaxed);
        // They may have been settled already.
        let _ = entry.answers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            counted = all.min(bytes);
            Some(all - counted)
        });
        shared.less(counted);
    }
}

impl Place {
    /// A request has arrived; it is in progress until the last clone is dropped.
    pub(crate) fn request(&self) -> Request {
        let entry = &self.0.entry;
        entry.spoken.store(true, Ordering::Relaxed);
        entry.requests.fetch_add(1, Ordering::Relaxed);
        let counted = Counted { place: self.clone(), bytes: AtomicUsize::new(0) };
        let request = Request { counted: Arc::new(counted) };
        request.weighs(REQUEST_BYTES);
        request
    }

    /// The TLS handshake is complete.
    pub(crate) fn meet(&self) {
        self.0.entry.met.store(true, Ordering::Relaxed);
    }

    /// Exempts the connection from the stall timeout.
    pub(crate) fn be_patient(&self) {
        self.0.entry.patient.store(true, Ordering::Relaxed);
    }

    /// A request was authenticated under this user name; returns whether that user may have one
    /// more connection.
    pub(crate) fn know(&self, name: &str) -> bool {
        let Seat { shared, entry, id } = &*self.0;
        if entry.known.load(Ordering::Relaxed) {
            return true;
        }
        let name = shared.names.hash_one(name);
        let known = shared.crowd.lock().ok().map(|mut all| all.know(*id, name));
        let Some(Ok(gone)) = known else { return false };
        entry.known.store(true, Ordering::Relaxed);
        shared.less(entry.settle());
        shared.evict(gone);
        true
    }

    /// Counts a header buffer of so many bytes; buffers never shrink.
    pub(crate) fn keep(&self, bytes: usize) {
        let Seat { shared, entry, .. } = &*self.0;
        let before = entry.buffered.load(Ordering::Relaxed);
        if bytes > before && entry.counts() {
            entry.buffered.store(bytes, Ordering::Relaxed);
            shared.more(bytes - before);
        }
    }

    /// Ends when the connection must be closed: evicted for another one, or idle.
    pub(crate) async fn over(&self) {
        let entry = &self.0.entry;
        tokio::select! {
            // Cancel-safe: nothing is held.
            () = entry.evicted.cancelled() => {}
            // Cancel-safe: only sleeps.
            () = self.idle() => {}
        }
    }

    async fn idle(&self) {
        let entry = &self.0.entry;
        loop {
            let end = if entry.is_busy() {
                let known = entry.known.load(Ordering::Relaxed);
                let takes = entry.blocked.load(Ordering::Relaxed) == 0;
                if takes || (known && entry.patient.load(Ordering::Relaxed)) {
                    Instant::now() + STALLED
                } else {
                    entry.at(&entry.blocked) + if known { KNOWN_STALLED } else { STALLED }
                }
            } else if entry.spoken.load(Ordering::Relaxed) {
                entry.at(&entry.answered) + BETWEEN_REQUESTS
            } else {
                entry.at(&entry.answered) + FIRST_REQUEST
            };
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    /// Wraps the stream: transferred bytes are noticed, and I/O fails once the connection is
    /// evicted.
    pub(crate) fn watch<S>(&self, stream: S) -> TrackedConnection<S> {
        let evicted = Box::pin(self.0.entry.evicted.clone().cancelled_owned());
        TrackedConnection { stream, evicted, place: self.clone() }
    }
}

/// A stream with its place.
#[derive(Debug)]
pub(crate) struct TrackedConnection<S> {
    stream: S,
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    place: Place,
}

impl<S> TrackedConnection<S> {
    fn moved(&self, bytes: usize) {
        if bytes > 0 {
            let entry = &self.place.0.entry;
            entry.stamp(&entry.moved);
        }
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        let entry = &self.place.0.entry;
        match written {
            Poll::Pending if entry.blocked.load(Ordering::Relaxed) == 0 => {
                entry.stamp(&entry.blocked);
                entry.blocked.fetch_max(1, Ordering::Relaxed);
            }
            Poll::Ready(Ok(count)) => {
                entry.blocked.store(0, Ordering::Relaxed);
                self.moved(*count);
            }
            _ => {}
        }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.evicted.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let count = buffer.filled().len() - before;
        if count > 0 {
            self.place.0.entry.heard.store(true, Ordering::Relaxed);
        }
        self.moved(count);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const LIMITS: Limits = Limits { strangers: 2, known: 2, of_one: 1, buffered_bytes: 1 << 20 };

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_to_go_is_broken_wherever_it_is_read() {
        let all = Connections::new(LIMITS);
        let first = all.enter(HOME);
        let (mut client, server) = tokio::io::duplex(64);
        let mut stream = first.watch(server);
        let later = async || tokio::time::advance(Duration::from_secs(1)).await;
        later().await;
        let second = all.enter(HOME);
        later().await;
        client.write_u8(1).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 1);
        let third = all.enter(HOME);
        third.meet();
        let now = |place: &Place| place.0.entry.evicted.is_cancelled();
        assert!(now(&second) && !now(&first), "the first has said something since");
        // The third connection is at a later stage than the first.
        let (read, _fourth) = tokio::join!(stream.read_u8(), async { all.enter(HOME) });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert!(stream.write_u8(1).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_waited_for() {
        let all = Connections::new(LIMITS);
        let place = all.enter(HOME);
        let begin = Instant::now();
        place.over().await;
        assert_eq!(begin.elapsed(), FIRST_REQUEST);
        let place = all.enter(HOME);
        let begin = Instant::now();
        drop(place.request());
        place.over().await;
        assert_eq!(begin.elapsed(), BETWEEN_REQUESTS);
        // A response that the client does not read; a response without data yet may take its time.
        let hours = Duration::from_secs(4 * 3600);
        let place = all.enter(HOME);
        let _request = place.request();
        assert!(tokio::time::timeout(hours, place.over()).await.is_err());
        let (_client, server) = tokio::io::duplex(1);
        let mut stream = place.watch(server);
        let begin = Instant::now();
        tokio::select! {
            _ = stream.write_all(b"answer") => panic!("nobody reads"),
            () = place.over() => {}
        }
        assert!(begin.elapsed() >= STALLED && begin.elapsed() <= 2 * STALLED);
        // An authenticated client has longer, and unlimited time for a log.
        let place = all.enter(HOME);
        let _request = place.request();
        assert!(place.know("somebody"));
        let (_client, server) = tokio::io::duplex(1);
        let mut stream = place.watch(server);
        place.be_patient();
        let write = tokio::time::timeout(hours, async {
            tokio::select! {
                written = stream.write_all(b"answer") => written.is_ok(),
                () = place.over() => true,
            }
        });
        assert!(write.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_for_strangers_is_bounded() {
        let all = Connections::new(Limits { buffered_bytes: 100, ..LIMITS });
        let (one, two) = (all.enter(HOME), all.enter(HOME));
        one.keep(60);
        two.keep(30);
        two.keep(41);
        one.over().await;
        assert_eq!(all.0.buffered.load(Ordering::Relaxed), 41);
        one.keep(1000);
        drop(two);
        assert_eq!(all.0.buffered.load(Ordering::Relaxed), 0);
    }

    // Requests whose responses are not read; HTTP/2 has many on one connection.
    #[tokio::test(start_paused = true)]
    async fn requests_of_strangers_weigh_something() {
        let all = Connections::new(Limits { buffered_bytes: 3 * REQUEST_BYTES, ..LIMITS });
        let (one, two) = (all.enter(HOME), all.enter(HOME));
        let requests = [one.request(), one.request(), two.request()];
        let evicted = |place: &Place| place.0.entry.evicted.is_cancelled();
        assert!(!evicted(&one) && !evicted(&two));
        let last = two.request();
        assert!(evicted(&one) || evicted(&two));
        drop((requests, last));
        assert_eq!(all.0.buffered.load(Ordering::Relaxed), 0);
        let (known, stranger) = (all.enter(HOME), all.enter(HOME));
        let request = stranger.request();
        let asked = known.request();
        assert!(known.know("a"));
        asked.weighs(1 << 30);
        assert!(!evicted(&known) && !evicted(&stranger), "one who is known has other limits");
        request.weighs(2 * REQUEST_BYTES + 1);
        assert!(evicted(&stranger));
        drop((asked, request));
        assert_eq!(all.0.buffered.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_name_only_idle_connections_make_room() {
        let all = Connections::new(LIMITS);
        let first = all.enter(HOME);
        let request = first.request();
        assert!(first.know("a"));
        let second = all.enter(HOME);
        assert!(!second.know("a"), "the first is busy");
        assert!(second.know("b"));
        drop(request);
        let third = all.enter(HOME);
        assert!(third.know("a"));
        first.over().await;
    }
}
