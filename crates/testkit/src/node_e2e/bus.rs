//! What specs look for on the system bus: logind, and a service manager that keeps one unit, the
//! container runtime.
//!
//! Promises: a runtime that dies is started again, one that was stopped over the bus stays so until it
//! is started over the bus. Deliberately absent: every other unit and method.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt as _;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream, ObjectPath};

use crate::real::{Containerd, FakeLogind, Slot};

const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// The runtime's unit as an object; the service manager writes a dot as `_2e`.
const UNIT: &str = "/org/freedesktop/systemd1/unit/containerd_2eservice";
const UNIT_NAME: &str = "containerd.service";
const JOB: &str = "/org/freedesktop/systemd1/job/1";
/// How long locks may delay a shutdown: longer than any kubelet asks for, so that none writes
/// logind's configuration.
const MAX_DELAY: Duration = Duration::from_secs(600);
/// How often the runtime is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Where the suite tells the kubelet that the runtime is (`--runtime-cgroups`).
const RUNTIME_CGROUP: &str = "/docker-daemon";

/// The bus with both services, until dropped.
pub(super) struct Bus {
    logind: FakeLogind,
}

impl Bus {
    /// Starts the bus and hands the runtime to the service manager on it.
    pub(super) fn start(slot: &Slot, containerd: Containerd) -> anyhow::Result<Bus> {
        let logind = FakeLogind::start(slot, MAX_DELAY)?;
        let address = logind.address().to_owned();
        let mut unit = Unit { slot: Slot::inside(slot.index())?, containerd, wanted: true };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (calls, bus) = runtime.block_on(async {
            let bus = zbus::connection::Builder::address(address.as_str()).build().await?;
            let calls = MessageStream::from(&bus);
            bus.request_name("org.freedesktop.systemd1").await?;
            anyhow::Ok((calls, bus))
        })?;
        std::thread::Builder::new().name("service-manager".to_owned()).spawn(move || {
            runtime.block_on(serve(calls, bus, &mut unit));
        })?;
        Ok(Bus { logind })
    }

    /// What `DBUS_SYSTEM_BUS_ADDRESS` must be.
    pub(super) fn address(&self) -> &str {
        self.logind.address()
    }
}

/// The container runtime as a unit.
struct Unit {
    slot: Slot,
    containerd: Containerd,
    wanted: bool,
}

impl Unit {
    fn start(&mut self) -> anyhow::Result<()> {
        self.wanted = true;
        if !self.containerd.is_running() {
            self.containerd.launch(&self.slot)?;
            enter_cgroup(&self.containerd)?;
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.wanted = false;
        self.containerd.kill();
    }
}

/// Put the runtime where the suite says that it is.
pub(super) fn enter_cgroup(containerd: &Containerd) -> anyhow::Result<()> {
    let cgroups = sys::cgroup::Cgroups::detect(Path::new("/sys"), Path::new("/proc"))?;
    if let Some(pid) = containerd.pid() {
        cgroups.enter(RUNTIME_CGROUP, i32::try_from(pid)?)?;
    }
    Ok(())
}

async fn serve(mut calls: MessageStream, bus: Connection, unit: &mut Unit) {
    loop {
        let done = match tokio::time::timeout(LOOK, calls.next()).await {
            Ok(Some(Ok(call))) if call.message_type() == Type::MethodCall => {
                answer(&call, &bus, unit).await
            }
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(_) if unit.wanted => unit.start(),
            Err(_) => continue,
        };
        if let Err(error) = done {
            tracing::warn!(err = %error, "stand-in for systemd");
        }
    }
}

async fn answer(call: &Message, bus: &Connection, unit: &mut Unit) -> anyhow::Result<()> {
    let header = call.header();
    let member = header.member().map(|member| member.as_str().to_owned()).unwrap_or_default();
    match member.as_str() {
        "GetUnitByPID" => {
            let pid: u32 = call.body().deserialize()?;
            if unit.containerd.pid() != Some(pid) {
                let error = "org.freedesktop.systemd1.NoUnitForPID";
                bus.reply_error(&header, error, &"no unit of mine").await?;
                return Ok(());
            }
            bus.reply(&header, &ObjectPath::from_static_str(UNIT)?).await?;
        }
        "StartUnit" | "StopUnit" => {
            let job = ObjectPath::from_static_str(JOB)?;
            bus.reply(&header, &job).await?;
            let result = match member.as_str() {
                "StartUnit" => unit.start(),
                _ => {
                    unit.stop();
                    Ok(())
                }
            };
            let word = if result.is_ok() { "done" } else { "failed" };
            let none: Option<&str> = None;
            let body = (1_u32, job, UNIT_NAME, word);
            bus.emit_signal(none, PATH, MANAGER, "JobRemoved", &body)
                .await
                .context("JobRemoved")?;
            result?;
        }
        other => {
            let error = "org.freedesktop.DBus.Error.UnknownMethod";
            bus.reply_error(&header, error, &other).await?;
            bail!("unexpected call {other}");
        }
    }
    Ok(())
}
