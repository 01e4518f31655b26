//! systemd over D-Bus: transient slices for the systemd cgroup driver, and service notification.
//!
//! Owns: the connection to systemd (one, opened again after a failure; the system bus, or systemd's
//! private socket where there is no bus), the few calls of `org.freedesktop.systemd1.Manager` that
//! slices need, and `sd_notify` messages.
//!
//! Promises: every call has a deadline; starting and stopping a slice ends when systemd's job has
//! ended, because until then systemd writes the cgroup's files itself. "Already exists" on start and
//! any refusal to stop are successes, as upstream has it.

use futures::StreamExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use tokio::sync::Mutex;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, Variant as Value};

const CALL_DEADLINE: Duration = Duration::from_secs(30);
const DESTINATION: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const PRIVATE: &str = "unix:path=/run/systemd/private";
/// The result of a job that did what it should.
const DONE: &str = "done";

/// A failed call to systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The bus was not reached.
    #[error("cannot reach systemd over D-Bus")]
    Connect(#[source] zbus::Error),
    /// systemd refused.
    #[error("systemd: {call} {unit}")]
    Call {
        /// Method name.
        call: &'static str,
        /// Unit it was about.
        unit: String,
        /// The bus error.
        #[source]
        source: zbus::Error,
    },
    /// The job ended otherwise than it should.
    #[error("error creating systemd unit `{unit}`: got `{result}`")]
    Job {
        /// Unit it was about.
        unit: String,
        /// How it ended (`failed`, `timeout`, `canceled` …).
        result: String,
    },
    /// No answer in time.
    #[error("systemd: {call} {unit}: no answer in {}s", CALL_DEADLINE.as_secs())]
    Deadline {
        /// Method name.
        call: &'static str,
        /// Unit it was about.
        unit: String,
    },
}

/// A property of a unit, in the types that slices use.
#[derive(Debug, Clone, PartialEq)]
pub enum Property {
    /// A 64-bit number such as `MemoryMax`.
    Number(&'static str, u64),
    /// A switch such as `MemoryAccounting`.
    Flag(&'static str, bool),
    /// A list of names such as `Wants`.
    Names(&'static str, Vec<String>),
    /// Bytes such as the CPU mask of `AllowedCPUs`.
    Bytes(&'static str, Vec<u8>),
    /// Text such as `Description`.
    Text(&'static str, String),
}

impl Property {
    fn pair(&self) -> (&str, Value<'_>) {
        match self {
            Self::Number(name, value) => (name, Value::from(*value)),
            Self::Flag(name, value) => (name, Value::from(*value)),
            Self::Names(name, value) => (name, Value::from(value.clone())),
            Self::Bytes(name, value) => (name, Value::from(value.clone())),
            Self::Text(name, value) => (name, Value::from(value.as_str())),
        }
    }
}

/// The connection to systemd; connects at the first call.
#[derive(Debug, Default)]
pub struct Systemd {
    connection: Mutex<Option<Connection>>,
}

impl Systemd {
    /// Not connected yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a transient slice below its parent, all accounting on, and waits until it is there.
    pub async fn start_slice(&self, unit: &str, parent: &str) -> Result<(), SystemdError> {
        let properties = [
            Property::Text("Description", format!("rubelet slice {unit}")),
            Property::Names("Wants", vec![parent.to_owned()]),
            Property::Flag("MemoryAccounting", true),
            Property::Flag("CPUAccounting", true),
            Property::Flag("IOAccounting", true),
            Property::Flag("TasksAccounting", true),
            Property::Flag("DefaultDependencies", false),
        ];
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(Property::pair).collect();
        let none: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
        match self.job("StartTransientUnit", unit, &(unit, "replace", pairs, none)).await {
            Ok(result) if result == DONE => Ok(()),
            Ok(result) => {
                self.reset_failed(unit).await;
                Err(SystemdError::Job { unit: unit.to_owned(), result })
            }
            Err(error) if error.is_named("org.freedesktop.systemd1.UnitExists") => Ok(()),
            Err(error @ SystemdError::Deadline { .. }) => {
                self.reset_failed(unit).await;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Sets properties of a running unit until the next boot.
    pub async fn set_properties(
        &self,
        unit: &str,
        properties: &[Property],
    ) -> Result<(), SystemdError> {
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(Property::pair).collect();
        let set = self.call("SetUnitProperties", unit, &(unit, true, pairs)).await;
        crate::cgroup::note_change();
        set
    }

    /// Stops a unit and waits until it is down; one that is not there is down already.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        match self.job("StopUnit", unit, &(unit, "replace")).await {
            Ok(result) if result == DONE => {}
            Ok(result) => tracing::warn!(unit, result, "error removing unit; continuing"),
            Err(error @ SystemdError::Call { .. }) => {
                tracing::debug!(unit, err = %error, "unit not stopped; continuing");
            }
            Err(error) => return Err(error),
        }
        self.reset_failed(unit).await;
        Ok(())
    }

    /// Lets systemd forget a unit that failed; most did not.
    async fn reset_failed(&self, unit: &str) {
        if let Err(error) = self.call("ResetFailedUnit", unit, &(unit,)).await {
            tracing::trace!(unit, err = %error, "nothing to reset");
        }
    }

    /// A call whose answer says all.
    async fn call<B>(&self, call: &'static str, unit: &str, body: &B) -> Result<(), SystemdError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let work = async {
            let method = Method { call, body };
            match method.ask(&self.connected().await?).await {
                Err(zbus::Error::InputOutput(_)) => {
                    Ok(method.ask(&self.connected_anew().await?).await)
                }
                answer => Ok(answer),
            }
        };
        self.bounded(call, unit, Box::pin(work)).await.map(drop)
    }

    /// A call that starts a job; how the job ended.
    async fn job<B>(&self, call: &'static str, unit: &str, body: &B) -> Result<String, SystemdError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let work = async {
            let method = Method { call, body };
            match method.run(&self.connected().await?).await {
                Err(zbus::Error::InputOutput(_)) => {
                    Ok(method.run(&self.connected_anew().await?).await)
                }
                answer => Ok(answer),
            }
        };
        self.bounded(call, unit, Box::pin(work)).await
    }

    /// The outcome within the deadline.
    async fn bounded<T>(
        &self,
        call: &'static str,
        unit: &str,
        work: impl Future<Output = Result<zbus::Result<T>, SystemdError>>,
    ) -> Result<T, SystemdError> {
        match tokio::time::timeout(CALL_DEADLINE, work).await {
            Ok(Ok(answer)) => {
                answer.map_err(|source| SystemdError::Call { call, unit: unit.to_owned(), source })
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                *self.connection.lock().await = None;
                Err(SystemdError::Deadline { call, unit: unit.to_owned() })
            }
        }
    }

    /// The connection in place of one that turned out to be gone.
    async fn connected_anew(&self) -> Result<Connection, SystemdError> {
        *self.connection.lock().await = None;
        self.connected().await
    }

    async fn connected(&self) -> Result<Connection, SystemdError> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = &*connection {
            return Ok(open.clone());
        }
        let opened = open().await.map_err(SystemdError::Connect)?;
        *connection = Some(opened.clone());
        Ok(opened)
    }
}

/// One method of the manager with its arguments.
struct Method<'a, B> {
    call: &'static str,
    body: &'a B,
}

impl<B: serde::Serialize + zbus::DynamicType + Sync> Method<'_, B> {
    async fn ask(&self, bus: &Connection) -> zbus::Result<Message> {
        bus.call_method(Some(DESTINATION), PATH, Some(INTERFACE), self.call, self.body).await
    }

    /// Asks, and waits for the end of the job that was started.
    async fn run(&self, bus: &Connection) -> zbus::Result<String> {
        // Listening first: the job may end before its name is known here.
        let mut ended = MessageStream::for_match_rule(ends_of_jobs()?, bus, None).await?;
        let mut reply = std::pin::pin!(self.ask(bus));
        let mut early = Vec::new();
        let job: OwnedObjectPath = loop {
            tokio::select! {
                // Cancel-safe: the pinned call goes on in the next round.
                reply = &mut reply => break reply?.body().deserialize()?,
                // Cancel-safe: what was not taken stays queued.
                message = ended.next() => early.push(end_of_job(message)?),
            }
        };
        if let Some((_, result)) = early.into_iter().find(|(path, _)| *path == job) {
            return Ok(result);
        }
        loop {
            let (path, result) = end_of_job(ended.next().await)?;
            if path == job {
                return Ok(result);
            }
        }
    }
}

impl SystemdError {
    /// Whether systemd answered with this error.
    fn is_named(&self, wanted: &str) -> bool {
        matches!(self, Self::Call { source: zbus::Error::MethodError(name, _, _), .. }
            if name.as_str() == wanted)
    }
}

/// Connects and asks to be told of jobs, which systemd does only where somebody asked.
async fn open() -> zbus::Result<Connection> {
    let bus = match Connection::system().await {
        Ok(bus) => bus,
        Err(error) => {
            let private = zbus::connection::Builder::address(PRIVATE).p2p().build().await;
            private.map_err(|_| error)?
        }
    };
    bus.call_method(Some(DESTINATION), PATH, Some(INTERFACE), "Subscribe", &()).await?;
    Ok(bus)
}

fn ends_of_jobs() -> zbus::Result<MatchRule<'static>> {
    MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .interface(INTERFACE)
        .member("JobRemoved")
        .path(PATH)
        .build()
}

/// The job and its result from the announcement of its end.
fn end_of_job(message: Option<zbus::Result<Message>>) -> zbus::Result<(OwnedObjectPath, String)> {
    let gone = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let message = message.ok_or_else(|| zbus::Error::from(gone()))??;
    let (_, job, _, result): (u32, OwnedObjectPath, String, String) =
        message.body().deserialize()?;
    Ok((job, result))
}

/// Sends `state` (e.g. `READY=1`) to the service manager named by `socket` (`NOTIFY_SOCKET`).
pub fn notify(socket: &str, state: &str) -> std::io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    if let Some(name) = socket.strip_prefix('@') {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        sender.send_to_addr(state.as_bytes(), &address)?;
    } else {
        sender.send_to(state.as_bytes(), socket)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_reaches_a_path_socket_and_an_abstract_one() {
        let path = std::env::temp_dir().join(format!("rubelet-notify-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        notify(path.to_str().unwrap(), "READY=1").unwrap();
        let mut buffer = [0; 32];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        std::fs::remove_file(&path).unwrap();

        use std::os::linux::net::SocketAddrExt;
        let name = format!("rubelet-notify-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        notify(&format!("@{name}"), "WATCHDOG=1").unwrap();
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
    }
}
