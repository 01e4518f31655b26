//! The output streams: errors to one stream, the rest to the same or another.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, PoisonError};

use super::LogConfig;

/// The output streams of a process (or of a test). A failed write is dropped: there is nowhere to report it.
pub struct Sinks {
    main: Mutex<Box<dyn Write + Send>>,
    info: Option<Mutex<Box<dyn Write + Send>>>,
}

impl Sinks {
    /// stderr, and stdout for info lines when the stream is split.
    pub fn standard(config: &LogConfig) -> Self {
        let info: Option<Box<dyn Write + Send>> =
            match (config.split_stream, config.info_buffer_bytes) {
                (false, _) => None,
                (true, 0) => Some(Box::new(io::stdout())),
                (true, size) => Some(Box::new(BufWriter::with_capacity(size, io::stdout()))),
            };
        Self { main: Mutex::new(Box::new(io::stderr())), info: info.map(Mutex::new) }
    }

    /// Everything to one stream.
    pub fn single(stream: impl Write + Send + 'static) -> Self {
        Self { main: Mutex::new(Box::new(stream)), info: None }
    }

    /// Errors to the first stream, the rest to the second.
    pub fn split(errors: impl Write + Send + 'static, info: impl Write + Send + 'static) -> Self {
        Self { main: Mutex::new(Box::new(errors)), info: Some(Mutex::new(Box::new(info))) }
    }

    pub(super) fn write(&self, line: &str, is_error: bool) {
        let stream = match &self.info {
            Some(info) if !is_error => info,
            _ => &self.main,
        };
        let _ = stream.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }

    pub(super) fn flush(&self) {
        for stream in std::iter::once(&self.main).chain(&self.info) {
            let _ = stream.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sinks").field("split", &self.info.is_some()).finish_non_exhaustive()
    }
}
