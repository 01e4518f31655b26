//! Log set-up, and the lines the configuration has to say.

use config::resolved::{LogFormat, Logging};
use config::{LogLine, LogValue, Severity};
use ports::{Clock, SystemClock};
use std::sync::Arc;
use telemetry::log::{LogConfig, LogHandle, LogLayer, Sinks, VModule, init as make_global};

/// Starts logging as configured; as text when nothing is known yet.
pub(crate) fn init(logging: Option<&Logging>) -> LogHandle {
    let config = logging.map_or_else(LogConfig::default, |logging| LogConfig {
        format: match logging.format {
            LogFormat::Text => telemetry::log::LogFormat::Text,
            LogFormat::Json => telemetry::log::LogFormat::Json,
        },
        verbosity: logging.verbosity,
        vmodule: VModule::new(logging.vmodule.iter().cloned()),
        split_stream: logging.split_stream,
        info_buffer_bytes: usize::try_from(logging.info_buffer_bytes).unwrap_or(0),
    });
    let clock: Arc<telemetry::log::WallClock> = Arc::new(|| SystemClock.now());
    make_global(&config, Arc::clone(&clock)).unwrap_or_else(|_| {
        // Somebody else made the global logger: hand out a handle to one nobody writes to.
        LogLayer::new(&config, clock, Sinks::standard(&config)).handle()
    })
}

/// Logs what was said before it was known how to log: as text.
pub(crate) fn write_early(lines: &[LogLine]) {
    telemetry::log::as_text(Arc::new(|| SystemClock.now()), || lines.iter().for_each(write));
}

/// Logs one line.
pub(crate) fn write(line: &LogLine) {
    let text = |wanted: &str| {
        line.values.iter().find(|(key, _)| *key == wanted).map(|(_, value)| match value {
            LogValue::Text(text) | LogValue::Raw(text) => text.as_str(),
        })
    };
    let message = line.message.as_str();
    let value = text("value").map(|value| value == "true");
    match line.severity {
        Severity::Error => {
            tracing::error!(
                err = text("err"),
                logger = text("logger"),
                variable = text("variable"),
                known = text("known"),
                "{message}"
            );
        }
        Severity::Info(verbosity) => tracing::info!(
            v = u64::from(verbosity),
            plain = line.plain,
            err = text("err"),
            featureGate = text("featureGate"),
            value = value,
            file = text("file"),
            cipher = text("cipher"),
            configuration = text("configuration"),
            variable = text("variable"),
            setting = text("setting"),
            "{message}"
        ),
    }
}
