//! Usage of the node and its pods, for the server and for eviction.

use api::stats::Summary;
use async_trait::async_trait;
use std::sync::Arc;

/// How much of the summary is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsScope {
    /// Everything.
    All,
    /// CPU, memory and swap: no filesystem is looked at.
    CpuAndMemory,
}

/// Why there is no summary.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct StatsError(pub String);

/// The front of the usage readers. Callers within a short time share one reading.
#[async_trait]
pub trait Stats: Send + Sync + std::fmt::Debug {
    /// Usage of the node and its pods.
    async fn summary(&self, scope: StatsScope) -> Result<Arc<Summary>, StatsError>;
    /// The text of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;
    /// The text of `/metrics/cadvisor`.
    async fn container_metrics(&self) -> String;
}
