//! Termination messages: the end of a file that the container wrote, or the end of its log.

use engine::runtime::{ContainerRunState, ContainerView, join_messages};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MAX_MESSAGE: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// How much of a log's end is searched for its last lines: each has a header of about 45 bytes.
const LOG_WINDOW: u64 = 64 << 10;

/// Adds the termination message of an exited container. Blocking: run it off the runtime threads.
pub(crate) fn add_message(container: &mut ContainerView) {
    if container.state != ContainerRunState::Exited {
        return;
    }
    let (mut message, mut failed) = (String::new(), false);
    if let Some(path) = container.termination_file() {
        match tail(Path::new(path), MAX_MESSAGE) {
            Ok(bytes) => message = String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                message = format!("Error on reading termination log {path}: {error}");
                failed = true;
            }
        }
    }
    if message.is_empty() && !failed && container.falls_back_to_log() {
        message = match tail(Path::new(&container.log_path), LOG_WINDOW) {
            Ok(bytes) => end_of_log(&bytes),
            Err(error) => format!("Error on reading termination message from logs: {error}"),
        };
    }
    container.message = join_messages(&container.message, &message);
}

/// The last bytes of a regular file; never follows a link, never waits on a pipe.
fn tail(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let custom = i32::try_from(flags.bits()).unwrap_or_default();
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(custom).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::other(format!("read {}: is a directory", path.display())));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of the last lines of a CRI log (`time stream tag text`).
fn end_of_log(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut kept = Vec::new();
    for line in text.lines().rev().take(MAX_LOG_LINES) {
        let mut parts = line.splitn(4, ' ');
        if let (Some(_), Some("stdout" | "stderr"), Some(tag), Some(content)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            kept.push((tag.starts_with('P'), content));
        }
    }
    let mut message = String::new();
    for (partial, content) in kept.into_iter().rev() {
        message.push_str(content);
        if !partial {
            message.push('\n');
        }
    }
    let mut from = message.len().saturating_sub(MAX_LOG_BYTES);
    while !message.is_char_boundary(from) {
        from += 1;
    }
    message.split_off(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_lose_their_headers_and_partial_lines_are_joined() {
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr P tw\n2026-01-01T00:00:02Z stderr F o\n";
        assert_eq!(end_of_log(log.as_bytes()), "one\ntwo\n");
    }

    #[test]
    fn only_the_last_lines_count() {
        let log: String = (0..200).map(|n| format!("t stdout F {n}\n")).collect();
        let message = end_of_log(log.as_bytes());
        assert!(message.starts_with("120\n"), "{message}");
        assert!(message.ends_with("199\n"));
    }

    #[test]
    fn links_and_pipes_are_not_read() {
        let dir = std::env::temp_dir().join(format!("rubelet-term-{}", std::process::id()));
        sys::fs::create_dir_all(&dir, 0o755).unwrap();
        let link = dir.join("link");
        let _ = std::os::unix::fs::symlink("/etc/passwd", &link);
        assert!(tail(&link, 10).is_err());
        let folder = tail(&dir, 10).unwrap_err().to_string();
        assert_eq!(folder, format!("read {}: is a directory", dir.display()));
        sys::fs::write(dir.join("file"), "0123456789").unwrap();
        assert_eq!(tail(&dir.join("file"), 4).unwrap(), b"6789");
        sys::removal::remove_tree(Path::new("/proc"), &dir, sys::removal::Contents::Everything)
            .unwrap();
    }
}
