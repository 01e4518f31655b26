//! A container runtime in memory: an in-process CRI server with real state.
//!
//! Sandboxes, containers and images live as in a real runtime (names are reserved, states move one way, what
//! is not there is `NotFound`), but a container's process is a [`Behaviour`]: it runs for a while, exits with
//! a code, minds or ignores the stop signal. Time is tokio's, so under paused time everything is
//! deterministic. Tests reach it over an in-memory stream ([`FakeCri::client`]) or a socket
//! ([`FakeCri::serve_unix`]), make calls fail, wait or hang ([`Fault`]), cut the connection
//! ([`FakeCri::restart`]), and read what was asked ([`FakeCri::requests_of`]).
//!
//! It does not run anything, mount anything or open any network port.

mod behaviour;
mod exec;
mod fault;
mod image_service;
mod images;
mod lifecycle;
mod runtime_service;
mod state;
mod stats;
mod transport;

use std::any::Any;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cri::{Call, Code, RuntimeClient};
use ports::{Clock, OnExit, Tasks};
use proto::cri_v1::{ContainerEventResponse, ContainerEventType};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub use behaviour::{Behaviour, OnTerm};
pub use exec::{ExecCall, ExecReply};
pub use fault::Fault;
pub use images::Pull;
pub use state::{ContainerRecord, SandboxRecord};

use fault::{Action, Faults};
use state::{Exit, State};

/// Events a slow reader may be behind before it loses some.
const EVENT_BACKLOG: usize = 1024;
/// Calls remembered for [`FakeCri::requests_of`].
const REMEMBERED_CALLS: usize = 100_000;

/// The fake runtime. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct FakeCri {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    state: Mutex<State>,
    faults: Mutex<Faults>,
    disabled: Mutex<BTreeSet<Call>>,
    calls: Mutex<Vec<CallRecord>>,
    exec: Mutex<exec::Script>,
    events: broadcast::Sender<ContainerEventResponse>,
    changes: watch::Sender<u64>,
    /// Cancelled when every connection of the present run must break.
    run: Mutex<CancellationToken>,
    refusing: Mutex<bool>,
    losing: Mutex<bool>,
    authority: Mutex<Option<String>>,
}

/// One call as it arrived.
#[derive(Clone)]
pub struct CallRecord {
    /// What was called.
    pub call: Call,
    /// When.
    pub at: Instant,
    request: Arc<dyn Any + Send + Sync>,
}

impl CallRecord {
    /// The request, if it is of that type.
    pub fn request<M: Any>(&self) -> Option<&M> {
        self.request.downcast_ref()
    }
}

impl std::fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallRecord").field("call", &self.call).field("at", &self.at).finish()
    }
}

impl FakeCri {
    /// An empty runtime whose timestamps come from the clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                tasks: Tasks::new(),
                state: Mutex::new(State::default()),
                faults: Mutex::new(Faults::default()),
                disabled: Mutex::new(BTreeSet::new()),
                calls: Mutex::new(Vec::new()),
                exec: Mutex::new(exec::default_script()),
                events: broadcast::Sender::new(EVENT_BACKLOG),
                changes: watch::Sender::new(0),
                run: Mutex::new(CancellationToken::new()),
                refusing: Mutex::new(false),
                losing: Mutex::new(false),
                authority: Mutex::new(None),
            }),
        }
    }

    /// A client over in-memory streams with the default configuration.
    pub fn client(&self) -> RuntimeClient {
        self.client_with(cri::ClientConfig::default())
    }

    /// A client over in-memory streams.
    pub fn client_with(&self, config: cri::ClientConfig) -> RuntimeClient {
        RuntimeClient::with_connectors(config, self.connector(), self.connector())
    }

    // Faults.

    /// Makes matching calls go wrong.
    pub fn inject(&self, fault: Fault) {
        lock(&self.inner.faults).add(fault);
    }

    /// Takes back every fault; hanging calls stay as they are.
    pub fn clear_faults(&self) {
        *lock(&self.inner.faults) = Faults::default();
    }

    /// The runtime does not have this call from now on.
    pub fn disable(&self, call: Call) {
        lock(&self.inner.disabled).insert(call);
    }

    /// The runtime has this call again.
    pub fn enable(&self, call: Call) {
        lock(&self.inner.disabled).remove(&call);
    }

    /// Breaks every connection, as a restart of the runtime does; sandboxes and containers live on.
    pub fn restart(&self) {
        let run = std::mem::take(&mut *lock(&self.inner.run));
        run.cancel();
    }

    /// Breaks every connection and refuses new ones until [`FakeCri::up`].
    pub fn down(&self) {
        *lock(&self.inner.refusing) = true;
        self.restart();
    }

    /// Takes connections again.
    pub fn up(&self) {
        *lock(&self.inner.refusing) = false;
    }

    /// Events get lost from now on, or arrive again.
    pub fn lose_events(&self, lose: bool) {
        *lock(&self.inner.losing) = lose;
    }

    // Behaviour.

    /// How containers of that name behave from now on.
    pub fn behave(&self, container_name: &str, behaviour: Behaviour) {
        self.behave_in_turn(container_name, vec![behaviour]);
    }

    /// How the containers of that name behave, one after the other; the last stays.
    pub fn behave_in_turn(&self, container_name: &str, behaviours: Vec<Behaviour>) {
        lock(&self.inner.state).behaviours.insert(container_name.to_owned(), behaviours);
    }

    /// What commands run in containers answer.
    pub fn on_exec(&self, script: impl Fn(&ExecCall) -> ExecReply + Send + Sync + 'static) {
        *lock(&self.inner.exec) = Arc::new(script);
    }

    /// Ends a running container's process now.
    pub fn exit(&self, container: &str, exit_code: i32) {
        self.finish(container, Exit::with_code(exit_code));
    }

    /// Ends the process of a container that uses too much memory.
    pub fn oom_kill(&self, container: &str) {
        self.finish(container, Exit::oom_killed());
    }

    /// Forgets what became of a container.
    pub fn forget_state(&self, container: &str) {
        if let Some(record) = lock(&self.inner.state).containers.get_mut(container) {
            record.state = proto::cri_v1::ContainerState::ContainerUnknown;
        }
    }

    /// Ends a sandbox's own process, as a crash of its pause container does.
    pub fn kill_sandbox(&self, sandbox: &str) {
        self.stop_sandbox(sandbox);
    }

    /// Changes conditions of the runtime: `None` is ready, a text is the message of its not being so.
    pub fn set_network_ready(&self, problem: Option<&str>) {
        lock(&self.inner.state).network_problem = problem.map(str::to_owned);
    }

    /// As [`FakeCri::set_network_ready`], for the runtime itself.
    pub fn set_runtime_ready(&self, problem: Option<&str>) {
        lock(&self.inner.state).runtime_problem = problem.map(str::to_owned);
    }

    /// What a pull of that image does; by default it succeeds at once.
    pub fn on_pull(&self, image: &str, pull: Pull) {
        lock(&self.inner.state).images.on_pull(image, pull);
    }

    /// Puts an image in place without a pull; gives its id.
    pub fn add_image(&self, image: &str) -> String {
        let id = lock(&self.inner.state).images.add(image);
        self.changed();
        id
    }

    // What there is.

    /// Every sandbox, oldest first.
    pub fn sandboxes(&self) -> Vec<SandboxRecord> {
        lock(&self.inner.state).sandboxes_by_age()
    }

    /// Every container, oldest first.
    pub fn containers(&self) -> Vec<ContainerRecord> {
        lock(&self.inner.state).containers_by_age()
    }

    /// The newest container of that name.
    pub fn container(&self, name: &str) -> Option<ContainerRecord> {
        self.containers().into_iter().rfind(|container| container.name() == name)
    }

    /// References of the images in place.
    pub fn image_names(&self) -> Vec<String> {
        lock(&self.inner.state).images.names()
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<CallRecord> {
        lock(&self.inner.calls).clone()
    }

    /// How often a call arrived.
    pub fn count(&self, call: Call) -> usize {
        lock(&self.inner.calls).iter().filter(|record| record.call == call).count()
    }

    /// How many calls there were.
    pub fn total(&self) -> usize {
        lock(&self.inner.calls).len()
    }

    /// Every request of that type, in order.
    pub fn requests_of<M: Any + Clone>(&self) -> Vec<M> {
        self.calls().iter().filter_map(|record| record.request::<M>().cloned()).collect()
    }

    /// The `:authority` of the last call.
    pub fn authority(&self) -> Option<String> {
        lock(&self.inner.authority).clone()
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        lock(&self.inner.calls).clear();
    }

    /// Waits until the runtime is as wanted. Looks again after each change; has no end of its own, so wrap
    /// it in a timeout.
    pub async fn until(&self, mut wanted: impl FnMut(&Self) -> bool) {
        let mut changes = self.inner.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if wanted(self) {
                return;
            }
            // The sender lives as long as we do, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    // Inside.

    fn now_nanos(&self) -> i64 {
        i64::try_from(self.inner.clock.now().as_nanosecond()).unwrap_or(i64::MAX)
    }

    fn changed(&self) {
        self.inner.changes.send_modify(|version| *version += 1);
    }

    /// Handles one call: remembers it, applies faults, then runs `body`.
    async fn answer<M, T, F, Reply>(
        &self,
        call: Call,
        request: Request<M>,
        body: F,
    ) -> Result<Response<T>, Status>
    where
        M: Any + Clone + Send + Sync + std::fmt::Debug,
        F: FnOnce(Self, M) -> Reply,
        Reply: Future<Output = Result<T, Status>>,
    {
        let message = request.into_inner();
        self.remember(call, &message);
        if lock(&self.inner.disabled).contains(&call) {
            return Err(unimplemented(call));
        }
        let action = lock(&self.inner.faults).take(call, &message);
        match &action {
            Some(Action::Fail(code, text)) => return Err(Status::new(*code, text.clone())),
            Some(Action::Delay(delay)) => tokio::time::sleep(*delay).await,
            Some(Action::Hang) => std::future::pending().await,
            Some(Action::FailAfter(..) | Action::HangAfter) | None => {}
        }
        let answer = body(self.clone(), message).await;
        match action {
            Some(Action::FailAfter(code, text)) => Err(Status::new(code, text)),
            Some(Action::HangAfter) => std::future::pending().await,
            _ => answer.map(Response::new),
        }
    }

    fn remember<M: Any + Clone + Send + Sync>(&self, call: Call, message: &M) {
        let request: Arc<dyn Any + Send + Sync> = Arc::new(message.clone());
        let mut calls = lock(&self.inner.calls);
        if calls.len() >= REMEMBERED_CALLS {
            calls.drain(..REMEMBERED_CALLS / 2);
        }
        calls.push(CallRecord { call, at: Instant::now(), request });
        drop(calls);
        self.changed();
    }

    /// Ends a container's process, if it runs, and tells everybody.
    fn finish(&self, container: &str, exit: Exit) {
        let finished = {
            let now = self.now_nanos();
            lock(&self.inner.state).finish(container, &exit, now)
        };
        if let Some(record) = finished {
            lifecycle::write_termination_message(&record);
            self.emit(ContainerEventType::ContainerStoppedEvent, container);
        }
    }

    /// Ends every process of a sandbox and the sandbox itself.
    fn stop_sandbox(&self, sandbox: &str) {
        let running = lock(&self.inner.state).running_in(sandbox);
        for container in running {
            self.finish(&container, Exit::killed());
        }
        let stopped = lock(&self.inner.state).stop_sandbox(sandbox);
        if stopped {
            self.emit(ContainerEventType::ContainerStoppedEvent, sandbox);
        }
    }

    /// Sends an event about a container or sandbox that is (still) there.
    fn emit(&self, kind: ContainerEventType, id: &str) {
        let event = lock(&self.inner.state).event(kind, id, self.now_nanos());
        self.emit_made(event);
    }

    fn emit_made(&self, event: ContainerEventResponse) {
        if !*lock(&self.inner.losing) {
            // Nobody listening is fine.
            let _ = self.inner.events.send(event);
        }
        self.changed();
    }

    /// Ends the process of a container after its time.
    fn schedule_exit(&self, container: String, after: Duration, exit: Exit) {
        let fake = self.clone();
        self.inner.tasks.spawn("fake process", OnExit::Fine, async move {
            tokio::time::sleep(after).await;
            fake.finish(&container, exit);
        });
    }
}

impl std::fmt::Debug for FakeCri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.inner.state);
        f.debug_struct("FakeCri")
            .field("sandboxes", &state.sandboxes.len())
            .field("containers", &state.containers.len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unimplemented(call: Call) -> Status {
    let service = match call.service() {
        cri::Service::Runtime => "RuntimeService",
        cri::Service::Image => "ImageService",
    };
    let text = format!("unknown method {} for service runtime.v1.{service}", call.name());
    Status::new(Code::Unimplemented, text)
}

/// containerd's text for what is not there.
fn not_found(what: &str, id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find {what} {id:?}: not found"))
}

#[cfg(test)]
mod tests;
