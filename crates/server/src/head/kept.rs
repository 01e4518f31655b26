//! A connection that carries one request after the other.
//!
//! ```text
//! head ──judged──▶ body ──its end──▶ head …          an upgrade ──▶ everything as it comes
//! ```
//!
//! Promises: every head that hyper gets to see has passed [`super::judge`], with what cannot be said
//! in it [aside](Aside), in the order of the requests; a request that is none comes out as one that
//! is to be refused, so that the answer has its place behind those before. Deliberately absent: heads
//! behind a request that asks for an upgrade, whether it gets one or not.

use super::{Beside, Judgement, LINGER, MOST, TOO_LARGE, cut, head_end, judge};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Stands for a request that is none.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const PIECE: usize = 8 << 10;

/// What belongs to a request and is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aside {
    /// What it says that is not in it.
    Request(Beside),
    /// It is none: status and text of the answer.
    Refused(&'static str, &'static str),
}

/// What belongs to the requests of a connection, in their order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asides(Arc<Mutex<VecDeque<Aside>>>);

impl Asides {
    fn push(&self, aside: Aside) {
        if let Ok(mut list) = self.0.lock() {
            list.push_back(aside);
        }
    }

    /// That of the next request.
    pub(crate) fn next(&self) -> Aside {
        let next = self.0.lock().ok().and_then(|mut list| list.pop_front());
        next.unwrap_or(Aside::Request(Beside::default()))
    }
}

/// What comes next on the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// A head.
    Head,
    /// So much of a body.
    Body(u64),
    /// A body in chunks.
    Chunks(Chunk),
    /// Whatever it is, it is passed on.
    Anything,
    /// Nothing that anybody looks at.
    Nothing,
}

/// A place in a body of chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Chunk {
    /// In the line of a chunk's size, read so far.
    Size(Vec<u8>),
    /// In a chunk, with so much of it and its line end to come.
    Data(u64),
    /// In a line behind the last chunk, with so many bytes of it seen.
    Trailer(usize),
}

/// What follows a head (hyper decides the same for itself).
fn after(head: &[u8]) -> Next {
    let mut lines =
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let (mut length, mut chunked, mut upgrade) = (0, false, false);
    for (name, value) in lines.filter_map(|line| cut(line, b':')) {
        let text = String::from_utf8_lossy(value.trim_ascii()).to_ascii_lowercase();
        if name.eq_ignore_ascii_case(b"content-length") {
            length = text.parse().unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            upgrade |= text.contains("upgrade");
        }
    }
    // Chunks that HTTP/1.0 does not know are hyper's to refuse.
    match (upgrade || (chunked && first.ends_with(b"1.0")), chunked, length) {
        (true, ..) => Next::Anything,
        (_, true, _) => Next::Chunks(Chunk::Size(Vec::new())),
        (_, _, 0) => Next::Head,
        (.., length) => Next::Body(length),
    }
}

impl Chunk {
    /// How much of these bytes belongs to the body, and where in it the next one is; `None` behind
    /// its end. What is no chunk is hyper's to refuse, which reads nothing behind it.
    fn advance(mut self, bytes: &[u8]) -> (usize, Option<Self>) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            self = match self {
                Self::Data(left) => {
                    let here = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX).min(left);
                    at += usize::try_from(here).unwrap_or(0).saturating_sub(1);
                    match left - here {
                        0 => Self::Size(Vec::new()),
                        left => Self::Data(left),
                    }
                }
                Self::Size(line) if *byte == b'\n' => {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    let digits = text.split(';').next().unwrap_or_default().trim();
                    match u64::from_str_radix(digits, 16) {
                        Ok(0) => Self::Trailer(0),
                        Ok(size) => Self::Data(size.saturating_add(2)),
                        Err(_) => Self::Data(u64::MAX),
                    }
                }
                Self::Size(mut line) => {
                    line.truncate(64);
                    line.push(*byte);
                    Self::Size(line)
                }
                Self::Trailer(0) if *byte == b'\n' => return (at + 1, None),
                Self::Trailer(_) if *byte == b'\n' => Self::Trailer(0),
                Self::Trailer(seen) if *byte == b'\r' => Self::Trailer(seen),
                Self::Trailer(seen) => Self::Trailer(seen.saturating_add(1)),
            };
            at += 1;
        }
        (at, Some(self))
    }
}

/// A connection whose first head was read already. Its end waits a moment for the client, which
/// may still be sending: what it gets to read then is the answer, not a reset.
#[derive(Debug)]
pub(crate) struct Kept<S> {
    /// What hyper is to read next, from `at` on.
    front: Vec<u8>,
    at: usize,
    /// What came behind it and was not looked at.
    behind: Vec<u8>,
    next: Next,
    stream: S,
    ending: Ending,
    upgraded: Arc<AtomicBool>,
    asides: Asides,
}

#[derive(Debug)]
enum Ending {
    /// Nothing was ended yet.
    NotYet,
    /// We have said all; the client has until then.
    Lingering(Pin<Box<Sleep>>),
}

impl<S> Kept<S> {
    pub(super) fn new(head: Vec<u8>, aside: Aside, behind: Vec<u8>, stream: S) -> Self {
        let asides = Asides::default();
        asides.push(aside);
        Self {
            next: after(&head),
            front: head,
            at: 0,
            behind,
            stream,
            ending: Ending::NotYet,
            upgraded: Arc::default(),
            asides,
        }
    }

    /// To be set once the connection is no longer HTTP: whoever has it then reads to the end.
    pub(crate) fn upgraded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.upgraded)
    }

    /// What belongs to its requests.
    pub(crate) fn asides(&self) -> Asides {
        self.asides.clone()
    }

    /// Moves on what may be: false if more must come first.
    fn step(&mut self) -> bool {
        if self.upgraded.load(Ordering::Relaxed) {
            self.next = Next::Anything;
        }
        if self.behind.is_empty() {
            return false;
        }
        let taken = match &mut self.next {
            Next::Head => return self.head(),
            Next::Body(left) => {
                let here = u64::try_from(self.behind.len()).unwrap_or(u64::MAX).min(*left);
                *left -= here;
                if *left == 0 {
                    self.next = Next::Head;
                }
                usize::try_from(here).unwrap_or(0)
            }
            Next::Chunks(place) => {
                let place = std::mem::replace(place, Chunk::Trailer(0));
                let (taken, place) = place.advance(&self.behind);
                self.next = place.map_or(Next::Head, Next::Chunks);
                taken
            }
            Next::Anything => self.behind.len(),
            Next::Nothing => {
                self.behind.clear();
                return false;
            }
        };
        let rest = self.behind.split_off(taken);
        self.front = std::mem::replace(&mut self.behind, rest);
        self.at = 0;
        true
    }

    fn head(&mut self) -> bool {
        let judgement = match head_end(&self.behind) {
            Some(end) if end <= MOST => {
                let rest = self.behind.split_off(end);
                judge(&std::mem::replace(&mut self.behind, rest))
            }
            None if self.behind.len() <= MOST => return false,
            _ => TOO_LARGE,
        };
        self.at = 0;
        match judgement {
            Judgement::Pass(head, beside) => {
                self.next = after(&head);
                self.front = head;
                self.asides.push(Aside::Request(beside));
            }
            Judgement::Refuse(status, text) => {
                self.next = Next::Nothing;
                self.front = REFUSED.to_vec();
                self.asides.push(Aside::Refused(status, text));
            }
        }
        true
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Kept<S> {
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
            if this.step() {
                continue;
            }
            if this.next == Next::Anything {
                return Pin::new(&mut this.stream).poll_read(context, buffer);
            }
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut piece))?;
            if piece.filled().is_empty() {
                if this.behind.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                // Half a head is nothing to anybody.
                this.next = Next::Anything;
            }
            this.behind.extend_from_slice(piece.filled());
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Kept<S> {
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
            if this.upgraded.load(Ordering::Relaxed) {
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
                // The client has gone, one way or the other.
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
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// What hyper gets to read, and what goes beside.
    async fn passed(sent: &[u8]) -> (String, Vec<Aside>) {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(sent).await.unwrap();
        drop(client);
        let mut kept = super::super::read(server).await.unwrap();
        let mut all = Vec::new();
        kept.read_to_end(&mut all).await.unwrap();
        let mut asides = Vec::new();
        let count = all.split(|byte| *byte == b'\n').filter(|l| l.starts_with(b"Host:")).count();
        for _ in 0..count {
            asides.push(kept.asides().next());
        }
        (String::from_utf8_lossy(&all).into_owned(), asides)
    }

    fn beside(target: &str) -> Aside {
        let target = Some(LongTarget(target.into()));
        Aside::Request(Beside { target, ..Beside::default() })
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
        let target = beside("/logs/#a<b>");
        let nothing = Aside::Request(Beside::default());
        let refused = Aside::Refused("400 Bad Request", "400 Bad Request");
        assert_eq!(asides, [nothing.clone(), target, nothing, refused]);
    }

    #[tokio::test]
    async fn a_body_of_chunks_ends_where_its_trailers_end() {
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let odd = "GET /#x HTTP/1.1\r\nHost: a\r\n\r\n";
        for body in [
            "0\r\n\r\n",
            "5;x=y\r\n\n\r\n\r\n\r\n0\r\n\r\n",
            "A\r\n0123456789\r\n1\r\nx\r\n0\r\nTrailer: a\r\n\r\n",
        ] {
            let (text, asides) = passed(format!("{head}{body}{odd}").as_bytes()).await;
            assert!(text.starts_with(&format!("{head}{body}GET / HTTP/1.1")), "{body:?}: {text:?}");
            assert_eq!(asides[1], beside("/#x"), "{body:?}");
        }
    }

    #[tokio::test]
    async fn behind_an_upgrade_nothing_is_judged() {
        let head = "GET /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
        let sent = format!("{head}\n\n%zz \r\n\r\n");
        assert_eq!(passed(sent.as_bytes()).await.0, sent);
    }

    #[tokio::test]
    async fn what_was_read_ahead_of_an_upgrade_is_not_lost() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nframes").await.unwrap();
        let mut kept = super::super::read(server).await.unwrap();
        let mut head = [0; 27];
        kept.read_exact(&mut head).await.unwrap();
        kept.upgraded().store(true, Ordering::Relaxed);
        let mut frames = [0; 6];
        kept.read_exact(&mut frames).await.unwrap();
        assert_eq!(&frames, b"frames");
    }
}
