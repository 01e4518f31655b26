//! The pods of this node, for subsystems other than the pod workers.

use api::core::v1::{Pod, PodStatus};
use api::ids::PodUid;
use api::pod::{PodExt, PodStatusExt};
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

/// The life cycle stage of a pod, as its worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodLife {
    /// Known, not admitted or not started yet.
    Pending,
    /// Refused by admission; it runs nothing.
    Rejected,
    /// Being synced with its spec.
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
    /// The pod as its source has it; `None` when the source has removed it.
    pub given: Option<Arc<Pod>>,
    /// Where it came from.
    pub source: PodSource,
    /// The mirror pod of a static pod, if the API has one.
    pub mirror: Option<Arc<Pod>>,
    /// Its life cycle stage.
    pub life: PodLife,
    /// The newest status we generated.
    pub status: Option<Arc<PodStatus>>,
    /// Whether its worker was told to evict it.
    pub evicted: bool,
}

impl PodEntry {
    /// Whether it may hold resources of this node: it was admitted and is not terminal (kubelet: `filterOutInactivePods`).
    pub fn is_active(&self) -> bool {
        let status = self.status.as_ref().is_some_and(|status| status.is_terminal());
        match self.life {
            PodLife::Terminating => true,
            PodLife::Pending | PodLife::Syncing => !status && !self.pod.is_terminal(),
            PodLife::Rejected | PodLife::Terminated | PodLife::Finished => false,
        }
    }
}

/// All pods of this node at one point in time. Cheap to clone.
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

/// Interface of the pod subsystem.
#[async_trait]
pub trait Pods: Send + Sync + std::fmt::Debug {
    /// The current pods; changes wake the receiver.
    fn watch(&self) -> watch::Receiver<PodsSnapshot>;
    /// Ends a pod; returns when its containers have stopped.
    async fn kill(&self, uid: &PodUid, request: KillRequest) -> Result<(), String>;
    /// Waits until the API server has a pod's newest status, or the pod has none. The caller must set a timeout:
    /// while the API server is down this does not return.
    async fn wait_acknowledged(&self, _uid: &PodUid) {}
}

/// How a pod changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodChangeKind {
    /// It has its first status.
    Added,
    /// Its status changed.
    Modified,
    /// Nothing of it is left on the machine.
    Deleted,
}

/// A pod with its generated status.
#[derive(Debug, Clone)]
pub struct ShownPod {
    /// The pod; its `status` field is the API server's.
    pub pod: Arc<Pod>,
    /// The newest status we generated.
    pub status: Option<Arc<PodStatus>>,
}

/// One change of a pod.
#[derive(Debug, Clone)]
pub struct PodChange {
    /// How it changed.
    pub kind: PodChangeKind,
    /// The pod at that time.
    pub shown: ShownPod,
}

/// A stream of changes of the node's pods, for consumers that keep a copy.
pub trait PodFeed: Send + Sync + std::fmt::Debug {
    /// The pods as their sources have them, by UID.
    fn shown(&self) -> BTreeMap<PodUid, ShownPod>;
    /// Every change from now on. The stream ends when the receiver falls too far behind.
    fn follow(&self) -> mpsc::Receiver<PodChange>;
}
