//! The runtime's events, as a stream that reopens itself.
//!
//! ```text
//!            ┌────────────── back-off over ◀──┐
//!            ▼                                │
//!  start ▶ opening ──▶ open ──▶ lost ──────▶ waiting
//!            │                                ▲
//!            └── not implemented: unsupported ┘
//! ```
//!
//! Events are hints: those sent while no stream was open are lost, so each [`RuntimeEvent::Opened`]
//! means that everything must be relisted. A runtime in Go sends nothing at all until its first
//! event, so an attempt that is still quiet after `QUIET` counts as open.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use proto::cri_v1::{ContainerEventResponse, GetEventsRequest};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::call::Call;
use crate::client::RuntimeClient;
use crate::connect::backoff;
use crate::error::CriError;

/// How long an attempt must stay quiet to count as open.
const QUIET: Duration = Duration::from_millis(250);
/// After a stream that lasted this long, the back-off is reset.
const STEADY: Duration = Duration::from_secs(10);
/// How often a runtime without events is tried again (it may have been upgraded).
const UNSUPPORTED_RETRY: Duration = Duration::from_secs(60);

/// An item of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimeEvent {
    /// Events are received from now on; earlier ones may have been missed.
    Opened,
    /// Something happened to a container.
    Event(Box<ContainerEventResponse>),
    /// The stream broke; it will be opened again.
    Lost(CriError),
    /// The runtime has no events; it will be tried again later.
    Unsupported,
}

/// Events of one runtime.
pub struct EventStream {
    client: RuntimeClient,
    state: State,
    failures: u32,
    started: Instant,
}

type Events = Streaming<ContainerEventResponse>;

enum State {
    Waiting(Instant),
    Opening { attempt: BoxFuture<'static, Result<Events, Status>>, announced: bool },
    Open(Box<Events>),
}

impl EventStream {
    pub(crate) fn new(client: RuntimeClient) -> Self {
        let now = Instant::now();
        Self { client, state: State::Waiting(now), failures: 0, started: now }
    }

    /// The next item. Never ends; cancel-safe.
    pub async fn next(&mut self) -> RuntimeEvent {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.open();
                }
                State::Opening { attempt, announced: false } => {
                    // Cancel-safe: the attempt lives in `self`, the deadline is fixed.
                    match tokio::time::timeout_at(self.started + QUIET, attempt).await {
                        Ok(Ok(events)) => self.state = State::Open(Box::new(events)),
                        Ok(Err(status)) => return self.lost(&status),
                        Err(_) => {
                            if let State::Opening { announced, .. } = &mut self.state {
                                *announced = true;
                            }
                        }
                    }
                    return self.opened();
                }
                State::Opening { attempt, announced: true } => match attempt.await {
                    Ok(events) => self.state = State::Open(Box::new(events)),
                    Err(status) => return self.lost(&status),
                },
                // Cancel-safe: a partly read message stays in the stream.
                State::Open(events) => match events.message().await {
                    Ok(Some(event)) => {
                        self.failures = 0;
                        return RuntimeEvent::Event(Box::new(event));
                    }
                    Ok(None) => return self.lost(&Status::new(Code::Unavailable, "EOF")),
                    Err(status) => return self.lost(&status),
                },
            }
        }
    }

    fn open(&mut self) {
        self.started = Instant::now();
        let mut service = self.client.runtime_service();
        let attempt = Box::pin(async move {
            let opened = service.get_container_events(GetEventsRequest {}).await;
            opened.map(tonic::Response::into_inner)
        });
        self.state = State::Opening { attempt, announced: false };
    }

    fn opened(&self) -> RuntimeEvent {
        self.client.learn_events();
        RuntimeEvent::Opened
    }

    fn lost(&mut self, status: &Status) -> RuntimeEvent {
        let error = CriError::from_status(Call::GetContainerEvents, status);
        self.client.note(Call::GetContainerEvents, self.started, Err(&error));
        if error.is_unimplemented() {
            self.state = State::Waiting(Instant::now() + UNSUPPORTED_RETRY);
            return RuntimeEvent::Unsupported;
        }
        let steady = self.started.elapsed() >= STEADY;
        self.failures = if steady { 1 } else { self.failures.saturating_add(1) };
        self.state = State::Waiting(Instant::now() + backoff(self.failures));
        RuntimeEvent::Lost(error)
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting(_) => "waiting",
            State::Opening { .. } => "opening",
            State::Open(_) => "open",
        };
        f.debug_struct("EventStream").field("state", &state).finish_non_exhaustive()
    }
}
