//! A stand-in for logind on a bus of its own: it hands out inhibitor locks and announces shutdowns.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream, Variant};

use super::{Service, Slot};

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// The bus and the service on it.
#[derive(Debug)]
pub struct FakeLogind {
    _bus: Service,
    runtime: tokio::runtime::Runtime,
    connection: Connection,
    address: String,
    locks: Locks,
}

/// Our ends of the locks that were handed out: who asked, and a pipe that ends with the lock.
type Locks = Arc<Mutex<Vec<(String, std::io::PipeReader)>>>;

impl FakeLogind {
    /// Starts both in the slot. Locks may delay a shutdown by this time.
    pub fn start(slot: &Slot, max_delay: Duration) -> anyhow::Result<FakeLogind> {
        let socket: PathBuf = slot.path("run/bus");
        let address = format!("unix:path={}", socket.display());
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork", "--nopidfile", "--nosyslog", "--address", &address]);
        let mut bus = Service::start(slot, "dbus", command)?;
        bus.wait_ready(Duration::from_secs(20), || {
            anyhow::ensure!(socket.exists(), "no socket yet");
            Ok(())
        })?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let locks = Locks::default();
        let connection = runtime.block_on(async {
            let connection = zbus::connection::Builder::address(address.as_str()).build().await?;
            let calls = MessageStream::from(&connection);
            connection.request_name("org.freedesktop.login1").await?;
            let (own, locks) = (connection.clone(), Arc::clone(&locks));
            #[expect(clippy::disallowed_methods, reason = "ends with its own runtime")]
            tokio::spawn(serve(calls, own, locks, max_delay));
            anyhow::Ok(connection)
        })?;
        Ok(FakeLogind { _bus: bus, runtime, connection, address, locks })
    }

    /// What `DBUS_SYSTEM_BUS_ADDRESS` must be for a program to find it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Announces a shutdown, or that it was called off.
    pub fn announce(&self, begins: bool) -> anyhow::Result<()> {
        let none: Option<&str> = None;
        let signal =
            self.connection.emit_signal(none, PATH, MANAGER, "PrepareForShutdown", &begins);
        self.runtime.block_on(signal).context("cannot announce")
    }

    /// Who asked for the newest lock, and whether it is held still.
    #[must_use]
    pub fn newest_lock(&self) -> Option<(String, bool)> {
        let mut locks = self.locks.lock().ok()?;
        let (who, pipe) = locks.last_mut()?;
        let mut byte = [0];
        let held = match pipe.read(&mut byte) {
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            Ok(_) => false,
        };
        Some((who.clone(), held))
    }
}

async fn serve(mut calls: MessageStream, bus: Connection, locks: Locks, max_delay: Duration) {
    while let Some(Ok(call)) = calls.next().await {
        if call.message_type() != Type::MethodCall {
            continue;
        }
        if let Err(error) = answer(&call, &bus, &locks, max_delay).await {
            tracing::warn!(err = %error, "fake logind could not answer");
        }
    }
}

async fn answer(
    call: &Message,
    bus: &Connection,
    locks: &Locks,
    max_delay: Duration,
) -> anyhow::Result<()> {
    let header = call.header();
    match header.member().map(|member| member.as_str().to_owned()).unwrap_or_default().as_str() {
        "Get" => {
            let micros = u64::try_from(max_delay.as_micros())?;
            bus.reply(&header, &Variant::from(micros)).await?;
        }
        "Inhibit" => {
            let asked: (String, String, String, String) = call.body().deserialize()?;
            let (ours, theirs) = std::io::pipe()?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            let theirs: OwnedFd = theirs.into();
            let text = format!("{} {} {} {}", asked.0, asked.1, asked.2, asked.3);
            if let Ok(mut locks) = locks.lock() {
                locks.push((text, ours));
            }
            bus.reply(&header, &zbus::OwnedFd::from(theirs)).await?;
        }
        other => anyhow::bail!("unexpected call {other}"),
    }
    Ok(())
}
