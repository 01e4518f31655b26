//! The gRPC connection to an instance of a driver.
//!
//! Promises: all calls share it, also those made before the driver listens; a call that finds it down triggers
//! an attempt at once and waits for that attempt only.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::{Notify, watch};
use tonic::Status;
use tonic::transport::Channel;

/// A connection that is kept up by a task that calls [`Link::hold`] in a loop.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: PathBuf,
    state: watch::Sender<State>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    channel: Option<Channel>,
    /// The number of failed attempts, and the last error.
    failed: u64,
    why: String,
}

impl Link {
    pub(super) fn new(endpoint: &Path) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            state: watch::Sender::default(),
            wanted: Notify::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.borrow().channel.is_some()
    }

    /// The connection, after another attempt if it is down.
    pub(super) async fn channel(&self) -> Result<Channel, Status> {
        let mut state = self.state.subscribe();
        let failed = state.borrow().failed;
        if !self.is_up() {
            self.wanted.notify_one();
        }
        let settled = state.wait_for(|now| now.channel.is_some() || now.failed != failed).await;
        let Ok(settled) = settled else {
            return Err(Status::unavailable("grpc: the client connection is closing"));
        };
        settled.channel.clone().ok_or_else(|| Status::unavailable(settled.why.clone()))
    }

    /// Waits until a call needs the connection while it is down.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Connects and returns when the connection is lost; whether there was one. `changed` is called when it is
    /// established and when it is lost.
    pub(super) async fn hold(&self, changed: impl Fn()) -> bool {
        let (channel, mut up) = match sockets::connect_notifying(&self.endpoint).await {
            Ok(connected) => connected,
            Err(error) => {
                let why = dial_error(&self.endpoint, &error);
                self.state.send_modify(|state| {
                    state.failed = state.failed.wrapping_add(1);
                    state.why = why;
                });
                return false;
            }
        };
        self.state.send_modify(|state| state.channel = Some(channel));
        changed();
        // An error means that the sender is gone.
        let _ = up.wait_for(|up| !up).await;
        self.state.send_modify(|state| state.channel = None);
        changed();
        true
    }
}

/// Why a socket cannot be dialled, as grpc-go words it.
fn dial_error(endpoint: &Path, error: &tonic::transport::Error) -> String {
    let mut source = error.source();
    let mut text = error.to_string();
    while let Some(cause) = source {
        text = match cause.downcast_ref::<io::Error>() {
            Some(cause) => units::errno::go_text(cause),
            None => cause.to_string(),
        };
        source = cause.source();
    }
    let endpoint = endpoint.display();
    format!(
        "connection error: desc = \"transport: Error while dialing: dial unix {endpoint}: connect: {text}\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn calls_before_and_after_the_driver_listens_share_one_connection() {
        let name = format!("rubelet-dra-link-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let link = Link::new(&socket);
        let keeper = async {
            loop {
                link.hold(|| {}).await;
                link.wanted().await;
            }
        };
        let calls = async {
            let refused = link.channel().await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unavailable);
            assert!(refused.message().ends_with("connect: no such file or directory\""));
            assert!(!link.is_up());
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            for _ in 0..3 {
                link.channel().await.unwrap();
            }
            assert!(link.is_up());
            let (first, _) = listener.accept().await.unwrap();
            assert!(listener.accept().now_or_never().is_none(), "a second connection");
            // The driver stops: the next call fails and does not hang.
            drop((first, listener));
            while link.is_up() {
                tokio::task::yield_now().await;
            }
            assert!(link.channel().await.is_err());
        };
        tokio::select! {
            () = keeper => {}
            () = calls => {}
        }
        sys::fs::remove_file(&socket).unwrap();
    }
}
