//! Connects to the sockets of plugins. The authority is always `localhost`.

use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// How long one attempt over the network may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Why a plugin could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No connection in time.
    #[error("context deadline exceeded")]
    TimedOut,
}

/// A channel that connects with the first call, and again when the connection is lost.
pub fn lazy(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    Endpoint::from_static("http://localhost")
        .connect_with_connector_lazy(tower::service_fn(move |_| open(socket.clone())))
}

/// A channel to a gRPC target (`host:port`, `dns:///host:port`, `unix:/path`), without encryption;
/// connects with the first call.
pub fn lazy_target(target: &str) -> Result<Channel, tonic::transport::Error> {
    if let Some(path) = target.strip_prefix("unix:") {
        return Ok(lazy(Path::new(path.strip_prefix("//").unwrap_or(path))));
    }
    let address = match target.strip_prefix("dns:") {
        Some(rest) => rest.rsplit('/').next().unwrap_or(rest),
        None => target,
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    Ok(endpoint.connect_timeout(CONNECT).connect_lazy())
}

/// A connected channel; retries until `within` has passed, because the plugin may be about to
/// listen.
pub async fn connect(socket: &Path, within: Duration) -> Result<Channel, DialError> {
    const FIRST: Duration = Duration::from_millis(100);
    let attempts = async {
        let mut wait = FIRST;
        loop {
            let socket = socket.to_owned();
            let connector = tower::service_fn(move |_| open(socket.clone()));
            let endpoint = Endpoint::from_static("http://localhost");
            match endpoint.connect_with_connector(connector).await {
                Ok(channel) => return channel,
                Err(error) => {
                    tracing::debug!(err = %with_causes(&error), "Failed to connect to the socket, retrying");
                }
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    };
    tokio::time::timeout(within, attempts).await.map_err(|_| DialError::TimedOut)
}

async fn open(socket: PathBuf) -> std::io::Result<TokioIo<UnixStream>> {
    UnixStream::connect(socket).await.map(TokioIo::new)
}

/// An error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A failed call in Go's words: `rpc error: code = Unknown desc = …`.
pub fn go_error(status: &tonic::Status) -> String {
    format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
}

/// The name of a code as Go has it.
pub fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
