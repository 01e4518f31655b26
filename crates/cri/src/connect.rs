//! Connections on demand, with a back-off between failed attempts.
//!
//! A call without a connection starts an attempt. During the back-off after a failed one, calls
//! fail at once with that error, so that a dead runtime costs nothing but the error. (grpc-go does
//! the same in its state `TRANSIENT_FAILURE`.)

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use telemetry::go_text::quote;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::Channel;
use tower::Service;
use units::errno::go_text;

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LAST_DELAY: Duration = Duration::from_secs(3);
const GROWTH: f64 = 1.6;
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The receive window, large enough for complete lists: with HTTP/2's default of 64 KiB a large
/// response would wait for window updates.
const WINDOW_BYTES: u32 = 1 << 20;

/// The maximal size of a failed call's message, as in grpc-go. hyper's default of 16 KiB would end
/// the connection, and every other call on it, when a runtime repeats pod-controlled text (a
/// command of a megabyte that is not found).
const ERROR_BYTES: u32 = 16 << 20;

/// The target of a socket without a path.
const NOWHERE: &str = "dial unix ";

/// The delay after that many failures in a row.
pub(crate) fn backoff(failures: u32) -> Duration {
    let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let delay = FIRST_DELAY.as_secs_f64() * GROWTH.powi(exponent);
    Duration::try_from_secs_f64(delay).unwrap_or(LAST_DELAY).min(LAST_DELAY)
}

/// A two-way byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

type Connect = dyn Fn() -> BoxFuture<'static, io::Result<Box<dyn Io>>> + Send + Sync;

/// Connects to a service: by a socket, or in tests by any byte stream. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    connect: Arc<Connect>,
    target: String,
}

impl Connector {
    /// Connects to a Unix socket.
    pub fn unix(path: &Path) -> Self {
        let path: PathBuf = path.to_owned();
        let target = format!("{NOWHERE}{}", path.display());
        Self::new(target, move || UnixStream::connect(path.clone()))
    }

    /// Connects with a function. `target` names it in errors.
    pub fn new<F, T, Stream>(target: impl Into<String>, connect: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = io::Result<Stream>> + Send + 'static,
        Stream: Io,
    {
        let connect = move || {
            let attempt = connect();
            let boxed: BoxFuture<'static, io::Result<Box<dyn Io>>> =
                Box::pin(
                    async move { attempt.await.map(|stream| Box::new(stream) as Box<dyn Io>) },
                );
            boxed
        };
        Self { connect: Arc::new(connect), target: target.into() }
    }

    /// A channel that connects on first use. Needs a tokio runtime.
    pub(crate) fn channel(self) -> Channel {
        let state = Arc::new(Mutex::new(DialState::default()));
        tonic::transport::Endpoint::from_static("http://localhost")
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .http2_max_header_list_size(ERROR_BYTES)
            .connect_with_connector_lazy(Dialer { connector: self, state })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connector").field(&self.target).finish()
    }
}

/// Why there is no connection, in grpc-go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DialError {
    /// The attempt failed.
    #[error("connection error: desc = {}", quote(&format!("transport: Error while dialing: {}", .0)))]
    Failed(String),
    /// There is no address.
    #[error("dns resolver: missing address")]
    NoAddress,
}

#[derive(Debug, Default)]
struct DialState {
    failures: u32,
    held: Option<(Instant, DialError)>,
}

struct Dialer {
    connector: Connector,
    state: Arc<Mutex<DialState>>,
}

impl Service<http::Uri> for Dialer {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let state = Arc::clone(&self.state);
        let held = state.lock().unwrap_or_else(PoisonError::into_inner).held.clone();
        if let Some((until, error)) = held
            && Instant::now() < until
        {
            return Box::pin(async move { Err(error) });
        }
        let attempt = (self.connector.connect)();
        let target = self.connector.target.clone();
        Box::pin(async move {
            let outcome = match tokio::time::timeout(ATTEMPT, attempt).await {
                Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
                Ok(Err(_)) if target == NOWHERE => Err(DialError::NoAddress),
                Ok(Err(err)) => {
                    Err(DialError::Failed(format!("{target}: connect: {}", go_text(&err))))
                }
                Err(_) => Err(DialError::Failed(format!("{target}: i/o timeout"))),
            };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            match &outcome {
                Ok(_) => *state = DialState::default(),
                Err(error) => {
                    state.failures = state.failures.saturating_add(1);
                    let until = Instant::now() + backoff(state.failures);
                    state.held = Some((until, error.clone()));
                }
            }
            outcome
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_to_three_seconds() {
        assert_eq!(backoff(1), Duration::from_millis(100));
        assert_eq!(backoff(2), Duration::from_millis(160));
        assert_eq!(backoff(9), LAST_DELAY);
        assert_eq!(backoff(u32::MAX), LAST_DELAY);
    }

    #[test]
    fn a_missing_socket_reads_as_in_grpc_go() {
        let err = io::Error::from_raw_os_error(2);
        let text = format!("dial unix /x.sock: connect: {}", go_text(&err));
        let text = DialError::Failed(text).to_string();
        assert_eq!(
            text,
            "connection error: desc = \"transport: Error while dialing: dial unix /x.sock: \
             connect: no such file or directory\""
        );
    }
}
