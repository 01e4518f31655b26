//! Spans of requests, calls and pod syncs, recorded for a trace collector.
//!
//! Owns: which spans are sampled (by the parent's decision, else by ratio), their parents, and a
//! bounded queue of finished ones. Promises: while tracing is off, nothing is built or stored; a
//! full queue drops new spans. Deliberately absent: sending, which is the task of the caller of
//! [`install`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// Spans queued for sending at most (OpenTelemetry: `OTEL_BSP_MAX_QUEUE_SIZE`).
const QUEUE: usize = 2048;
/// Spans sent at once (OpenTelemetry: `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
pub const BATCH: usize = 512;
const MILLION: u64 = 1_000_000;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Internal work.
    Internal,
    /// A request that is served here.
    Server,
    /// A call to another server.
    Client,
}

/// A value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// Attributes by name.
pub type Attributes = Vec<(&'static str, Value)>;

/// The identity of a span within its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// Whether it is recorded.
    pub sampled: bool,
}

impl Context {
    /// Parses W3C's `traceparent` header; `None` if it is malformed.
    #[must_use]
    pub fn from_header(text: &str) -> Option<Context> {
        let mut parts = text.trim().split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (span, flags) = (parts.next()?, parts.next()?);
        let more = parts.next().is_some();
        if version.len() != 2 || version == "ff" || (version == "00" && more) {
            return None;
        }
        let context = Context {
            trace: hex(trace)?,
            span: hex(span)?,
            sampled: hex::<1>(flags)?.first()? & 1 == 1,
        };
        let empty = context.trace == [0; 16] || context.span == [0; 8];
        (!empty).then_some(context)
    }

    /// W3C's `traceparent` header.
    #[must_use]
    pub fn to_header(self) -> String {
        let trace = u128::from_be_bytes(self.trace);
        let span = u64::from_be_bytes(self.span);
        format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || text.bytes().any(|b| !b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A span at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The instrumentation scope.
    pub scope: &'static str,
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Attributes known at the start.
    pub attributes: Attributes,
    /// A span of another process that led to this one.
    pub link: Option<Context>,
}

/// A span at its end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Closing {
    /// Attributes known at the end.
    pub attributes: Attributes,
    /// The error, if it failed.
    pub error: Option<String>,
}

/// A finished span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its identity.
    pub context: Context,
    /// The parent span.
    pub parent: Option<[u8; 8]>,
    /// Its start.
    pub opening: Opening,
    /// Its end.
    pub closing: Closing,
    /// When it began, in nanoseconds since the epoch.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
}

/// The recorder's sources of wall time and randomness.
pub struct Sources {
    /// Nanoseconds since the epoch.
    pub now: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Sixteen random bytes.
    pub random: Box<dyn Fn() -> [u8; 16] + Send + Sync>,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// Holds finished spans until they are sent.
#[derive(Debug)]
pub struct Recorder {
    per_million: u32,
    sources: Sources,
    finished: Mutex<VecDeque<Span>>,
    /// Notified when a batch is full.
    full: Notify,
}

static RECORDER: OnceLock<Arc<Recorder>> = OnceLock::new();

tokio::task_local! {
    static CURRENT: Context;
}

/// Starts recording this ratio of all traces, and those whose parent is recorded; returns the
/// recorder of finished spans. Only the first call counts.
pub fn install(per_million: u32, sources: Sources) -> Arc<Recorder> {
    let recorder = RECORDER.get_or_init(|| Arc::new(Recorder::new(per_million, sources)));
    Arc::clone(recorder)
}

/// Whether tracing is on.
pub fn is_on() -> bool {
    RECORDER.get().is_some()
}

/// The span of the running task, also one that is not sampled.
pub fn current() -> Option<Context> {
    CURRENT.try_with(|current| *current).ok()
}

/// Runs the work within a new span. While tracing is off, only the work is done.
pub async fn record<T, F>(
    opening: impl FnOnce() -> Opening,
    work: F,
    closing: impl FnOnce(&T) -> Closing,
) -> T
where
    F: Future<Output = T>,
{
    match RECORDER.get() {
        Some(recorder) => recorder.record(opening, work, closing).await,
        None => work.await,
    }
}

impl Recorder {
    fn new(per_million: u32, sources: Sources) -> Self {
        Self { per_million, sources, finished: Mutex::default(), full: Notify::new() }
    }

    async fn record<T, F>(
        &self,
        opening: impl FnOnce() -> Opening,
        work: F,
        closing: impl FnOnce(&T) -> Closing,
    ) -> T
    where
        F: Future<Output = T>,
    {
        let opening = opening();
        // A request from outside starts a new trace, whatever context it carries.
        let parent = match opening.kind {
            Kind::Server => None,
            Kind::Internal | Kind::Client => current(),
        };
        let context = self.context(parent);
        let began = (self.sources.now)();
        let result = CURRENT.scope(context, work).await;
        if context.sampled {
            let (closing, ended) = (closing(&result), (self.sources.now)());
            let parent = parent.map(|parent| parent.span);
            self.keep(Span { context, parent, opening, closing, began, ended });
        }
        result
    }

    fn context(&self, parent: Option<Context>) -> Context {
        let drawn = (self.sources.random)();
        let [a, b, c, d, e, f, g, h, ..] = drawn;
        let span = [a, b, c, d, e, f, g, h | 1];
        match parent {
            Some(parent) => Context { span, ..parent },
            None => {
                let trace = (self.sources.random)();
                Context { trace, span, sampled: self.takes(&trace) }
            }
        }
    }

    /// OpenTelemetry: `TraceIDRatioBased`.
    fn takes(&self, trace: &[u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *trace;
        let drawn = u128::from(u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1);
        let bound = u128::from(self.per_million) * (1 << 63) / u128::from(MILLION);
        drawn < bound
    }

    fn keep(&self, span: Span) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if finished.len() < QUEUE {
            finished.push_back(span);
        }
        if finished.len() >= BATCH {
            self.full.notify_one();
        }
    }

    /// Waits until a batch is full, or this long; returns the queued spans, at most a batch.
    pub async fn batch(&self, wait: Duration) -> Vec<Span> {
        // Cancel-safe: nothing is taken before the wait is over.
        let _ = tokio::time::timeout(wait, self.full.notified()).await;
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let count = finished.len().min(BATCH);
        finished.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    fn recorder(per_million: u32) -> Recorder {
        let next = AtomicU8::new(0);
        Recorder::new(
            per_million,
            Sources {
                now: Box::new(|| 7),
                random: Box::new(move || [next.fetch_add(1, Ordering::Relaxed) | 0x40; 16]),
            },
        )
    }

    fn opening(name: &str, kind: Kind) -> Opening {
        let name = name.to_owned();
        Opening { scope: "test", name, kind, attributes: Vec::new(), link: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_span_inside_another_is_its_child_and_a_request_begins_anew() {
        let recorder = recorder(1_000_000);
        let done = |(): &()| Closing::default();
        let call = recorder.record(|| opening("call", Kind::Client), async {}, done);
        let request = recorder.record(|| opening("request", Kind::Server), async {}, done);
        let inside = async {
            call.await;
            request.await;
        };
        recorder.record(|| opening("sync", Kind::Internal), inside, done).await;
        let spans = recorder.batch(Duration::from_secs(5)).await;
        let names: Vec<&str> = spans.iter().map(|span| span.opening.name.as_str()).collect();
        assert_eq!(names, ["call", "request", "sync"]);
        assert_eq!(spans[0].parent, Some(spans[2].context.span));
        assert_eq!(spans[0].context.trace, spans[2].context.trace);
        assert_eq!(spans[1].parent, None);
        assert_ne!(spans[1].context.trace, spans[2].context.trace);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_taken_without_a_share_and_no_more_than_the_queue_holds() {
        let none = recorder(0);
        none.record(|| opening("a", Kind::Internal), async {}, |(): &()| Closing::default()).await;
        assert_eq!(none.batch(Duration::from_secs(5)).await, []);
        let all = recorder(1_000_000);
        for _ in 0..QUEUE + 5 {
            let work =
                all.record(|| opening("a", Kind::Internal), async {}, |(): &()| Closing::default());
            work.await;
        }
        let mut taken = 0;
        for _ in 0..10 {
            taken += all.batch(Duration::from_secs(5)).await.len();
        }
        assert_eq!(taken, QUEUE);
    }

    #[test]
    fn a_traceparent_is_read_and_others_are_not() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::from_header(good).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_header(), good);
        let unsampled = Context { sampled: false, ..context }.to_header();
        assert_eq!(unsampled, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert_eq!(context.span, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319z-b7ad6b7169203331-01",
        ] {
            assert_eq!(Context::from_header(bad), None, "{bad}");
        }
    }
}
