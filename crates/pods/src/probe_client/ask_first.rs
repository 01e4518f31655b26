//! A connection on which nothing is read before something was written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Servers made of a shell and `nc` answer whoever connects, without waiting to be asked. The HTTP
/// library takes an answer without a question for a fault, so it sees nothing until it has asked.
#[derive(Debug)]
pub(super) struct AskFirst<T> {
    stream: T,
    asked: bool,
    reader: Option<Waker>,
}

impl<T> AskFirst<T> {
    pub(super) fn new(stream: T) -> Self {
        Self { stream, asked: false, reader: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for AskFirst<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AskFirst<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        // A write that failed is an end to waiting too: what came before it may still be read.
        self.asked = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
