//! Connections that report when they are closed.

use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

/// A connected channel; the receiver says whether it still is.
pub async fn connect_notifying(
    socket: &Path,
) -> Result<(Channel, watch::Receiver<bool>), tonic::transport::Error> {
    let (state, connected) = watch::channel(false);
    let state = Arc::new(state);
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| open(socket.clone(), Arc::clone(&state)));
    let channel =
        Endpoint::from_static("http://localhost").connect_with_connector(connector).await?;
    Ok((channel, connected))
}

async fn open(
    socket: PathBuf,
    state: Arc<watch::Sender<bool>>,
) -> io::Result<TokioIo<NotifyOnClose>> {
    let stream = UnixStream::connect(socket).await?;
    state.send_replace(true);
    Ok(TokioIo::new(NotifyOnClose { stream, state }))
}

/// Reports when it is closed.
#[derive(Debug)]
struct NotifyOnClose {
    stream: UnixStream,
    state: Arc<watch::Sender<bool>>,
}

impl Drop for NotifyOnClose {
    fn drop(&mut self) {
        self.state.send_replace(false);
    }
}

impl AsyncRead for NotifyOnClose {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for NotifyOnClose {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
