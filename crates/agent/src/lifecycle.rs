//! The process around the agent: lock file, signals, the way out.

use std::path::Path;
use sys::fs::FsError;
use sys::process::FileLock;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Why the agent was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// SIGTERM or SIGINT.
    Signal,
    /// Somebody else opened the lock file and we were told to make room.
    LockContention,
    /// A task that nothing works without has ended.
    TaskFailed,
}

/// Waits for SIGTERM or SIGINT; a second one ends the process at once with code 1.
pub(crate) async fn signalled() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        // Cancel-safe: a signal that arrives later is seen by the next wait.
        _ = terminate.recv() => {}
        // Cancel-safe: as above.
        _ = interrupt.recv() => {}
    }
    #[expect(clippy::disallowed_methods, reason = "must outlive the supervised tasks' shutdown")]
    tokio::spawn(async move {
        tokio::select! {
            // Cancel-safe: the process ends either way.
            _ = terminate.recv() => {}
            // Cancel-safe: as above.
            _ = interrupt.recv() => {}
        }
        #[expect(clippy::exit, clippy::disallowed_methods, reason = "the second signal means now")]
        std::process::exit(1);
    });
    Ok(())
}

/// Takes the lock, waiting for another holder on the blocking pool.
pub(crate) async fn lock(path: &Path) -> Result<FileLock, String> {
    let owned = path.to_owned();
    let locked: Result<FileLock, FsError> =
        sys::blocking::run(move || FileLock::acquire(&owned)).await.map_err(|e| e.to_string())?;
    locked.map_err(|error| {
        format!("unable to acquire file lock on {:?}: {}", path.display().to_string(), error.source)
    })
}

/// Waits until somebody opens or removes the lock file (kubelet: `watchForLockfileContention`).
pub(crate) async fn contention(path: &Path, cancel: CancellationToken) {
    let mut watch = match sys::watch::OpenWatch::new(path) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::error!(err = %error, path = %path.display(), "Unable to watch lockfile");
            return;
        }
    };
    tokio::select! {
        // Cancel-safe: nothing is held.
        () = cancel.cancelled() => std::future::pending::<()>().await,
        // Cancel-safe: an event that is missed was about a process that still waits.
        () = watch.opened() => {}
    }
}
