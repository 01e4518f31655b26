//! An answer whose length is known when it has been read.

use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

type Told = Box<dyn FnOnce(u64) + Send>;

/// A body that tells its length at its end; one that nobody reads to its end has none.
pub(crate) struct Measured<B = Incoming> {
    body: B,
    read: u64,
    told: Option<Told>,
}

impl<B> Measured<B> {
    pub(super) fn new(body: B, told: Option<impl FnOnce(u64) + Send + 'static>) -> Self {
        Self { body, read: 0, told: told.map(|told| Box::new(told) as Told) }
    }
}

impl<B> fmt::Debug for Measured<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measured").field("read", &self.read).finish_non_exhaustive()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Measured<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.read = self.read.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
            }
            Poll::Ready(None) => {
                let read = self.read;
                if let Some(told) = self.told.take() {
                    told(read);
                }
            }
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        // The end is told to whoever asks for one frame more.
        self.told.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full, StreamBody};
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn a_length_is_told_once_the_last_byte_was_read() {
        let lengths = Arc::new(Mutex::new(Vec::new()));
        let measured = |pieces: Vec<&'static str>| {
            let lengths = Arc::clone(&lengths);
            let told = move |bytes| lengths.lock().unwrap().push(bytes);
            let frames =
                pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece.into())));
            Measured::new(StreamBody::new(futures::stream::iter(frames)), Some(told))
        };
        measured(vec!["ab", "", "cde"]).collect().await.unwrap();
        measured(vec![]).collect().await.unwrap();
        measured(vec!["a", "b"]).frame().await.unwrap().unwrap();
        assert_eq!(*lengths.lock().unwrap(), [5, 0], "the third was not read to its end");
        let quiet = Measured::new(Full::new(Bytes::from("x")), None::<fn(u64)>);
        assert_eq!(quiet.collect().await.unwrap().to_bytes(), "x");
    }
}
