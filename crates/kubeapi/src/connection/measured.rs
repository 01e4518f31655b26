//! A response body being read: reports its length at its end, has a deadline, and holds its stream.

use super::wire::Slot;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Sleep};
use tower::BoxError;

type OnEnd = Box<dyn FnOnce(u64) + Send>;

/// The deadline of a response, and the error when it is exceeded.
pub(crate) struct Within {
    end: Pin<Box<Sleep>>,
    late: Option<Box<dyn FnOnce() -> BoxError + Send>>,
}

impl Within {
    pub(super) fn new(end: Instant, late: impl FnOnce() -> BoxError + Send + 'static) -> Self {
        Self { end: Box::pin(tokio::time::sleep_until(end)), late: Some(Box::new(late)) }
    }

    fn poll_late(&mut self, context: &mut Context<'_>) -> Option<BoxError> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => self.late.take().map(|late| late()),
            Poll::Pending => None,
        }
    }
}

/// A body that reports its length at its end, if it is read that far.
pub(crate) struct Measured<B = Incoming> {
    body: B,
    read: u64,
    on_end: Option<OnEnd>,
    slot: Option<Slot>,
    within: Option<Within>,
}

impl<B> Measured<B> {
    pub(super) fn new(body: B, on_end: Option<impl FnOnce(u64) + Send + 'static>) -> Self {
        let on_end = on_end.map(|on_end| Box::new(on_end) as OnEnd);
        Self { body, read: 0, on_end, slot: None, within: None }
    }

    /// Holds the stream until the end of the body.
    pub(super) fn holding(self, slot: Option<Slot>) -> Self {
        Self { slot, ..self }
    }

    /// Sets a deadline.
    pub(super) fn within(self, within: Option<Within>) -> Self {
        Self { within, ..self }
    }
}

impl<B> fmt::Debug for Measured<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measured").field("read", &self.read).finish_non_exhaustive()
    }
}

impl<B> Body for Measured<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.read = self.read.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
            }
            Poll::Ready(Some(Err(_))) => self.slot = None,
            Poll::Ready(None) => {
                let read = self.read;
                self.slot = None;
                if let Some(on_end) = self.on_end.take() {
                    on_end(read);
                }
            }
            Poll::Pending => {
                if let Some(error) = self.within.as_mut().and_then(|w| w.poll_late(context)) {
                    self.slot = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        // The end is reported when one more frame is requested.
        self.on_end.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use http_body_util::{BodyExt, Full, StreamBody};
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn a_length_is_told_once_the_last_byte_was_read() {
        let lengths = Arc::new(Mutex::new(Vec::new()));
        let measured = |pieces: Vec<&'static str>| {
            let lengths = Arc::clone(&lengths);
            let on_end = move |bytes| lengths.lock().unwrap().push(bytes);
            let frames =
                pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece.into())));
            Measured::new(StreamBody::new(futures::stream::iter(frames)), Some(on_end))
        };
        measured(vec!["ab", "", "cde"]).collect().await.unwrap();
        measured(vec![]).collect().await.unwrap();
        measured(vec!["a", "b"]).frame().await.unwrap().unwrap();
        assert_eq!(*lengths.lock().unwrap(), [5, 0], "the third was not read to its end");
        let quiet = Measured::new(Full::new(Bytes::from("x")), None::<fn(u64)>);
        assert_eq!(quiet.collect().await.unwrap().to_bytes(), "x");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_half_way_is_given_up_at_its_deadline() {
        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("half")))]);
        let body = StreamBody::new(first.chain(futures::stream::pending()));
        let end = Instant::now() + std::time::Duration::from_secs(30);
        let within = Within::new(end, || "too late".into());
        let measured = Measured::new(body, None::<fn(u64)>).within(Some(within));
        assert_eq!(measured.collect().await.unwrap_err().to_string(), "too late");
        assert_eq!(Instant::now(), end);
    }
}
