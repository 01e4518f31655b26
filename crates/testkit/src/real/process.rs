//! Child processes: services that run beside a test with their output in a log file, and short
//! commands whose output is the answer.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{Slot, eventually};

/// Run a command to its end; its standard output, or an error with everything it said.
pub fn run<I, S>(program: impl AsRef<OsStr>, args: I) -> anyhow::Result<String>
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(args);
    output_of(command)
}

/// Like [`run`], for a command that is already put together.
pub(super) fn output_of(mut command: Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{stderr}{stdout}", output.status);
    }
    Ok(stdout)
}

/// A process of the harness, killed at the latest when dropped. Its pid is noted in the slot, so
/// that a later run can end it when this one was killed.
#[derive(Debug)]
pub struct Service {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Start `command` with its output appended to `<slot>/log/<name>.log`.
    pub fn start(slot: &Slot, name: &str, mut command: Command) -> anyhow::Result<Service> {
        let log = slot.log_file(name);
        let mut out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        writeln!(out, "--- {command:?}")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        slot.note_pid(child.id())?;
        Ok(Service { name: name.to_owned(), child, log })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Wait until `ready` succeeds; fails at once when the process ends. The error has the reason
    /// of the last refusal and the end of the log.
    pub fn wait_ready(
        &mut self,
        within: Duration,
        mut ready: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut ended = false;
        let mut last = None;
        let what = format!("{} is ready", self.name);
        let outcome = eventually(within, &what, || {
            ended = !self.is_running();
            last = ready().err();
            ended || last.is_none()
        });
        if ended || outcome.is_err() {
            let how = if ended { "ended while starting" } else { "did not get ready" };
            let why = last.map(|error| format!("{error:#}")).unwrap_or_default();
            bail!(
                "{} {how} ({within:?}): {why}\nend of its log:\n{}",
                self.name,
                self.log_tail(30)
            );
        }
        Ok(())
    }

    /// Ask it to end (SIGTERM), insist after `grace`.
    pub fn stop(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        if eventually(grace, "process ended", || !self.is_running()).is_err() {
            self.kill();
        }
    }

    /// End it without a chance to clean up (SIGKILL), and wait for that.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Send a signal.
    pub fn signal(&mut self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_running()) {
            let _gone = kill_process(pid, signal);
        }
    }

    /// The last lines it wrote.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
    }
}

/// The last lines of a file, or why it cannot be read.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("{}: {error}", path.display()),
    }
}
