//! What runs here, for everybody who is not a pod worker.

use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Where a pod came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSource {
    /// A manifest file.
    File,
    /// A manifest URL.
    Http,
    /// The API server.
    Api,
}

impl PodSource {
    /// The value of the `kubernetes.io/config.source` annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

/// Where a pod is in its life, as its worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodLife {
    /// Known, not admitted or not started yet.
    Pending,
    /// Refused by admission; it runs nothing.
    Rejected,
    /// Being kept in line with its spec.
    Syncing,
    /// Its containers are being stopped.
    Terminating,
    /// No container runs; volumes and cgroup are being released.
    Terminated,
    /// Nothing of it is left on the machine.
    Finished,
}

impl PodLife {
    /// Whether the pod may still need its volumes and cgroup.
    pub fn may_run(self) -> bool {
        matches!(self, Self::Pending | Self::Syncing | Self::Terminating)
    }
}

/// One pod in a [`PodsSnapshot`].
#[derive(Debug, Clone)]
pub struct PodEntry {
    /// The pod with its allocated resources.
    pub pod: Arc<Pod>,
    /// The pod as its source has it; `None` when its source has it no more.
    pub given: Option<Arc<Pod>>,
    /// Where it came from.
    pub source: PodSource,
    /// The mirror pod of a static pod, if the API has one.
    pub mirror: Option<Arc<Pod>>,
    /// Its place in life.
    pub life: PodLife,
    /// The newest status we generated.
    pub status: Option<Arc<PodStatus>>,
    /// Whether its worker was told to evict it.
    pub evicted: bool,
}

/// All pods of this node at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PodsSnapshot {
    /// Pods by UID.
    pub pods: Arc<BTreeMap<PodUid, PodEntry>>,
    /// Whether every configured source has delivered at least once.
    pub sources_ready: bool,
}

/// Why and how a pod is to be ended from outside its worker (eviction, pre-emption, shutdown).
#[derive(Debug, Clone)]
pub struct KillRequest {
    /// Whether this is an eviction.
    pub evict: bool,
    /// Overrides the pod's grace period.
    pub grace_seconds: Option<i64>,
    /// `status.reason`, e.g. `Evicted`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// A condition to add to the status, e.g. `DisruptionTarget`.
    pub condition: Option<api::core::v1::PodCondition>,
}

/// The front of the pod subsystem.
#[async_trait]
pub trait Pods: Send + Sync + std::fmt::Debug {
    /// The current pods; changes wake the receiver.
    fn watch(&self) -> watch::Receiver<PodsSnapshot>;
    /// Ends a pod; returns when its containers have stopped.
    async fn kill(&self, uid: &PodUid, request: KillRequest) -> Result<(), String>;
    /// Waits until the API server has a pod's newest status, or there is none to have. The limit is the caller's:
    /// an API server that is away never has it.
    async fn wait_told(&self, _uid: &PodUid) {}
}

/// What became of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodChangeKind {
    /// It has its first status.
    Added,
    /// Its status changed.
    Modified,
    /// Nothing of it is left on the machine.
    Deleted,
}

/// A pod with the status that goes with it.
#[derive(Debug, Clone)]
pub struct ShownPod {
    /// The pod; its own status is the API's.
    pub pod: Arc<Pod>,
    /// The newest status we generated.
    pub status: Option<Arc<PodStatus>>,
}

/// One step of a pod.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// What became of it.
    pub kind: PodChangeKind,
    /// The pod at that moment.
    pub shown: ShownPod,
}

/// The pods of this node step by step, for those who copy them.
pub trait PodFeed: Send + Sync + std::fmt::Debug {
    /// The pods as their sources have them, by UID.
    fn shown(&self) -> BTreeMap<PodUid, ShownPod>;
    /// Every change from now on. It ends when the follower falls too far behind.
    fn follow(&self) -> mpsc::Receiver<PodChange>;
}
