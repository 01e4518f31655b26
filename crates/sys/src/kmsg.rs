//! The kernel's log, one record at a time.
//!
//! Promises: starts with the oldest record the kernel still has; records that were overwritten before
//! they were read are skipped.

use crate::fs::FsError;
use crate::readable::readable;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The longest record the kernel hands out.
const RECORD: usize = 8192;

/// An open `/dev/kmsg`.
#[derive(Debug)]
pub struct KernelLog {
    file: AsyncFd<OwnedFd>,
}

impl KernelLog {
    /// Opens `kmsg` below the given directory of devices.
    pub fn open(dev: &Path) -> Result<Self, FsError> {
        let path = dev.join("kmsg");
        let fail =
            |error: io::Error| FsError { operation: "open", path: path.clone(), source: error };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| fail(e.into()))?;
        let file = readable(file).map_err(fail)?;
        Ok(Self { file })
    }

    /// The next record's text. Cancel-safe: a record is read whole or not at all.
    pub async fn next(&mut self) -> io::Result<String> {
        let mut record = [0_u8; RECORD];
        loop {
            let read = self
                .file
                .async_io_mut(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut record)?))
                .await;
            match read {
                Ok(length) => return Ok(text(record.get(..length).unwrap_or_default())),
                // The record was overwritten: the next read gives the oldest there is.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What follows `priority,sequence,time,flags;`, without the lines of key and value below it.
fn text(record: &[u8]) -> String {
    let record = String::from_utf8_lossy(record);
    let first = record.split('\n').next().unwrap_or_default();
    first.split_once(';').map(|(_, text)| text).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_its_text_alone() {
        assert_eq!(text(b"6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n"), "NET: Registered");
        assert_eq!(text(b"no head"), "");
    }
}
