//! Serves on our own sockets.

use crate::authority::LocalAuthority;
use crate::seats::{Seat, Seats};
use crate::unknown;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

/// How often binding is retried when another process takes the path.
const ATTEMPTS: u32 = 10;
/// Concurrently processed calls of one connection; others wait.
const CALLS: usize = 32;
/// Open streams of one connection.
const STREAMS: u32 = 128;

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("listen on {}", path.display())]
pub struct ListenError {
    /// The socket.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// A socket that clients can already dial.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    /// Binds a new socket; an existing entry of that path is removed first.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError { path: path.to_owned(), source };
        let mut attempts = ATTEMPTS;
        let listener = loop {
            sys::fs::remove_file(path).map_err(|error| failed(error.source))?;
            attempts -= 1;
            match UnixListener::bind(path) {
                Ok(listener) => break listener,
                // Another process took the path in between; the last one has it.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(error) => return Err(failed(error)),
            }
        };
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Replaces a socket: it is bound under another name and renamed into place.
    pub fn replace(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError { path: path.to_owned(), source };
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(".new");
        let staged = path.with_file_name(name);
        sys::fs::remove_file(&staged).map_err(|error| failed(error.source))?;
        let listener = UnixListener::bind(&staged).map_err(failed)?;
        sys::fs::rename(&staged, path).map_err(|error| failed(error.source))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves until the token is cancelled; an error means that nothing is served any more.
    pub async fn serve(
        self,
        routes: Routes,
        token: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        let (seats, path) = (Seats::default(), self.path);
        let connections = UnixListenerStream::new(self.listener).filter_map(move |accepted| {
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => return Some(Err(error)),
            };
            let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
            let Some(seat) = seats.take(peer) else {
                tracing::debug!(socket = %path.display(), peer, "Connection refused: too many connections");
                return None;
            };
            Some(Ok(Connection { stream: LocalAuthority::new(stream), _seat: seat }))
        });
        let ended = async move { token.cancelled().await };
        let routes = unknown::with_go_errors(routes);
        Server::builder()
            .concurrency_limit_per_connection(CALLS)
            .max_concurrent_streams(STREAMS)
            .add_routes(routes)
            .serve_with_incoming_shutdown(connections, ended)
            .await
    }
}

/// One client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: LocalAuthority<UnixStream>,
    _seat: Seat,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
