//! Reading one container log.

use crate::blocking;
use crate::watch::FolderWatch;
use std::fs::File;
use std::future::Future;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use units::cri_log::{LineFilter, LineOptions, Moment, Streams, UnsupportedFormat, Wanted};
use units::errno::go_text;

/// How often a followed log is polled when inotify reports no change.
const POLL: Duration = Duration::from_secs(1);
/// How long a replaced file is still read: the runtime creates the new one first, and then writes
/// lines that it had queued for the old one.
const HANDOVER: Duration = Duration::from_millis(200);
/// Approximately how much is read at once.
const PIECE: usize = 256 * 1024;
const TAIL_BLOCK: u64 = 64 * 1024;
/// How much of a line is buffered. By default runtimes write lines of at most 16 KiB.
const LONGEST_LINE: usize = 1 << 20;

/// Why a log cannot be read. The texts are shown to users.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A component of the path does not exist.
    #[error("failed to try resolving symlinks in path {path:?}: {}", go_text(source))]
    Resolve {
        /// The requested path.
        path: PathBuf,
        /// The kernel's error, with the component it is about.
        source: io::Error,
    },
    /// The file cannot be opened.
    #[error("failed to open log file {path:?}: open {}: {}", path.display(), go_text(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("failed to read log file {path:?}: {}", go_text(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The content is not in a container log format.
    #[error(transparent)]
    Format(#[from] UnsupportedFormat),
    /// It is not known whether the container still runs.
    #[error("{0}")]
    State(String),
    /// The blocking pool is gone.
    #[error(transparent)]
    Blocking(#[from] blocking::BlockingError),
}

/// Which part of a log to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Only this many lines from the end.
    pub tail_lines: Option<u64>,
    /// At most this many bytes.
    pub limit_bytes: Option<u64>,
    /// Only lines from this time on.
    pub since: Option<Moment>,
    /// Continue as the log grows, until the container ends.
    pub follow: bool,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Which streams.
    pub streams: Streams,
}

/// Reads a log into `sink`, in pieces. With `follow`, `alive` is called about once a second to
/// learn whether the container still runs. Returns without an error when the receiver is dropped.
pub async fn read_log<A, F>(
    path: &Path,
    query: LogQuery,
    mut alive: A,
    sink: mpsc::Sender<Vec<u8>>,
) -> Result<(), LogError>
where
    A: FnMut() -> F,
    F: Future<Output = Result<bool, String>>,
{
    let wanted = path.to_owned();
    let mut reader =
        blocking::run_for(blocking::Purpose::Callers, move || Reader::open(&wanted, query))
            .await??;
    let mut watch = None;
    let mut last_look = false;
    let mut asked: Option<Instant> = None;
    loop {
        let (returned, step) = blocking::run_for(blocking::Purpose::Callers, move || {
            let step = reader.step();
            (reader, step)
        })
        .await?;
        reader = returned;
        let Step { out, end } = step?;
        if !out.is_empty() && sink.send(out).await.is_err() {
            return Ok(());
        }
        match end {
            End::More => continue,
            End::Handover => {
                tokio::select! {
                    () = sink.closed() => return Ok(()), // cancel-safe: a state
                    () = tokio::time::sleep(HANDOVER / 4) => continue, // cancel-safe: a timer
                }
            }
            End::Limit => return Ok(()),
            End::OfFile if !query.follow || last_look => return Ok(()),
            End::OfFile => {}
        }
        if watch.is_none() {
            // Set up before the next read, so that nothing written meanwhile is missed.
            watch = Some(reader.path.parent().and_then(|folder| FolderWatch::new(folder).ok()));
            continue;
        }
        if asked.is_none_or(|at| at.elapsed() >= POLL) {
            asked = Some(Instant::now());
            last_look = !alive().await.map_err(LogError::State)?;
        }
        if !last_look {
            tokio::select! {
                () = sink.closed() => return Ok(()), // cancel-safe: a state
                () = tokio::time::sleep(POLL) => {}  // cancel-safe: a timer
                () = changed(watch.as_mut().and_then(Option::as_mut)) => {} // cancel-safe: a hint
            }
        }
    }
}

async fn changed(watch: Option<&mut FolderWatch>) {
    let armed = match watch {
        Some(watch) => watch.changed().await,
        None => false,
    };
    if !armed {
        // No watch, or its directory is gone: the timer wakes us.
        std::future::pending::<()>().await;
    }
}

struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    filter: LineFilter,
    follow: bool,
    /// A line whose end was not written yet.
    line: Vec<u8>,
    /// The beginning of the line was already sent, because it is too long to be buffered.
    inside: bool,
    /// The file to continue with once the current one is read to its end, and when it was found.
    next: Option<(File, Instant)>,
}

struct Step {
    out: Vec<u8>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    More,
    OfFile,
    /// There is a new file, but lines may still be written to the old one.
    Handover,
    Limit,
}

impl Reader {
    fn open(path: &Path, query: LogQuery) -> Result<Self, LogError> {
        let path = resolve(path)?;
        let mut file = open(&path)?;
        let read_error = |source| LogError::Read { path: path.clone(), source };
        if let Some(lines) = query.tail_lines {
            let start = tail_start(&mut file, lines).map_err(read_error)?;
            file.seek(SeekFrom::Start(start)).map_err(read_error)?;
        }
        let filter = LineFilter::new(LineOptions {
            since: query.since,
            timestamps: query.timestamps,
            limit_bytes: query.limit_bytes,
            limit_lines: query.tail_lines.filter(|_| !query.follow),
            streams: query.streams,
        });
        let file = BufReader::with_capacity(PIECE, file);
        let (line, follow) = (Vec::new(), query.follow);
        Ok(Self { path, file, filter, follow, line, inside: false, next: None })
    }

    /// Reads until a piece is full, the file ends, or a limit is reached.
    fn step(&mut self) -> Result<Step, LogError> {
        let mut out = Vec::new();
        if self.filter.wanted() == Wanted::Done {
            return Ok(Step { out, end: End::Limit });
        }
        let mut taken = 0;
        while taken < PIECE {
            let room = LONGEST_LINE.saturating_sub(self.line.len()) as u64;
            let read = self.file.by_ref().take(room).read_until(b'\n', &mut self.line);
            taken += read.map_err(|source| LogError::Read { path: self.path.clone(), source })?;
            if !self.line.ends_with(b"\n") && self.line.len() >= LONGEST_LINE {
                let wanted = if self.inside {
                    self.filter.line(&self.line, &mut out)?
                } else {
                    self.filter.begin(&self.line, &mut out)?
                };
                self.inside = true;
                self.line.clear();
                match wanted {
                    Wanted::More => continue,
                    Wanted::Done => return Ok(Step { out, end: End::Limit }),
                }
            }
            if !self.line.ends_with(b"\n") {
                if let Some((next, found)) = self.next.take() {
                    if found.elapsed() < HANDOVER {
                        self.next = Some((next, found));
                        return Ok(Step { out, end: End::Handover });
                    }
                    // The old file was read to its end after the handover time.
                    let wanted = self.take_line(&mut out)?;
                    self.file = BufReader::with_capacity(PIECE, next);
                    match wanted {
                        Wanted::More => continue,
                        Wanted::Done => return Ok(Step { out, end: End::Limit }),
                    }
                }
                if self.follow && self.rotated() {
                    self.next = File::open(&self.path).ok().map(|next| (next, Instant::now()));
                    if self.next.is_some() {
                        continue;
                    }
                }
                if !self.follow && self.take_line(&mut out)? == Wanted::Done {
                    return Ok(Step { out, end: End::Limit });
                }
                return Ok(Step { out, end: End::OfFile });
            }
            if self.take_line(&mut out)? == Wanted::Done {
                return Ok(Step { out, end: End::Limit });
            }
        }
        Ok(Step { out, end: End::More })
    }

    fn take_line(&mut self, out: &mut Vec<u8>) -> Result<Wanted, LogError> {
        if self.line.is_empty() {
            return Ok(Wanted::More);
        }
        let wanted = self.filter.line(&self.line, out)?;
        self.inside = false;
        self.line.clear();
        Ok(wanted)
    }

    /// Whether another file has the path now. A truncated file is read from its start.
    fn rotated(&mut self) -> bool {
        let Ok(named) = std::fs::metadata(&self.path) else { return false };
        let Ok(ours) = self.file.get_ref().metadata() else { return false };
        if (named.dev(), named.ino()) != (ours.dev(), ours.ino()) {
            return true;
        }
        if self.file.stream_position().is_ok_and(|at| ours.len() < at) {
            self.line.clear();
            let _ = self.file.seek(SeekFrom::Start(0));
        }
        false
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    File::open(path).map_err(|source| LogError::Open { path: path.to_owned(), source })
}

/// The path with symlinks resolved; the error names the missing component.
fn resolve(path: &Path) -> Result<PathBuf, LogError> {
    std::fs::canonicalize(path).map_err(|source| {
        let missing = path.ancestors().filter(|p| p.symlink_metadata().is_err()).last();
        let part = missing.unwrap_or(path).display().to_string();
        let source = io::Error::new(source.kind(), format!("lstat {part}: {}", go_text(&source)));
        LogError::Resolve { path: path.to_owned(), source }
    })
}

/// Where the last `lines` lines begin. A last line without newline does not count.
fn tail_start(file: &mut (impl Read + Seek), lines: u64) -> io::Result<u64> {
    let mut right = file.seek(SeekFrom::End(0))?;
    let mut found = 0;
    let mut block = Vec::new();
    while right > 0 {
        let left = right.saturating_sub(TAIL_BLOCK);
        file.seek(SeekFrom::Start(left))?;
        block.clear();
        file.by_ref().take(right - left).read_to_end(&mut block)?;
        for (at, byte) in block.iter().enumerate().rev() {
            if *byte == b'\n' {
                found += 1;
                if found > lines {
                    return Ok(left + at as u64 + 1);
                }
            }
        }
        right = left;
    }
    Ok(0)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test follows while it writes")]
mod tests;
