//! SPDY/3.1 as far as a client of a runtime's streaming server needs it.
//!
//! Owns: frames and the compressed headers of new streams. Deliberately absent: flow control, which
//! those servers do not use, and the headers of replies, which say nothing.

use flate2::{Compress, Compression, FlushCompress};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The dictionary that header blocks are compressed with (SPDY/3, section 2.6.10.1).
const DICTIONARY: &[u8] = include_bytes!("spdy/dictionary.bin");
/// More than a streaming server puts into one frame.
const MOST: usize = 1 << 22;
const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;

/// What came from the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Bytes of a stream; `end` if they are the last.
    Data {
        /// The stream.
        stream: u32,
        /// No more will come.
        end: bool,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A stream is over.
    Reset(u32),
    /// To be sent back as it is.
    Ping(u32),
    /// The connection is over.
    GoAway,
    /// Nothing that matters here.
    Other,
}

/// Writes the headers of new streams; one for each connection.
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

/// Bytes of a stream.
pub(crate) fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(bytes.len() + 8);
    frame.extend(stream.to_be_bytes());
    frame.extend(length(if end { FIN } else { 0 }, bytes.len()));
    frame.extend(bytes);
    frame
}

/// An answer to a ping.
pub(crate) fn ping(id: u32) -> Vec<u8> {
    control(PING, 0, &id.to_be_bytes())
}

/// Reads one frame. Not cancel-safe.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut head = [0_u8; 8];
    stream.read_exact(&mut head).await?;
    let [a, b, c, d, flags, x, y, z] = head;
    let size = usize::try_from(u32::from_be_bytes([0, x, y, z])).unwrap_or(MOST + 1);
    if size > MOST {
        return Err(io::Error::other("a frame is too large"));
    }
    let mut body = vec![0; size];
    stream.read_exact(&mut body).await?;
    if a & 0x80 == 0 {
        let stream = u32::from_be_bytes([a, b, c, d]);
        return Ok(Frame::Data { stream, end: flags & FIN != 0, data: body });
    }
    let first = body.first_chunk::<4>().map_or(0, |id| u32::from_be_bytes(*id) & 0x7fff_ffff);
    Ok(match u16::from_be_bytes([c, d]) {
        SYN_REPLY if flags & FIN != 0 => Frame::Data { stream: first, end: true, data: Vec::new() },
        RST_STREAM => Frame::Reset(first),
        PING => Frame::Ping(first),
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Decompress, FlushDecompress, Status};

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let mut wire = data(5, b"abc", true);
        wire.extend(ping(2));
        let mut wire = wire.as_slice();
        let want = Frame::Data { stream: 5, end: true, data: b"abc".to_vec() };
        assert_eq!(read(&mut wire).await.unwrap(), want);
        assert_eq!(read(&mut wire).await.unwrap(), Frame::Ping(2));
        assert!(read(&mut wire).await.is_err());
        assert!(read(&mut [0, 0, 0, 1, 0, 255, 255, 255].as_slice()).await.is_err());
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
