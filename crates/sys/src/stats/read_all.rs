//! Reads small files of the kernel with as few calls as possible.

use std::os::fd::AsFd;

/// The least that a read returns while there is more: the kernel returns lists by the page.
const FULL_READ: usize = 3072;
/// The buffer size for one read.
pub(super) const ROOM: usize = 8192;

/// The content of a file from its start, without its trailing newline; empty if it is not UTF-8.
pub(super) fn read_all(buffer: &mut Vec<u8>, open: impl AsFd) -> rustix::io::Result<&str> {
    let mut filled = 0;
    loop {
        if buffer.len() < filled + ROOM {
            buffer.resize(filled + ROOM, 0);
        }
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let read = rustix::io::pread(&open, room, u64::try_from(filled).unwrap_or(u64::MAX))?;
        filled += read;
        if read < FULL_READ {
            break;
        }
    }
    let text = std::str::from_utf8(buffer.get(..filled).unwrap_or_default()).unwrap_or_default();
    Ok(text.trim_end())
}
