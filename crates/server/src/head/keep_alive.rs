//! A keep-alive connection, on which requests follow each other.
//!
//! ```text
//! head ──checked──▶ body ──▶ response ──▶ next head …        upgrade ──▶ all bytes unchanged
//! ```
//!
//! Promises: every head that hyper sees has passed [`super::judge`], and its [`RequestExtras`] are
//! handed over separately; hyper sees the next head only after the request before it was answered,
//! so that extras cannot be attributed to another request; a malformed request is passed on as a
//! placeholder that is answered with the error, so that responses stay in order.

use super::chunks::{Chunks, Progress};
use super::{BodyFraming, Found, Judgement, RequestExtras, Search, TOO_LARGE, judge};
use crate::connections::{FIRST_REQUEST, Place};
use bytes::BytesMut;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

/// The placeholder for a malformed request.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const PIECE: usize = 8 << 10;
/// Heads up to this size are not counted.
const SMALL_HEAD: usize = 16 << 10;
/// Go: `rstAvoidanceDelay`.
pub(super) const LINGER: Duration = Duration::from_millis(500);

/// The result of checking a head, handed over separately from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HeadVerdict {
    /// Properties that hyper's request does not carry.
    Request(RequestExtras),
    /// The request is malformed: status and body of the response.
    Refused(&'static str, &'static str),
}

/// The request in progress. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct CurrentRequest(Arc<Mutex<Current>>);

#[derive(Debug, Default)]
struct Current {
    verdict: Option<HeadVerdict>,
    /// It was passed to hyper and is not answered yet.
    waits: bool,
    /// The connection was upgraded: its new owner reads to the end.
    switched: bool,
    reader: Option<Waker>,
}

impl CurrentRequest {
    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, verdict: HeadVerdict) {
        let mut current = self.current();
        (current.verdict, current.waits) = (Some(verdict), true);
    }

    /// The result of checking the current request's head.
    pub(crate) fn verdict(&self) -> HeadVerdict {
        self.current().verdict.take().unwrap_or(HeadVerdict::Request(RequestExtras::default()))
    }

    /// The request was answered, or the connection was upgraded.
    pub(crate) fn answered(&self, switched: bool) {
        let mut current = self.current();
        current.waits = false;
        current.switched |= switched;
        if let Some(reader) = current.reader.take() {
            reader.wake();
        }
    }

    fn is_switched(&self) -> bool {
        self.current().switched
    }

    /// Whether a response must be sent first; if so, the task is woken afterwards.
    fn waits(&self, context: &Context<'_>) -> bool {
        let mut current = self.current();
        if current.waits {
            current.reader = Some(context.waker().clone());
        }
        current.waits
    }
}

/// What is expected next on the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// A head.
    Head(Search),
    /// So many bytes of a body.
    Body(u64),
    /// A chunked body.
    Chunks(Chunks),
    /// Bytes that are passed on unchanged.
    Anything,
    /// Nothing: further bytes are ignored.
    Nothing,
}

impl From<BodyFraming> for Next {
    fn from(behind: BodyFraming) -> Self {
        match behind {
            BodyFraming::Bytes(0) => Self::Head(Search::default()),
            BodyFraming::Bytes(length) => Self::Body(length),
            BodyFraming::Chunks => Self::Chunks(Chunks::new()),
        }
    }
}

/// A connection whose first head was already read. Closing it waits briefly for the client, which
/// may still be sending: this way the client reads the response instead of getting a reset.
#[derive(Debug)]
pub(crate) struct KeepAlive<S> {
    /// The bytes for hyper to read next, from `at` on.
    front: Vec<u8>,
    at: usize,
    /// Bytes received after those and not passed on yet.
    behind: BytesMut,
    next: Next,
    stream: S,
    ending: Ending,
    current_request: CurrentRequest,
    place: Place,
    /// The deadline for the head that has begun.
    head_deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum Ending {
    /// Not closed yet.
    NotYet,
    /// Our side is closed; the client has until then.
    Lingering(Pin<Box<Sleep>>),
}

/// Reads the first head and returns the connection with the head at its front; `None` when it was
/// rejected or nothing arrived.
pub(crate) async fn read<S>(mut stream: S, place: Place) -> Option<KeepAlive<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut seen, mut search) = (BytesMut::new(), Search::default());
    let found = async {
        loop {
            match search.look(&seen) {
                Found::More => {}
                found => return Some(found),
            }
            place.keep(seen.len().saturating_sub(SMALL_HEAD));
            seen.reserve(PIECE);
            match stream.read_buf(&mut seen).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    };
    // A client that sends no head within the timeout is disconnected.
    let judgement = match tokio::time::timeout(FIRST_REQUEST, found).await.ok()?? {
        Found::End(end) => judge(&seen.split_to(end)),
        Found::More | Found::TooMuch => TOO_LARGE,
    };
    match judgement {
        Judgement::Pass(head, extras, behind) => {
            let current_request = CurrentRequest::default();
            current_request.begin(HeadVerdict::Request(extras));
            Some(KeepAlive {
                front: head,
                at: 0,
                // Copies the rest, so that the large buffer of the head is freed.
                behind: BytesMut::from(&*seen),
                next: behind.into(),
                stream,
                ending: Ending::NotYet,
                current_request,
                place,
                head_deadline: None,
            })
        }
        Judgement::Refuse(status, text) => {
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{text}"
            );
            refuse(&mut stream, answer.as_bytes()).await;
            None
        }
    }
}

/// Responds and waits briefly for the client to close, so that it reads the response.
async fn refuse(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: &[u8]) {
    let linger = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        let mut rest = [0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, linger).await;
}

impl<S> KeepAlive<S> {
    /// The handle of the request in progress.
    pub(crate) fn current_request(&self) -> CurrentRequest {
        self.current_request.clone()
    }

    /// Processes buffered bytes; false if more must be received first.
    fn step(&mut self) -> bool {
        if self.current_request.is_switched() {
            self.next = Next::Anything;
        }
        if self.behind.is_empty() {
            return false;
        }
        self.at = 0;
        match &mut self.next {
            Next::Head(search) => {
                let found = search.look(&self.behind);
                return self.head(found);
            }
            Next::Body(left) => {
                let here = u64::try_from(self.behind.len()).unwrap_or(u64::MAX).min(*left);
                *left -= here;
                if *left == 0 {
                    self.next = Next::Head(Search::default());
                }
                self.front = self.behind.split_to(usize::try_from(here).unwrap_or(0)).to_vec();
            }
            Next::Chunks(chunks) => {
                let (taken, went) = chunks.advance(&self.behind, &mut self.front);
                let _ = self.behind.split_to(taken);
                match went {
                    Progress::More => {}
                    Progress::Ended => self.next = Next::Head(Search::default()),
                    Progress::Malformed => self.next = Next::Nothing,
                }
            }
            Next::Anything => self.front = std::mem::take(&mut self.behind).to_vec(),
            Next::Nothing => {
                self.behind.clear();
                return false;
            }
        }
        !self.front.is_empty()
    }

    fn head(&mut self, found: Found) -> bool {
        let judgement = match found {
            Found::More => {
                self.place.keep(self.behind.len().saturating_sub(SMALL_HEAD));
                return false;
            }
            Found::End(end) => judge(&self.behind.split_to(end)),
            Found::TooMuch => TOO_LARGE,
        };
        self.head_deadline = None;
        // Copies the rest, so that the large buffer of the head is freed.
        self.behind = BytesMut::from(&*self.behind);
        match judgement {
            Judgement::Pass(head, extras, behind) => {
                self.next = behind.into();
                self.front = head;
                self.current_request.begin(HeadVerdict::Request(extras));
            }
            Judgement::Refuse(status, text) => {
                self.next = Next::Nothing;
                self.front = REFUSED.to_vec();
                self.current_request.begin(HeadVerdict::Refused(status, text));
            }
        }
        true
    }

    /// Whether a head has taken too long since its first byte.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if self.behind.is_empty() || !matches!(self.next, Next::Head(_)) {
            return false;
        }
        let head_deadline =
            self.head_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(FIRST_REQUEST)));
        head_deadline.as_mut().poll(context).is_ready()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for KeepAlive<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(left) = this.front.get(this.at..).filter(|left| !left.is_empty()) {
                let taken = left.len().min(buffer.remaining());
                buffer.put_slice(left.get(..taken).unwrap_or_default());
                this.at += taken;
                return Poll::Ready(Ok(()));
            }
            this.front = Vec::new();
            let waits = matches!(this.next, Next::Head(_)) && this.current_request.waits(context);
            if waits && !this.behind.is_empty() {
                return Poll::Pending;
            }
            if this.step() {
                continue;
            }
            if this.next == Next::Anything {
                return Pin::new(&mut this.stream).poll_read(context, buffer);
            }
            if this.is_late(context) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            this.behind.reserve(PIECE);
            if ready!(poll_read_buf(Pin::new(&mut this.stream), context, &mut this.behind))? == 0 {
                // End of stream; an incomplete head is dropped.
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for KeepAlive<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Ending::NotYet = this.ending {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if this.current_request.is_switched() {
                return Poll::Ready(Ok(()));
            }
            this.ending = Ending::Lingering(Box::pin(tokio::time::sleep(LINGER)));
        }
        let Ending::Lingering(end) = &mut this.ending else { return Poll::Ready(Ok(())) };
        let mut scratch = [0; 4096];
        loop {
            if end.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut rest = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.stream).poll_read(context, &mut rest)) {
                Ok(()) if !rest.filled().is_empty() => {}
                // The client has closed the connection, or it failed.
                _ => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::super::LongTarget;
    use super::super::tests::place;
    use super::*;

    /// What hyper reads when every request is answered, and the results handed over with it.
    async fn passed(sent: &[u8]) -> (String, Vec<HeadVerdict>) {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(sent).await.unwrap();
        drop(client);
        let mut kept = read(server, place()).await.unwrap();
        let (mut all, mut asides) = (Vec::new(), Vec::new());
        while kept.read_buf(&mut all).await.unwrap() > 0 {
            let current_request = kept.current_request();
            if current_request.current().verdict.is_some() {
                asides.push(current_request.verdict());
            }
            current_request.answered(false);
        }
        (String::from_utf8_lossy(&all).into_owned(), asides)
    }

    fn extras(target: &str) -> HeadVerdict {
        let target = Some(LongTarget(target.into()));
        HeadVerdict::Request(RequestExtras { target, ..RequestExtras::default() })
    }

    #[tokio::test]
    async fn later_requests_are_judged_as_the_first_one() {
        let first = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\n\nabc";
        let odd = "GET /logs/#a<b> HTTP/1.1\r\nHost: a\r\n\r\n";
        let good = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
        let bad = "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n";
        let (text, asides) = passed(format!("{first}{odd}{good}{bad}{good}").as_bytes()).await;
        let refused = String::from_utf8_lossy(REFUSED);
        let want = format!("{first}GET / HTTP/1.1\r\nHost: a\r\n\r\n{good}{refused}");
        assert_eq!(text, want, "nothing is read behind what is no request");
        let target = extras("/logs/#a<b>");
        let nothing = HeadVerdict::Request(RequestExtras::default());
        let refused = HeadVerdict::Refused("400 Bad Request", "400 Bad Request");
        assert_eq!(asides, [nothing.clone(), target, nothing, refused]);
    }

    #[tokio::test]
    async fn a_body_of_chunks_ends_where_its_trailers_end() {
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let odd = "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n";
        for (body, said) in [
            ("0\r\n\r\n", ""),
            ("5;x=y\r\n\n\r\n\r\n\r\n0\r\n\r\n", "5\r\n\n\r\n\r\n\r\n"),
            ("001\r\nx\r\n0\r\nTrailer: a\r\n\r\n", "1\r\nx\r\n"),
        ] {
            let (text, asides) = passed(format!("{head}{body}{odd}").as_bytes()).await;
            let want = format!("{head}{said}0\r\n\r\nGET / HTTP/1.1");
            assert!(text.starts_with(&want), "{body:?}: {text:?}");
            assert_eq!(asides[1], extras("/#x"), "{body:?}");
        }
    }

    // A length of 65 zeros must not be parsed differently here and by hyper, which would then read
    // a body as a request.
    #[tokio::test]
    async fn nothing_is_read_behind_a_chunk_that_is_none() {
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let zeros = "0".repeat(65);
        let hidden = "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n";
        let sent = format!("{head}{zeros}{:x}\r\n{hidden}\r\n0\r\n\r\n{hidden}", hidden.len());
        let (text, asides) = passed(sent.as_bytes()).await;
        assert_eq!(text, format!("{head}!\r\n"));
        assert_eq!(asides.len(), 1);
    }

    #[tokio::test]
    async fn behind_an_upgrade_that_was_refused_heads_are_judged() {
        let head = "GET /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        let sent = format!("{head}GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n");
        let (text, asides) = passed(sent.as_bytes()).await;
        assert_eq!(text, format!("{head}{}", String::from_utf8_lossy(REFUSED)));
        assert_eq!(asides.len(), 2);
    }

    #[tokio::test]
    async fn what_was_read_ahead_of_an_upgrade_is_not_lost() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nframes").await.unwrap();
        let mut kept = read(server, place()).await.unwrap();
        let mut head = [0; 27];
        kept.read_exact(&mut head).await.unwrap();
        let current_request = kept.current_request();
        let mut frames = [0; 6];
        let answer = async {
            tokio::task::yield_now().await;
            current_request.answered(true);
        };
        let (read, ()) = tokio::join!(kept.read_exact(&mut frames), answer);
        read.unwrap();
        assert_eq!(&frames, b"frames");
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_must_end_in_time_and_in_few_pieces() {
        let (mut client, server) = tokio::io::duplex(64);
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        client.write_all(head).await.unwrap();
        let mut kept = read(server, place()).await.unwrap();
        kept.read_exact(&mut [0; 27]).await.unwrap();
        kept.current_request().answered(false);
        client.write_all(b"GET").await.unwrap();
        let begin = tokio::time::Instant::now();
        let read = kept.read_u8().await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), FIRST_REQUEST);
        let (client, server) = tokio::io::duplex(1);
        let (mut reader, mut writer) = tokio::io::split(client);
        // The peer disconnects before it has received everything.
        let drip = async {
            let _ = writer.write_all(&[b'a'; 10_000]).await;
        };
        let answer = async {
            let mut answer = String::new();
            let _ = reader.read_to_string(&mut answer).await;
            answer
        };
        let (kept, (), answer) = tokio::join!(super::read(server, place()), drip, answer);
        assert!(kept.is_none());
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
