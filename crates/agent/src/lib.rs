//! Composition root: builds handles, wires channels, supervises, shuts down in order.
#![forbid(unsafe_code)]

/// Why the agent ended other than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A part could not be built.
    #[error("{0}")]
    Start(String),
}

/// Runs the agent until a signal ends it.
pub async fn run(
    config: config::Config,
    _logs: telemetry::log::LogHandle,
) -> Result<(), AgentError> {
    Err(AgentError::Start(format!("nothing serves {} yet", config.runtime.endpoint)))
}
