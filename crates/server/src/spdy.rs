//! The part of SPDY/3.1 that a client of a runtime's streaming server needs.
//!
//! Owns: frames and the compressed headers of new streams. Deliberately absent: flow control, which
//! those servers do not use, and the headers of replies, which carry no information.

use flate2::{Compress, Compression, FlushCompress};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The dictionary that header blocks are compressed with (SPDY/3, section 2.6.10.1).
const DICTIONARY: &[u8] = include_bytes!("spdy/dictionary.bin");
/// The maximal bytes of a data frame that are returned at once.
const PIECE: usize = 16 << 10;
/// Larger than any control frame of a streaming server.
const MOST_CONTROL: usize = 64 << 10;
/// The maximal length of a frame (24 bits).
const MOST: usize = (1 << 24) - 1;
const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;

/// A frame from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Bytes of a stream, possibly part of a frame; `end` if they are the last.
    Data {
        /// The stream.
        stream: u32,
        /// No more will come.
        end: bool,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A stream was reset.
    Reset(u32),
    /// To be sent back unchanged.
    Ping(u32),
    /// The peer closes the connection.
    GoAway,
    /// A frame that is ignored.
    Other,
}

/// Compresses the headers of new streams; one per connection.
#[derive(Debug)]
pub(crate) struct Headers(Compress);

impl Headers {
    pub(crate) fn new() -> io::Result<Self> {
        let mut compress = Compress::new(Compression::default(), true);
        compress.set_dictionary(DICTIONARY).map_err(io::Error::other)?;
        Ok(Self(compress))
    }

    /// Opens a stream with one header.
    pub(crate) fn open(&mut self, stream: u32, name: &str, value: &str) -> io::Result<Vec<u8>> {
        let mut block = Vec::new();
        block.extend(1_u32.to_be_bytes());
        for text in [name, value] {
            block.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
            block.extend(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(block.len() + 256);
        self.0.compress_vec(&block, &mut packed, FlushCompress::Sync).map_err(io::Error::other)?;
        let mut body = Vec::new();
        body.extend(stream.to_be_bytes());
        body.extend(0_u32.to_be_bytes());
        body.extend([0, 0]);
        body.extend(packed);
        Ok(control(SYN_STREAM, 0, &body))
    }
}

fn control(kind: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 8);
    frame.extend(VERSION.to_be_bytes());
    frame.extend(kind.to_be_bytes());
    frame.extend(length(flags, body.len()));
    frame.extend(body);
    frame
}

fn length(flags: u8, length: usize) -> [u8; 4] {
    let [_, a, b, c] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    [flags, a, b, c]
}

/// Bytes of a stream, as many as a frame can hold.
pub(crate) fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    let bytes = bytes.get(..MOST).unwrap_or(bytes);
    let mut frame = Vec::with_capacity(bytes.len() + 8);
    frame.extend(stream.to_be_bytes());
    frame.extend(length(if end { FIN } else { 0 }, bytes.len()));
    frame.extend(bytes);
    frame
}

/// The response to a ping.
pub(crate) fn ping(id: u32) -> Vec<u8> {
    control(PING, 0, &id.to_be_bytes())
}

/// Reads the frames of a streaming server.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    from: R,
    /// The current data frame: its stream, the remaining bytes, and whether it is the last.
    data: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, data: None }
    }

    /// The next frame, or the next piece of one. Not cancel-safe.
    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        if let Some((stream, left, fin)) = self.data.take() {
            return self.piece(stream, left, fin).await;
        }
        let mut head = [0_u8; 8];
        self.from.read_exact(&mut head).await?;
        let [a, b, c, d, flags, x, y, z] = head;
        let size = usize::try_from(u32::from_be_bytes([0, x, y, z])).unwrap_or(MOST);
        if a & 0x80 == 0 {
            let stream = u32::from_be_bytes([a, b, c, d]);
            return self.piece(stream, size, flags & FIN != 0).await;
        }
        if size > MOST_CONTROL {
            return Err(io::Error::other("a control frame is too large"));
        }
        let mut body = vec![0; size];
        self.from.read_exact(&mut body).await?;
        let first = body.first_chunk::<4>().map_or(0, |id| u32::from_be_bytes(*id) & 0x7fff_ffff);
        Ok(match u16::from_be_bytes([c, d]) {
            SYN_REPLY if flags & FIN != 0 => {
                Frame::Data { stream: first, end: true, data: Vec::new() }
            }
            RST_STREAM => Frame::Reset(first),
            PING => Frame::Ping(first),
            GOAWAY => Frame::GoAway,
            _ => Frame::Other,
        })
    }

    async fn piece(&mut self, stream: u32, left: usize, fin: bool) -> io::Result<Frame> {
        let mut data = vec![0; left.min(PIECE)];
        let read = if left == 0 { 0 } else { self.from.read(&mut data).await? };
        if read == 0 && left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        data.truncate(read);
        let left = left.saturating_sub(read);
        if left > 0 {
            self.data = Some((stream, left, fin));
        }
        Ok(Frame::Data { stream, end: fin && left == 0, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Decompress, FlushDecompress, Status};

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let mut wire = data(5, b"abc", true);
        wire.extend(ping(2));
        let mut reader = Reader::new(wire.as_slice());
        let want = Frame::Data { stream: 5, end: true, data: b"abc".to_vec() };
        assert_eq!(reader.next().await.unwrap(), want);
        assert_eq!(reader.next().await.unwrap(), Frame::Ping(2));
        assert!(reader.next().await.is_err());
        let large = [0x80, 3, 0, 2, 0, 255, 255, 255];
        assert!(Reader::new(large.as_slice()).next().await.is_err(), "a control frame");
    }

    #[tokio::test]
    async fn large_frames_come_in_pieces_and_small_ones_are_made() {
        let wire = data(7, &vec![b'x'; 1 << 25], true);
        assert_eq!(wire.len(), 8 + MOST, "no more than its length can say");
        let (mut reader, mut all) = (Reader::new(wire.as_slice()), 0);
        loop {
            let Frame::Data { stream: 7, end, data } = reader.next().await.unwrap() else {
                panic!("only data was sent");
            };
            assert!(data.len() <= PIECE);
            all += data.len();
            if end {
                break;
            }
        }
        assert_eq!(all, MOST);
    }

    #[test]
    fn headers_unpack_with_the_dictionary() {
        let mut headers = Headers::new().unwrap();
        let mut unpack = Decompress::new(true);
        for kind in ["error", "stdout"] {
            let frame = headers.open(1, "streamtype", kind).unwrap();
            let packed = &frame[18..];
            let mut out = Vec::with_capacity(4096);
            let status = unpack.decompress_vec(packed, &mut out, FlushDecompress::Sync);
            if status.is_err() || status.unwrap() == Status::BufError {
                unpack.set_dictionary(DICTIONARY).unwrap();
                let rest = &packed[usize::try_from(unpack.total_in()).unwrap()..];
                unpack.decompress_vec(rest, &mut out, FlushDecompress::Sync).unwrap();
            }
            assert!(out.ends_with(kind.as_bytes()), "{out:?}");
        }
    }
}
