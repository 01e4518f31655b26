//! Memory threshold notifications of the version 1 memory controller: an eventfd that counts when
//! usage crosses a threshold.

use crate::fs::FsError;
use crate::readable::readable;
use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One registered notification; dropping it removes it.
#[derive(Debug)]
pub struct MemoryAlarm {
    counter: AsyncFd<OwnedFd>,
}

impl MemoryAlarm {
    /// Notifies whenever `memory.usage_in_bytes` of the cgroup crosses `bytes` in either direction.
    pub fn arm(cgroup: &Path, bytes: u64) -> Result<Self, FsError> {
        let usage = cgroup.join("memory.usage_in_bytes");
        let control = cgroup.join("cgroup.event_control");
        let fail = |path: &Path, error: io::Error| FsError {
            operation: "arm an alarm on",
            path: path.to_owned(),
            source: error,
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let watched =
            rustix::fs::open(&usage, flags, Mode::empty()).map_err(|e| fail(&usage, e.into()))?;
        let counter = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| fail(&usage, e.into()))?;
        let line = format!("{} {} {bytes}", counter.as_raw_fd(), watched.as_raw_fd());
        crate::fs::write(&control, line)?;
        let counter = readable(counter).map_err(|e| fail(&usage, e))?;
        Ok(Self { counter })
    }

    /// Waits for a notification. Cancel-safe: a count that was not read stays.
    pub async fn rung(&mut self) -> io::Result<()> {
        self.counter
            .async_io_mut(Interest::READABLE, |fd| {
                let mut count = [0_u8; 8];
                rustix::io::read(fd, &mut count)?;
                Ok(())
            })
            .await
    }
}
