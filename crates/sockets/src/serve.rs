//! Serving on a socket of ours.

use crate::authority::LocalAuthority;
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

/// How often a name is taken that others want as well.
const ATTEMPTS: u32 = 10;

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

/// A socket that clients can dial already.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
    path: PathBuf,
}

impl Listening {
    /// Binds a new socket; what has its name is removed first.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError { path: path.to_owned(), source };
        let mut attempts = ATTEMPTS;
        let listener = loop {
            sys::fs::remove_file(path).map_err(|error| failed(error.source))?;
            attempts -= 1;
            match UnixListener::bind(path) {
                Ok(listener) => break listener,
                // Somebody else took the name in between; the last one has it.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(error) => return Err(failed(error)),
            }
        };
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Takes a socket over: it is bound under another name and put in place in one step.
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

    /// Answers until the token is cancelled; an error means that nobody is answered any more.
    pub async fn serve(
        self,
        routes: Routes,
        token: CancellationToken,
    ) -> Result<(), tonic::transport::Error> {
        let connections = UnixListenerStream::new(self.listener)
            .map(|accepted| accepted.map(|stream| Connection(LocalAuthority::new(stream))));
        let ended = async move { token.cancelled().await };
        let routes = unknown::told(routes);
        Server::builder().add_routes(routes).serve_with_incoming_shutdown(connections, ended).await
    }
}

/// One client's connection.
#[derive(Debug)]
pub struct Connection(LocalAuthority<UnixStream>);

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
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
