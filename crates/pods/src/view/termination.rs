//! Termination messages: the end of a file that the container wrote, or the end of its log.

use engine::runtime::{ContainerRunState, ContainerView, join_messages};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use units::cri_log::{LineFilter, LineOptions, UnsupportedFormat};
use units::gojson;

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
            Ok(bytes) => message = gojson::text(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                message = format!("Error on reading termination log {path}: {error}");
                failed = true;
            }
        }
    }
    if message.is_empty() && !failed && container.falls_back_to_log() {
        let read = tail(Path::new(&container.log_path), LOG_WINDOW).map_err(|e| e.to_string());
        message = match read.and_then(|bytes| end_of_log(&bytes).map_err(|e| e.to_string())) {
            Ok(text) => text,
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

/// The text of the last lines of a log. Bytes count, not characters: what is cut off may leave half a
/// character, and a terminal's carriage returns stay.
fn end_of_log(bytes: &[u8]) -> Result<String, UnsupportedFormat> {
    // Where the window begins there is most likely no line's beginning.
    let cut = bytes.len() as u64 >= LOG_WINDOW;
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').skip(usize::from(cut)).collect();
    let ended = lines.iter().filter(|line| line.ends_with(b"\n")).count();
    let mut filter = LineFilter::new(LineOptions::default());
    let mut text = Vec::new();
    for line in lines.iter().skip(ended.saturating_sub(MAX_LOG_LINES)) {
        filter.line(line, &mut text)?;
    }
    let from = text.len().saturating_sub(MAX_LOG_BYTES);
    Ok(gojson::text(text.get(from..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-01-01T00:00:00Z";

    fn end(log: &str) -> String {
        end_of_log(log.as_bytes()).unwrap()
    }

    #[test]
    fn log_lines_lose_their_headers_and_partial_lines_are_joined() {
        let log = format!("{AT} stdout F one\n{AT} stderr P tw\n{AT} stderr F o\n");
        assert_eq!(end(&log), "one\ntwo\n");
    }

    #[test]
    fn only_the_last_lines_count() {
        let log: String = (0..200).map(|n| format!("{AT} stdout F {n}\n")).collect();
        let message = end(&log);
        assert!(message.starts_with("120\n"), "{message}");
        assert!(message.ends_with("199\n"));
    }

    #[test]
    fn lines_of_a_terminal_keep_their_carriage_returns() {
        let log = format!("{AT} stdout F one\r\n{AT} stdout F two\r\n");
        assert_eq!(end(&log), "one\r\ntwo\r\n");
    }

    #[test]
    fn a_character_that_the_limit_cuts_shows_what_is_left_of_it() {
        let log = format!("{AT} stdout F {}\n", "\u{20ac}".repeat(1000));
        let message = end(&log);
        // 2047 bytes before the newline: 682 whole characters and one byte of another.
        let want = format!("\u{fffd}{}\n", "\u{20ac}".repeat(682));
        assert_eq!(message, want);
    }

    #[test]
    fn lines_before_the_window_are_left_out() {
        let line = format!("{AT} stdout F {}\n", "x".repeat(1000));
        let log = line.repeat(100);
        let window = &log.as_bytes()[log.len() - usize::try_from(LOG_WINDOW).unwrap()..];
        let message = end_of_log(window).unwrap();
        assert_eq!(message.len(), MAX_LOG_BYTES);
        assert!(!message.contains("stdout"), "{message}");
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
