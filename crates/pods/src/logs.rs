//! Container log rotation.
//!
//! Owns: when a running container's log is big enough to be rotated, and the steps of it.
//!
//! Promises: a log is rotated at the first look at which it has the maximum size; a reopen that
//! fails puts the old name back; the files are laid out as the Go kubelet does. The runtime is asked
//! once per period for its containers and once per container for its log's place; between periods
//! only files are looked at, and only those that grow fast enough to be full before the next period.
//!
//! Deliberately absent: removing logs of containers that are gone (garbage collection does that) and
//! reading logs (`sys::logs`).

mod calls;
mod schedule;

pub use calls::LogCalls;

use futures::StreamExt as _;
use futures::stream;
use ports::Clock;
use schedule::{Watched, Watchlist};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use telemetry::Chain;
use telemetry::metrics::{Registry, WorkQueue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Settings of log rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotationConfig {
    /// `containerLogMaxSize` in bytes; `None` (a negative size) switches rotation off.
    pub max_size: Option<u64>,
    /// `containerLogMaxFiles`.
    pub max_files: usize,
    /// `containerLogMaxWorkers`.
    pub workers: usize,
    /// `containerLogMonitorInterval`.
    pub interval: Duration,
}

/// Why rotation cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogRotationError {
    /// There must be room for a rotated file.
    #[error("invalid MaxFiles {0}, must be > 1")]
    MaxFiles(usize),
}

/// The rotation task.
#[derive(Debug)]
pub struct LogRotation {
    config: LogRotationConfig,
    calls: Arc<dyn LogCalls>,
    clock: Arc<dyn Clock>,
    queue: WorkQueue,
}

impl LogRotation {
    /// Checks the settings.
    pub fn new(
        config: LogRotationConfig,
        calls: Arc<dyn LogCalls>,
        clock: Arc<dyn Clock>,
        metrics: &Registry,
    ) -> Result<Self, LogRotationError> {
        if config.max_files <= 1 {
            return Err(LogRotationError::MaxFiles(config.max_files));
        }
        let queue = WorkQueue::new(metrics, "kubelet_log_rotate_manager");
        Ok(Self { config, calls, clock, queue })
    }

    /// Rotates until it is told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let Some(max_size) = self.config.max_size else { return };
        let mut list = Watchlist::new(max_size, self.config.interval);
        let mut next_listing = Instant::now();
        loop {
            if Instant::now() >= next_listing {
                self.relist(&mut list).await;
                next_listing = Instant::now() + self.config.interval;
            }
            let since = Instant::now();
            let due = list.due(since);
            due.iter().for_each(|_| self.queue.added());
            let looks: Vec<Look> = stream::iter(due)
                .map(|log| self.counted_look(log, max_size, since))
                .buffer_unordered(self.config.workers.max(1))
                .collect()
                .await;
            for look in looks {
                match look.size {
                    Some(size) => list.seen(&look.id, size, Instant::now()),
                    None => list.forget(&look.id),
                }
            }
            let wake = list.next().map_or(next_listing, |at| at.min(next_listing));
            tokio::select! {
                () = stop.cancelled() => return,           // cancel-safe: a state
                () = tokio::time::sleep_until(wake) => {}  // cancel-safe: a timer
            }
        }
    }

    async fn relist(&self, list: &mut Watchlist) {
        let running = match self.calls.running().await {
            Ok(running) => running,
            Err(error) => {
                tracing::error!(err = %error, "containers are not listed for log rotation");
                return;
            }
        };
        list.keep(&running);
        for id in running {
            if list.knows(&id) {
                continue;
            }
            match self.calls.log_path(&id).await {
                Ok(Some(path)) => list.add(id, path, Instant::now()),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(containerID = %id, err = %error, "log of container is unknown");
                }
            }
        }
    }

    /// Looks at one log, which was due at `since`.
    async fn counted_look(&self, log: Watched, max_size: u64, since: Instant) -> Look {
        let began = Instant::now();
        self.queue.taken(began - since);
        let look = self.look(log, max_size).await;
        self.queue.done(began.elapsed());
        look
    }

    /// Looks at one log and rotates it if it is full.
    async fn look(&self, log: Watched, max_size: u64) -> Look {
        let Watched { id, path } = log;
        let mut size = size(&id, &path).await;
        if size.is_none() && self.calls.reopen(&id).await.is_ok() {
            size = self::size(&id, &path).await;
        }
        if size.is_some_and(|s| s >= max_size) {
            match self.rotate(&id, &path).await {
                Ok(()) => size = self::size(&id, &path).await.or(Some(0)),
                Err(error) => {
                    let path = path.display();
                    tracing::error!(containerID = %id, %path, err = %error, "log is not rotated");
                }
            }
        }
        Look { id, size }
    }

    async fn rotate(&self, id: &str, log: &std::path::Path) -> Result<(), String> {
        let zoned = self.clock.now().to_zoned(jiff::tz::TimeZone::system());
        let stamp = zoned.strftime("%Y%m%d-%H%M%S").to_string();
        let (path, max_files) = (log.to_owned(), self.config.max_files);
        let renamed = sys::blocking::run_for_pod(id, move || {
            sys::logs::prepare(&path, max_files)?;
            sys::logs::rename_rotated(&path, &stamp)
        });
        let renamed = renamed.await.map_err(|e| e.to_string())?;
        let Some(rotated) = renamed.map_err(|e| Chain(&e).to_string())? else {
            // Rotated within this very second: the next look comes soon enough.
            return Ok(());
        };
        if let Err(error) = self.calls.reopen(id).await {
            let (from, to) = (rotated, log.to_owned());
            let back =
                sys::blocking::run_for_pod(id, move || sys::logs::rename_back(&from, &to)).await;
            let note = match back {
                Ok(Ok(())) => String::new(),
                Ok(Err(e)) => format!("; {}", Chain(&e)),
                Err(e) => format!("; {e}"),
            };
            return Err(format!("failed to reopen container log {id:?}: {error}{note}"));
        }
        Ok(())
    }
}

struct Look {
    id: String,
    size: Option<u64>,
}

async fn size(id: &str, path: &std::path::Path) -> Option<u64> {
    let path: PathBuf = path.to_owned();
    match sys::blocking::run_for_pod(id, move || sys::logs::size(&path)).await {
        Ok(Ok(size)) => size,
        Ok(Err(error)) => {
            tracing::error!(err = %Chain(&error), "log of container has no size");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests;
