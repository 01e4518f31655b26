//! Accepts clients that send a socket's path as their authority.
//!
//! Go's gRPC sends the path it dialed as `:authority`, which is not a host name, and the HTTP/2
//! library refuses such a request. This filter sits between the socket and the library: it reads
//! the client's frames, rewrites each header block with the authority `localhost`, and passes
//! everything else on unchanged. Responses are not touched.
//!
//! ```text
//! preface ──▶ frames: HEADERS (CONTINUATION…) ──▶ decoded, rewritten, one block
//!    │                any other frame ──────────▶ passed on
//!    └─ no preface: everything is passed on
//! ```

use crate::hpack::{Decoder, encode};
use bytes::{Buf, BytesMut};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
/// The largest frame that a server accepts by default; ours keep the default.
const MAX_FRAME: usize = 16_384;
/// Header blocks larger than this end the connection.
const MAX_BLOCK: usize = 128 << 10;
const READ: usize = 16 << 10;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A connection whose requests have the authority `localhost`.
#[derive(Debug)]
pub struct LocalAuthority<S> {
    inner: S,
    rewriter: Rewriter,
    received: BytesMut,
    ended: bool,
}

impl<S> LocalAuthority<S> {
    /// Puts the filter in front of a connection nothing has been read from yet.
    pub fn new(inner: S) -> Self {
        Self { inner, rewriter: Rewriter::new(), received: BytesMut::new(), ended: false }
    }

    /// The connection below.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LocalAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.rewriter.output.is_empty() && !this.ended {
            let start = this.received.len();
            this.received.resize(start + READ, 0);
            let mut space = ReadBuf::new(this.received.get_mut(start..).unwrap_or_default());
            let polled = Pin::new(&mut this.inner).poll_read(context, &mut space);
            let count = space.filled().len();
            this.received.truncate(start + count);
            ready!(polled)?;
            if count == 0 {
                this.ended = true;
                this.rewriter.output.extend_from_slice(&this.received);
                this.received.clear();
            } else {
                this.rewriter.take(&mut this.received)?;
            }
        }
        let output = &mut this.rewriter.output;
        let count = output.len().min(buffer.remaining());
        buffer.put_slice(output.get(..count).unwrap_or_default());
        output.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LocalAuthority<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// What comes next from the client.
#[derive(Debug, Clone, Copy)]
enum State {
    Preface,
    Frame,
    /// The rest of a frame that is passed on.
    Pass(usize),
    /// Not HTTP/2: everything is passed on.
    Raw,
}

/// A header block that is not complete yet.
#[derive(Debug)]
struct Block {
    stream: [u8; 4],
    end_stream: u8,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Rewriter {
    state: State,
    block: Option<Block>,
    decoder: Decoder,
    output: BytesMut,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Rewriter {
    fn new() -> Self {
        Self {
            state: State::Preface,
            block: None,
            decoder: Decoder::new(),
            output: BytesMut::new(),
        }
    }

    /// Moves all complete frames from `input` to the output.
    fn take(&mut self, input: &mut BytesMut) -> io::Result<()> {
        while !input.is_empty() {
            match self.state {
                State::Preface => {
                    let seen = input.len().min(PREFACE.len());
                    if input.get(..seen) != PREFACE.get(..seen) {
                        self.state = State::Raw;
                    } else if seen < PREFACE.len() {
                        return Ok(());
                    } else {
                        self.output.extend_from_slice(&input.split_to(seen));
                        self.state = State::Frame;
                    }
                }
                State::Raw => self.output.extend_from_slice(&input.split()),
                State::Pass(left) => {
                    let count = left.min(input.len());
                    self.output.extend_from_slice(&input.split_to(count));
                    self.state =
                        if count == left { State::Frame } else { State::Pass(left - count) };
                }
                State::Frame => {
                    let Some(frame) = head(input) else { return Ok(()) };
                    if !matches!(frame.kind, HEADERS | CONTINUATION) {
                        self.output.extend_from_slice(&input.split_to(FRAME_HEAD));
                        self.state = State::Pass(frame.length);
                        if frame.length == 0 {
                            self.state = State::Frame;
                        }
                        continue;
                    }
                    if frame.length > MAX_FRAME {
                        return Err(broken("header frame is too large"));
                    }
                    if input.len() < FRAME_HEAD + frame.length {
                        return Ok(());
                    }
                    input.advance(FRAME_HEAD);
                    let payload = input.split_to(frame.length);
                    self.headers(frame, &payload)?;
                }
            }
        }
        Ok(())
    }

    fn headers(&mut self, frame: Frame, payload: &[u8]) -> io::Result<()> {
        let block = match (frame.kind, self.block.take()) {
            (HEADERS, None) => Block {
                stream: frame.stream,
                end_stream: frame.flags & END_STREAM,
                bytes: fragment(frame.flags, payload)?.to_vec(),
            },
            (CONTINUATION, Some(mut block)) if block.stream == frame.stream => {
                block.bytes.extend_from_slice(payload);
                block
            }
            _ => return Err(broken("header frames out of order")),
        };
        if block.bytes.len() > MAX_BLOCK {
            return Err(broken("header block is too large"));
        }
        if frame.flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        let decoded = self.decoder.decode(&block.bytes);
        let mut fields =
            decoded.map_err(|source| io::Error::new(io::ErrorKind::InvalidData, source))?;
        for (name, value) in &mut fields {
            if name == b":authority" {
                *value = b"localhost".to_vec();
            }
        }
        self.put(block.stream, block.end_stream, &encode(&fields));
        Ok(())
    }

    fn put(&mut self, stream: [u8; 4], end_stream: u8, block: &[u8]) {
        let mut pieces = block.chunks(MAX_FRAME).peekable();
        let (mut kind, mut flags) = (HEADERS, end_stream);
        loop {
            let piece = pieces.next().unwrap_or_default();
            let last = pieces.peek().is_none();
            let length = u32::try_from(piece.len()).unwrap_or_default().to_be_bytes();
            self.output.extend_from_slice(length.get(1..).unwrap_or_default());
            self.output.extend_from_slice(&[kind, if last { flags | END_HEADERS } else { flags }]);
            self.output.extend_from_slice(&stream);
            self.output.extend_from_slice(piece);
            if last {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

fn head(input: &[u8]) -> Option<Frame> {
    let [a, b, c, kind, flags, s0, s1, s2, s3] = *input.first_chunk::<FRAME_HEAD>()?;
    let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).ok()?;
    Some(Frame { length, kind, flags, stream: [s0, s1, s2, s3] })
}

/// The header bytes of a HEADERS frame, without padding and priority.
fn fragment(flags: u8, payload: &[u8]) -> io::Result<&[u8]> {
    let short = || broken("header frame is cut short");
    let mut rest = payload;
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (first, after) = rest.split_first().ok_or_else(short)?;
        (padding, rest) = (usize::from(*first), after);
    }
    if flags & PRIORITY != 0 {
        rest = rest.get(5..).ok_or_else(short)?;
    }
    let length = rest.len().checked_sub(padding).ok_or_else(short)?;
    rest.get(..length).ok_or_else(short)
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend(payload);
        frame
    }

    fn field(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
        (name.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    async fn through(input: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let mut mock = Vec::new();
        for part in input.chunks(piece) {
            mock.push(part.to_vec());
        }
        let reader = Pieces(mock.into_iter().collect());
        let mut output = Vec::new();
        LocalAuthority::new(reader).read_to_end(&mut output).await?;
        Ok(output)
    }

    /// Hands out one piece per read.
    #[derive(Debug)]
    struct Pieces(std::collections::VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(piece) = self.0.pop_front() {
                buffer.put_slice(&piece);
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn the_path_a_client_dialed_becomes_localhost() {
        let sent = encode(&[
            field(":method", "POST"),
            field(":authority", "%2Fvar%2Flib%2Fkubelet.sock"),
            field("te", "trailers"),
        ]);
        let wanted = encode(&[
            field(":method", "POST"),
            field(":authority", "localhost"),
            field("te", "trailers"),
        ]);
        let settings = frame(4, 0, 0, &[0; 6]);
        let data = frame(0, END_STREAM, 1, b"a body");
        let input = [PREFACE, &settings, &frame(HEADERS, END_HEADERS, 1, &sent), &data].concat();
        let output = [PREFACE, &settings, &frame(HEADERS, END_HEADERS, 1, &wanted), &data].concat();
        for piece in [1, 7, input.len()] {
            assert_eq!(through(&input, piece).await.unwrap(), output, "pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn padding_priority_and_continuations_become_one_block() {
        let block = encode(&[field(":authority", "/x.sock"), field("a", "b")]);
        let (one, two) = block.split_at(5);
        let first = [&[3][..], &[0; 5], one, &[0; 3]].concat();
        let flags = PADDED | PRIORITY | END_STREAM;
        let input =
            [PREFACE, &frame(HEADERS, flags, 3, &first), &frame(CONTINUATION, END_HEADERS, 3, two)]
                .concat();
        let wanted = encode(&[field(":authority", "localhost"), field("a", "b")]);
        let output = [PREFACE, &frame(HEADERS, END_HEADERS | END_STREAM, 3, &wanted)].concat();
        assert_eq!(through(&input, input.len()).await.unwrap(), output);
    }

    #[tokio::test]
    async fn a_block_larger_than_a_frame_is_split() {
        let long = "x".repeat(MAX_FRAME + 10);
        let block = encode(&[field("long", &long)]);
        let (one, two) = block.split_at(MAX_FRAME);
        let input =
            [PREFACE, &frame(HEADERS, 0, 1, one), &frame(CONTINUATION, END_HEADERS, 1, two)]
                .concat();
        assert_eq!(through(&input, 1000).await.unwrap(), input);
    }

    #[tokio::test]
    async fn other_protocols_pass_and_broken_ones_end() {
        let http1 = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(through(http1, 3).await.unwrap(), http1);
        let stray = [PREFACE, &frame(CONTINUATION, END_HEADERS, 1, b"")].concat();
        assert!(through(&stray, 5).await.is_err());
        let cut = [PREFACE, &frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0])].concat();
        assert!(through(&cut, 5).await.is_err());
    }
}
