//! This process and others: signals, limits, OOM score, file locks.

use crate::fs::FsError;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sends SIGKILL; a process that is already gone is fine.
pub fn kill(pid: i32) -> io::Result<()> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, format!("pid {pid}"));
    if pid <= 1 {
        return Err(refused());
    }
    let pid = Pid::from_raw(pid).ok_or_else(refused)?;
    match rustix::process::kill_process(pid, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => other.map_err(Into::into),
    }
}

/// CPU time that this process has used.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The effective user of this process.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Sets the soft and hard limit of open files.
pub fn set_open_files_limit(limit: u64) -> io::Result<()> {
    let rlimit = Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::setrlimit(Resource::Nofile, rlimit).map_err(Into::into)
}

/// How many files this process may have open.
pub fn open_files_limit() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Writes this process's own OOM score adjustment.
pub fn set_own_oom_score(proc_root: &Path, score: i32) -> Result<(), FsError> {
    crate::fs::write(proc_root.join("self/oom_score_adj"), score.to_string())
}

/// An exclusive lock on a file, held until dropped.
#[derive(Debug)]
pub struct FileLock {
    path: PathBuf,
    _file: std::fs::File,
}

impl FileLock {
    /// Waits for the lock. Blocks the thread.
    pub fn acquire(path: &Path) -> Result<Self, FsError> {
        let locked = || -> io::Result<std::fs::File> {
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        match locked() {
            Ok(file) => Ok(Self { path: path.to_owned(), _file: file }),
            Err(source) => Err(FsError { operation: "lock", path: path.to_owned(), source }),
        }
    }

    /// The locked file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_signals_init_or_process_groups() {
        for pid in [1, 0, -1, -5] {
            assert_eq!(kill(pid).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{pid}");
        }
    }

    #[test]
    fn work_shows_in_the_processor_time() {
        let before = cpu_time();
        let worked =
            (0..1_000_000_000_u64).any(|_| cpu_time() >= before + Duration::from_millis(5));
        assert!(worked, "{before:?} {:?}", cpu_time());
    }

    #[test]
    fn killing_a_process_that_is_gone_is_fine() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        child.wait().unwrap();
        kill(pid).unwrap();
    }

    #[test]
    fn a_second_locker_waits_for_the_first() {
        let path = std::env::temp_dir().join(format!("rubelet-lock-{}", std::process::id()));
        let first = FileLock::acquire(&path).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = path.clone();
        let waiter = std::thread::spawn(move || {
            let lock = FileLock::acquire(&other).unwrap();
            sender.send(()).unwrap();
            drop(lock);
        });
        assert!(receiver.try_recv().is_err());
        drop(first);
        receiver.recv().unwrap();
        waiter.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
