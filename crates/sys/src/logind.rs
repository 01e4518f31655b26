//! logind over D-Bus: the inhibitor lock that delays a shutdown of the machine, and the shutdown
//! signal.
//!
//! Owns: a connection to the system bus (`DBUS_SYSTEM_BUS_ADDRESS` names another) and the few
//! calls. Promises: every call has a deadline; dropping a [`ShutdownLock`] lets the shutdown
//! proceed.

use crate::fs::FsError;
use futures::StreamExt;
use std::path::Path;
use std::time::Duration;
use zbus::{MatchRule, MessageStream, OwnedFd, OwnedVariant};

const CALL_DEADLINE: Duration = Duration::from_secs(30);
const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const HANGUP: i32 = 1;

/// A failed call; the texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// The bus was not reached.
    #[error("cannot reach the system bus")]
    Connect(#[source] zbus::Error),
    /// The delay could not be read.
    #[error("failed reading InhibitDelayMaxUSec property from logind")]
    ReadDelay(#[source] zbus::Error),
    /// The delay is not a number.
    #[error("InhibitDelayMaxUSec from logind is not a uint64 as expected")]
    NotANumber,
    /// The lock was refused.
    #[error("failed creating systemd inhibitor")]
    Inhibit(#[source] zbus::Error),
    /// logind could not be told to reload its configuration.
    #[error("unable to reload logind conf")]
    Reload(#[source] zbus::Error),
    /// The shutdown signal cannot be subscribed to.
    #[error("failed to monitor shutdown")]
    Listen(#[source] zbus::Error),
    /// No response in time.
    #[error("{call}: no answer in {}s", CALL_DEADLINE.as_secs())]
    Deadline {
        /// Method name.
        call: &'static str,
    },
}

/// The connection.
#[derive(Debug, Clone)]
pub struct Logind {
    bus: zbus::Connection,
}

/// Delays the machine's shutdown until it is dropped.
#[derive(Debug)]
pub struct ShutdownLock {
    _descriptor: OwnedFd,
}

impl Logind {
    /// Connects to the system bus.
    pub async fn connect() -> Result<Self, LogindError> {
        let bus = bounded("connect", zbus::Connection::system(), LogindError::Connect).await?;
        Ok(Self { bus })
    }

    /// How long logind lets a lock delay the shutdown.
    pub async fn max_delay(&self) -> Result<Duration, LogindError> {
        let body = (MANAGER, "InhibitDelayMaxUSec");
        let properties = Some("org.freedesktop.DBus.Properties");
        let call = self.bus.call_method(Some(SERVICE), PATH, properties, "Get", &body);
        let reply = bounded("Get", call, LogindError::ReadDelay).await?;
        let value: OwnedVariant = reply.body().deserialize().map_err(LogindError::ReadDelay)?;
        let micros = u64::try_from(value).map_err(|_| LogindError::NotANumber)?;
        Ok(Duration::from_micros(micros))
    }

    /// Takes the lock.
    pub async fn inhibit(&self) -> Result<ShutdownLock, LogindError> {
        let body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let call = self.bus.call_method(Some(SERVICE), PATH, Some(MANAGER), "Inhibit", &body);
        let reply = bounded("Inhibit", call, LogindError::Inhibit).await?;
        let descriptor: OwnedFd = reply.body().deserialize().map_err(LogindError::Inhibit)?;
        Ok(ShutdownLock { _descriptor: descriptor })
    }

    /// Has systemd tell logind to reload its configuration, which happens a little later.
    pub async fn reload(&self) -> Result<(), LogindError> {
        let call = self.bus.call_method(
            Some("org.freedesktop.systemd1"),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            "KillUnit",
            &("systemd-logind.service", "all", HANGUP),
        );
        bounded("KillUnit", call, LogindError::Reload).await.map(drop)
    }

    /// Subscribes to the shutdown signal.
    pub async fn announcements(&self) -> Result<Announcements, LogindError> {
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(MANAGER)
            .member("PrepareForShutdown")
            .path(PATH)
            .build()
            .map_err(LogindError::Listen)?;
        let stream = MessageStream::for_match_rule(rule, &self.bus, None);
        let stream = bounded("AddMatch", stream, LogindError::Listen).await?;
        Ok(Announcements { stream })
    }
}

/// A stream of `PrepareForShutdown` signals.
#[derive(Debug)]
pub struct Announcements {
    stream: MessageStream,
}

impl Announcements {
    /// True when a shutdown begins, false when it was cancelled; `None` when the bus is gone.
    /// Cancel-safe: a signal that was not taken stays queued.
    pub async fn next(&mut self) -> Option<bool> {
        loop {
            let message = self.stream.next().await?.ok()?;
            match message.body().deserialize() {
                Ok(begins) => return Some(begins),
                Err(error) => tracing::error!(err = %error, "Failed obtaining shutdown event"),
            }
        }
    }
}

/// Writes a drop-in that makes logind allow this delay, once it reloads its configuration.
pub fn override_max_delay(etc: &Path, delay: Duration) -> Result<(), FsError> {
    let folder = etc.join("systemd/logind.conf.d");
    crate::fs::create_dir_all(&folder, 0o755)?;
    let seconds = delay.as_secs();
    let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
    crate::fs::write(folder.join("99-kubelet.conf"), text)
}

async fn bounded<T>(
    call: &'static str,
    work: impl Future<Output = zbus::Result<T>>,
    name: impl FnOnce(zbus::Error) -> LogindError,
) -> Result<T, LogindError> {
    match tokio::time::timeout(CALL_DEADLINE, work).await {
        Ok(result) => result.map_err(name),
        Err(_) => Err(LogindError::Deadline { call }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_override_is_a_logind_drop_in() {
        let etc = std::env::temp_dir().join(format!("rubelet-logind-{}", std::process::id()));
        override_max_delay(&etc, Duration::from_secs(45)).unwrap();
        let text =
            crate::fs::read_to_string(etc.join("systemd/logind.conf.d/99-kubelet.conf")).unwrap();
        assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=45\n");
        let all = crate::removal::Contents::Everything;
        crate::removal::remove_tree(Path::new("/proc"), &etc, all).unwrap();
    }
}
