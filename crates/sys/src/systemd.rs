//! systemd over D-Bus: transient slices for the systemd cgroup driver, and service notification.
//!
//! Owns: the private or system bus connection (one, reconnected after a failure), the few calls of
//! `org.freedesktop.systemd1.Manager` that slices need, and `sd_notify` messages.
//!
//! Promises: every call has a deadline; "already exists" on start and "not loaded" on stop are
//! successes.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use tokio::sync::Mutex;
use zbus::{OwnedObjectPath, Variant as Value};

const CALL_DEADLINE: Duration = Duration::from_secs(30);
const DESTINATION: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

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
    connection: Mutex<Option<zbus::Connection>>,
}

impl Systemd {
    /// Not connected yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a transient slice below its parent, all accounting on.
    pub async fn start_slice(&self, unit: &str, parent: &str) -> Result<(), SystemdError> {
        let properties = [
            Property::Text("Description", format!("rubelet slice {unit}")),
            Property::Names("Wants", vec![parent.to_owned()]),
            Property::Flag("DefaultDependencies", false),
            Property::Flag("MemoryAccounting", true),
            Property::Flag("CPUAccounting", true),
            Property::Flag("IOAccounting", true),
            Property::Flag("TasksAccounting", true),
        ];
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(Property::pair).collect();
        let none: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
        let result = self.call("StartTransientUnit", unit, &(unit, "replace", pairs, none)).await;
        ignore(result, &["org.freedesktop.systemd1.UnitExists"])
    }

    /// Sets properties of a running unit until the next boot.
    pub async fn set_properties(
        &self,
        unit: &str,
        properties: &[Property],
    ) -> Result<(), SystemdError> {
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(Property::pair).collect();
        self.call("SetUnitProperties", unit, &(unit, true, pairs)).await
    }

    /// Stops a unit.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        let result = self.call("StopUnit", unit, &(unit, "replace")).await;
        ignore(result, &["org.freedesktop.systemd1.NoSuchUnit"])
    }

    async fn call<B>(&self, call: &'static str, unit: &str, body: &B) -> Result<(), SystemdError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let work = async {
            let connection = self.connected().await?;
            let reply = connection
                .call_method(Some(DESTINATION), PATH, Some(INTERFACE), call, body)
                .await
                .map_err(|source| SystemdError::Call { call, unit: unit.to_owned(), source })?;
            // A job path for start and stop, nothing for properties: neither is needed.
            let _: Result<OwnedObjectPath, _> = reply.body().deserialize();
            Ok(())
        };
        match tokio::time::timeout(CALL_DEADLINE, work).await {
            Ok(Err(error @ SystemdError::Call { .. })) if lost_connection(&error) => {
                *self.connection.lock().await = None;
                Err(error)
            }
            Ok(result) => result,
            Err(_) => {
                *self.connection.lock().await = None;
                Err(SystemdError::Deadline { call, unit: unit.to_owned() })
            }
        }
    }

    async fn connected(&self) -> Result<zbus::Connection, SystemdError> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = &*connection {
            return Ok(open.clone());
        }
        let opened = zbus::Connection::system().await.map_err(SystemdError::Connect)?;
        *connection = Some(opened.clone());
        Ok(opened)
    }
}

fn lost_connection(error: &SystemdError) -> bool {
    matches!(error, SystemdError::Call { source: zbus::Error::InputOutput(_), .. })
}

fn ignore(result: Result<(), SystemdError>, names: &[&str]) -> Result<(), SystemdError> {
    match result {
        Err(SystemdError::Call { source: zbus::Error::MethodError(name, _, _), .. })
            if names.contains(&name.as_str()) =>
        {
            Ok(())
        }
        other => other,
    }
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
