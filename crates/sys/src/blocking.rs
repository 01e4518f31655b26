//! Work that may block in the kernel, off the runtime's worker threads.

/// Why blocking work gave no result.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// The closure panicked.
    #[error("blocking work panicked")]
    Panicked,
    /// The runtime is shutting down.
    #[error("blocking work was cancelled")]
    Cancelled,
}

/// Runs `work` on the bounded blocking pool (its size is set where the runtime is built).
pub async fn run<T, F>(work: F) -> Result<T, BlockingError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| if e.is_panic() { BlockingError::Panicked } else { BlockingError::Cancelled })
}
