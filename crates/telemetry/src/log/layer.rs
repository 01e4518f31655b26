//! The `tracing` layer that turns events into lines.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::fields::{EventFields, Pairs};
use super::sink::Sinks;
use super::verbosity::{Filter, of_level};
use super::{LogConfig, LogFormat, LogHandle, json, text};

/// The wall clock for the lines.
pub type WallClock = dyn Fn() -> Timestamp + Send + Sync;

/// Prints events. Usually created by [`init`](super::init); tests create their own.
pub struct LogLayer(Arc<Shared>);

pub(super) struct Shared {
    pub(super) filter: Filter,
    pub(super) sinks: Sinks,
    format: LogFormat,
    clock: Arc<WallClock>,
    zone: TimeZone,
    pid: u32,
}

impl LogLayer {
    /// A layer with its own streams and clock. Text lines show the machine's local time.
    pub fn new(config: &LogConfig, clock: Arc<WallClock>, sinks: Sinks) -> Self {
        Self(Arc::new(Shared {
            filter: Filter::new(config.verbosity, config.vmodule.clone()),
            sinks,
            format: config.format,
            clock,
            zone: TimeZone::system(),
            pid: std::process::id(),
        }))
    }

    /// Text lines show the time of this zone.
    #[cfg(test)]
    pub(super) fn in_zone(self, zone: TimeZone, pid: u32) -> Self {
        let shared = Arc::into_inner(self.0).expect("a new layer has no other owner");
        Self(Arc::new(Shared { zone, pid, ..shared }))
    }

    /// The handle that changes this layer while it is in use.
    pub fn handle(&self) -> LogHandle {
        LogHandle(Arc::clone(&self.0))
    }
}

impl fmt::Debug for LogLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLayer").field("format", &self.0.format).finish_non_exhaustive()
    }
}

/// klog's severities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    pub(super) fn letter(self) -> char {
        match self {
            Self::Info => 'I',
            Self::Warning => 'W',
            Self::Error => 'E',
        }
    }

    fn of(level: &Level) -> Self {
        match *level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            _ => Self::Info,
        }
    }
}

/// The content of a line.
pub(super) struct Line<'a> {
    pub(super) time: Timestamp,
    pub(super) zone: &'a TimeZone,
    pub(super) pid: u32,
    pub(super) severity: Severity,
    pub(super) verbosity: u32,
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) message: &'a str,
    pub(super) plain: bool,
    pub(super) err: Option<&'a str>,
    pub(super) pairs: &'a Pairs,
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Never `always`: an event may carry its own verbosity.
        if self.0.filter.enabled(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.0.filter.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.filter.max_level())
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = EventFields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields.pairs);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = EventFields::default();
        record.record(&mut fields);
        if let Some(pairs) = span.extensions_mut().get_mut::<Pairs>() {
            pairs.extend(fields.pairs);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let verbosity = fields.verbosity.unwrap_or_else(|| of_level(metadata.level()));
        if !self.0.filter.allows(metadata, verbosity) {
            return;
        }
        let mut pairs = Pairs::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(of_span) = span.extensions().get::<Pairs>() {
                pairs.extend(of_span.clone());
            }
        }
        pairs.extend(fields.pairs);
        let severity = Severity::of(metadata.level());
        let line = Line {
            time: (self.0.clock)(),
            zone: &self.0.zone,
            pid: self.0.pid,
            severity,
            verbosity,
            file: metadata.file().unwrap_or(metadata.target()),
            line: metadata.line().unwrap_or(1),
            message: &fields.message,
            plain: fields.plain,
            err: fields.err.as_deref(),
            pairs: &pairs,
        };
        let printed = match self.0.format {
            LogFormat::Text => text::format(&line),
            LogFormat::Json => json::format(&line),
        };
        self.0.sinks.write(&printed, severity == Severity::Error);
    }
}
