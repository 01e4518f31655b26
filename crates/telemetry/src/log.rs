//! Log lines on stderr in klog's text format or as JSON, from `tracing` events.
//!
//! ```text
//! I1115 11:33:01.103014   15620 worker.rs:72] "Pod synced" pod="default/web" podUID="4f…"
//! {"ts":1763206381103.014,"caller":"pods/worker.rs:72","msg":"Pod synced","v":0,"pod":"default/web"}
//! ```
//!
//! Verbosity: an error, warning or info event has V0, debug V3, trace V5; an event may set its own
//! with a field `v`. It is printed when its V is not above `--v` (or, if that is higher, above the
//! level that `--vmodule` sets for its file). The level can be changed while running through
//! [`LogHandle`]. Events of other crates are four steps quieter than those of this workspace.
//! Fields of the enclosing spans come before the event's own.

mod fields;
mod json;
mod layer;
mod sink;
mod text;
mod verbosity;

use std::fmt;
use std::sync::Arc;

use tracing_subscriber::layer::SubscriberExt;

pub use layer::{LogLayer, WallClock};
pub use sink::Sinks;
pub use verbosity::{ParseVModuleError, VModule};

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// klog's text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings of the log; the resolved `logging` section of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// Text or JSON.
    pub format: LogFormat,
    /// `--v`.
    pub verbosity: u32,
    /// `--vmodule`.
    pub vmodule: VModule,
    /// Sends everything but errors to stdout instead of stderr.
    pub split_stream: bool,
    /// With a split stream: how much of stdout to buffer before writing. Zero writes at once.
    pub info_buffer_bytes: usize,
}

/// Installs the logging of the process. May be called once.
pub fn init(config: &LogConfig, clock: Arc<WallClock>) -> Result<LogHandle, InitError> {
    let layer = LogLayer::new(config, clock, Sinks::standard(config));
    let handle = layer.handle();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .map_err(|_| InitError)?;
    Ok(handle)
}

/// Logs as text at the lowest verbosity while `say` runs, whatever the process's own logging is.
pub fn as_text(clock: Arc<WallClock>, say: impl FnOnce()) {
    let config = LogConfig::default();
    let layer = LogLayer::new(&config, clock, Sinks::standard(&config));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), say);
}

/// Logging was already installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("logging is already initialised")]
pub struct InitError;

/// Changes the logging of a running process. Cheap to clone.
#[derive(Clone)]
pub struct LogHandle(Arc<layer::Shared>);

impl LogHandle {
    /// The verbosity now.
    pub fn verbosity(&self) -> u32 {
        self.0.filter.verbosity()
    }

    /// Changes the verbosity (`PUT /debug/flags/v`).
    pub fn set_verbosity(&self, verbosity: u32) {
        self.0.filter.set_verbosity(verbosity);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Writes buffered lines. Called every `logging.flushFrequency` and before the end.
    pub fn flush(&self) {
        self.0.sinks.flush();
    }
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogHandle").field("verbosity", &self.verbosity()).finish()
    }
}

#[cfg(test)]
mod tests;
