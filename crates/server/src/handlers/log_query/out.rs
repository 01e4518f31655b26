//! Streams the output to the caller: in pieces, compressed if requested, with only a few pieces in
//! memory at a time.

use axum::body::{Body, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::convert::Infallible;
use std::io::Write as _;
use tokio::sync::mpsc;

const PIECES: usize = 4;
/// Responses up to this size have a `Content-Length`, as with Go's buffer.
const SHORT: usize = 4096;

/// The caller has disconnected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// The writing end.
#[derive(Debug)]
pub(super) struct Out {
    sink: mpsc::Sender<Vec<u8>>,
    packer: Option<GzEncoder<Vec<u8>>>,
}

/// The end that the caller reads from.
#[derive(Debug)]
pub(super) struct Pieces(mpsc::Receiver<Vec<u8>>);

/// Both ends.
pub(super) fn channel(packed: bool) -> (Out, Pieces) {
    let (sink, pieces) = mpsc::channel(PIECES);
    let packer = packed.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
    (Out { sink, packer }, Pieces(pieces))
}

impl Out {
    /// Writes bytes; waits if the caller does not keep up.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let piece = match &mut self.packer {
            None => bytes.to_vec(),
            Some(packer) => {
                // Writing to memory cannot fail.
                let _ = packer.write_all(bytes);
                std::mem::take(packer.get_mut())
            }
        };
        if piece.is_empty() {
            return Ok(());
        }
        self.sink.send(piece).await.map_err(|_| Gone)
    }

    /// Writes the rest.
    pub(super) async fn finish(self) {
        if let Some(rest) = self.packer.and_then(|packer| packer.finish().ok()) {
            // The caller may have disconnected.
            let _ = self.sink.send(rest).await;
        }
    }
}

impl Pieces {
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().await
    }

    /// The body: complete if it is short, otherwise streamed.
    pub(super) async fn body(mut self) -> Body {
        let mut first = Vec::new();
        while first.len() <= SHORT {
            match self.next().await {
                Some(piece) => first.extend(piece),
                None => return Body::from(first),
            }
        }
        let rest = futures::stream::unfold((Some(first), self), |(first, mut all)| async move {
            let piece = match first {
                Some(first) => first,
                None => all.next().await?,
            };
            Some((Ok::<_, Infallible>(Bytes::from(piece)), (None, all)))
        });
        Body::from_stream(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::HttpBody as _;
    use http_body_util::BodyExt as _;
    use std::io::Read as _;

    async fn sent(text: &str, packed: bool) -> (Option<u64>, Vec<u8>) {
        let (mut out, pieces) = channel(packed);
        let write = async {
            for piece in text.as_bytes().chunks(1000) {
                out.write(piece).await.unwrap();
            }
            out.finish().await;
        };
        let read = async {
            let body = pieces.body().await;
            (body.size_hint().exact(), body.collect().await.unwrap().to_bytes().to_vec())
        };
        tokio::join!(write, read).1
    }

    #[tokio::test]
    async fn short_answers_have_a_length_and_long_ones_are_streamed() {
        assert_eq!(sent("", false).await, (Some(0), Vec::new()));
        let short = "x".repeat(SHORT);
        assert_eq!(sent(&short, false).await, (Some(4096), short.into_bytes()));
        let long = "x".repeat(1 << 20);
        assert_eq!(sent(&long, false).await, (None, long.clone().into_bytes()));
        let (_, packed) = sent(&long, true).await;
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).unwrap();
        assert_eq!(text, long);
    }
}
