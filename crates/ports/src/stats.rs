//! Usage of the node and its pods, for the server and for eviction.

use api::stats::Summary;
use async_trait::async_trait;
use std::sync::Arc;

/// Which part of the summary is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsScope {
    /// Everything.
    All,
    /// Everything, read now and not shared with an earlier caller.
    Fresh,
    /// CPU, memory and swap: no filesystem is read.
    CpuAndMemory,
    /// The node without its pods, read now: its memory and that of all pods together, its filesystems and
    /// process ids. The runtime is called only now and then, for the paths of its filesystems.
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

/// A long text in pieces, produced lazily.
pub type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// Interface of the usage readers. Calls within a short time share one reading.
#[async_trait]
pub trait Stats: Send + Sync + std::fmt::Debug {
    /// Usage of the node and its pods.
    async fn summary(&self, scope: StatsScope) -> Result<Arc<Summary>, StatsError>;
    /// Which filesystems images and writable layers are on.
    async fn layout(&self) -> Result<StorageLayout, StatsError>;
    /// The text of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;
    /// The text of `/metrics/cadvisor`.
    async fn container_metrics(&self) -> Pieces;
}
