//! Usage of the node and its pods, for the server and for eviction.

use api::stats::Summary;
use async_trait::async_trait;
use std::sync::Arc;

/// How much of the summary is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsScope {
    /// Everything.
    All,
    /// Everything, read now and not shared with an earlier caller.
    Fresh,
    /// CPU, memory and swap: no filesystem is looked at.
    CpuAndMemory,
    /// The node without its pods, read now: its memory and that of all pods together, its filesystems and
    /// process ids. The runtime is not asked, but for the places of its filesystems once in a while.
    Node,
}

/// Which filesystems images and writable layers are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageLayout {
    /// Everything is on the node's.
    One,
    /// Images and writable layers have their own.
    DedicatedImages,
    /// Images have their own, writable layers are on the node's.
    Split,
}

/// Why there is no summary.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct StatsError(pub String);

/// A long text, piece by piece; each is made when it is taken.
pub type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// The front of the usage readers. Callers within a short time share one reading.
#[async_trait]
pub trait Stats: Send + Sync + std::fmt::Debug {
    /// Usage of the node and its pods.
    async fn summary(&self, scope: StatsScope) -> Result<Arc<Summary>, StatsError>;
    /// Where images and writable layers are.
    async fn layout(&self) -> Result<StorageLayout, StatsError>;
    /// The text of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;
    /// The text of `/metrics/cadvisor`.
    async fn container_metrics(&self) -> Pieces;
}
