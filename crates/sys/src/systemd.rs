//! systemd over D-Bus: transient slices for the systemd cgroup driver, and service notification.
//!
//! Owns: the connection to systemd (one, reopened after a failure; the system bus, or systemd's
//! private socket where there is no bus), the few calls of `org.freedesktop.systemd1.Manager` that
//! slices need, and `sd_notify` messages.
//!
//! Promises: every call has a deadline; starting and stopping a slice waits until systemd's job has
//! ended, because until then systemd writes the cgroup's files itself. "Already exists" on start
//! and any refusal to stop count as success, as upstream.

use futures::StreamExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};
use zbus::{
    Connection, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant as Value,
};

const CALL_DEADLINE: Duration = Duration::from_secs(30);
const DESTINATION: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const PRIVATE: &str = "unix:path=/run/systemd/private";
/// The result of a successful job.
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
    /// The job failed.
    #[error("error creating systemd unit `{unit}`: got `{result}`")]
    Job {
        /// Unit it was about.
        unit: String,
        /// How it ended (`failed`, `timeout`, `canceled` …).
        result: String,
    },
    /// No response in time.
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
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Number(name, _)
            | Self::Flag(name, _)
            | Self::Names(name, _)
            | Self::Bytes(name, _)
            | Self::Text(name, _) => name,
        }
    }

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

/// The connection to systemd; connects on the first call.
#[derive(Debug, Default)]
pub struct Systemd {
    connection: Mutex<Option<Connection>>,
    version: OnceCell<u32>,
}

impl Systemd {
    /// Not connected yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// systemd's version, queried once; 0 while it is unknown, so that no new feature is used.
    pub async fn version(&self) -> u32 {
        let ask = async || -> Result<u32, SystemdError> {
            let work = async {
                let bus = self.connected().await?;
                let body = (INTERFACE, "Version");
                let ask = bus.call_method(Some(DESTINATION), PATH, Some(PROPERTIES), "Get", &body);
                Ok(match ask.await {
                    Ok(reply) => reply.body().deserialize::<OwnedVariant>(),
                    Err(error) => Err(error),
                })
            };
            let value = self.bounded("Get", "Version", Box::pin(work)).await?;
            let text = String::try_from(value).unwrap_or_default();
            Ok(version_number(&text))
        };
        match self.version.get_or_try_init(ask).await {
            Ok(version) => *version,
            Err(error) => {
                tracing::warn!(err = %error, "unable to get systemd version");
                0
            }
        }
    }

    /// Starts a transient slice below its parent, with all accounting enabled, and waits until it
    /// exists.
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

    /// Stops a unit and waits until it is down; one that does not exist is down already.
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

    /// Resets the failed state of a unit; most have none.
    async fn reset_failed(&self, unit: &str) {
        if let Err(error) = self.call("ResetFailedUnit", unit, &(unit,)).await {
            tracing::trace!(unit, err = %error, "nothing to reset");
        }
    }

    /// A call that starts no job.
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

    /// A call that starts a job; returns the job's result.
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

    /// Applies the deadline.
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

    /// Replaces a connection that turned out to be broken.
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

    /// Calls the method, and waits for the end of the job that it started.
    async fn run(&self, bus: &Connection) -> zbus::Result<String> {
        // Subscribed first: the job may end before its path is known here.
        let mut ended = MessageStream::for_match_rule(ends_of_jobs()?, bus, None).await?;
        let mut reply = std::pin::pin!(self.ask(bus));
        let mut early = Vec::new();
        let job: OwnedObjectPath = loop {
            tokio::select! {
                // Cancel-safe: the pinned call continues in the next round.
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
    /// Whether systemd returned this error.
    fn is_named(&self, wanted: &str) -> bool {
        matches!(self, Self::Call { source: zbus::Error::MethodError(name, _, _), .. }
            if name.as_str() == wanted)
    }
}

/// Connects and subscribes to job signals, which systemd only sends to subscribers.
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

/// The first number of a version such as `v245.4-4ubuntu3`; 0 if there is none.
fn version_number(text: &str) -> u32 {
    let text = text.trim_start_matches(['"', 'v']);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn ends_of_jobs() -> zbus::Result<MatchRule<'static>> {
    MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .interface(INTERFACE)
        .member("JobRemoved")
        .path(PATH)
        .build()
}

/// The job and its result from a `JobRemoved` signal.
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
    fn a_version_is_its_first_number() {
        for (text, number) in
            [("v245.4-4ubuntu3", 245), ("239 (239-82.el8)", 239), ("\"252\"", 252), ("~rc", 0)]
        {
            assert_eq!(version_number(text), number, "{text}");
        }
    }

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
