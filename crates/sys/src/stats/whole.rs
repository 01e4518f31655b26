//! Small files of the kernel, read with as few calls as can be.

use std::os::fd::AsFd;

/// What a read gives at least while there is more: the kernel hands out lists by the page.
const FULL_READ: usize = 3072;
/// Room for one read.
pub(super) const ROOM: usize = 8192;

/// Everything that a file has, from its start, without its last line break; nothing if it is no text.
pub(super) fn whole(buffer: &mut Vec<u8>, open: impl AsFd) -> rustix::io::Result<&str> {
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
