//! Registers the node, then updates its status.
//!
//! ```text
//!   unregistered ──create / reconcile──▶ registered ──changed or period over──▶ patch status
//!        ▲  100 ms … 7 s  │                  ▲   10 s, or at once when something changed  │
//!        └────────────────┘                  └────────────────────────────────────────────┘
//! ```
//!
//! Promises: a patch is computed against the newest known node (from the watch or an own write); a
//! failed write is retried up to five times, then in the next round.

use crate::collect::Collector;
use crate::lease::jitter;
use crate::startup::StartupTimes;
use api::core::v1::Node;
use engine::node::{
    NodeFacts, NodeMemory, NodeUpdate, StatusEvent, StatusEventSeverity, existing_node_patch,
    initial_node, status_patch, update,
};
use kubeapi::{ApiError, NodeApi, Refusal};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);
/// How long a restart may take until a previously ready node is reported as not ready.
const START_SETTLES: Duration = Duration::from_secs(5);
/// Changes in quicker succession than this are sent as one.
const SHORTEST_GAP: Duration = Duration::from_millis(200);

/// Whether this process registers the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// Create the node, or reconcile an existing one.
    Register,
    /// The node is created by somebody else (`registerNode: false`).
    ByOthers,
}

/// Settings of the heartbeat.
#[derive(Debug, Clone)]
pub struct HeartbeatConfig {
    /// Whether to register.
    pub registration: Registration,
    /// `nodeStatusUpdateFrequency`.
    pub update_frequency: Duration,
    /// `nodeStatusReportFrequency`.
    pub report_frequency: Duration,
    /// Gate `KubeletRegistrationGetOnExistsOnly`: a forbidden create is not followed by a get.
    pub get_on_exists_only: bool,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self {
            registration: Registration::Register,
            update_frequency: Duration::from_secs(10),
            report_frequency: Duration::from_secs(300),
            get_on_exists_only: false,
        }
    }
}

/// The API server's node: outer `None` until listed, inner `None` if it does not exist.
type Seen = watch::Receiver<Option<Option<Arc<Node>>>>;

/// Dependencies of the heartbeat.
#[derive(Debug)]
pub(crate) struct HeartbeatDeps {
    /// Where events go.
    pub(crate) events: Arc<dyn Events>,
    /// Wall time.
    pub(crate) clock: Arc<dyn Clock>,
    /// Fed by [`NodeApi::watch`].
    pub(crate) seen: Seen,
    /// Receives the newest known node.
    pub(crate) node: watch::Sender<Option<Arc<Node>>>,
    /// When the steps of the start happened.
    pub(crate) startup: watch::Sender<StartupTimes>,
}

impl HeartbeatDeps {
    fn adopt_seen(&mut self, latest: &mut Option<Arc<Node>>) -> bool {
        let Some(Some(node)) = self.seen.borrow_and_update().clone() else { return false };
        let newer = latest.as_ref().is_none_or(|known| version(&node) > version(known));
        if newer {
            self.know(node, latest);
        }
        newer
    }

    fn know(&mut self, node: Arc<Node>, latest: &mut Option<Arc<Node>>) {
        *latest = Some(Arc::clone(&node));
        self.node.send_replace(Some(node));
    }
}

/// Registers the node and updates its status.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    api: NodeApi,
    config: HeartbeatConfig,
    collector: Collector,
    deps: HeartbeatDeps,
    registered: watch::Sender<bool>,
    memory: NodeMemory,
    latest: Option<Arc<Node>>,
    reported_at: Option<Instant>,
    /// Jitter added to the report period; may be negative.
    spread: f64,
}

impl Heartbeat {
    pub(crate) fn new(
        api: NodeApi,
        config: HeartbeatConfig,
        collector: Collector,
        deps: HeartbeatDeps,
    ) -> Self {
        let registered = watch::Sender::new(config.registration == Registration::ByOthers);
        Self {
            api,
            config,
            collector,
            deps,
            registered,
            memory: NodeMemory::default(),
            latest: None,
            reported_at: None,
            spread: 0.0,
        }
    }

    /// The same, with the pod CIDR that the runtime already has.
    #[must_use]
    pub(crate) fn knowing_cidr(mut self, cidr: String) -> Self {
        self.memory.pod_cidr = cidr;
        self
    }

    /// Becomes true once the node is registered.
    pub(crate) fn registered(&self) -> watch::Receiver<bool> {
        self.registered.subscribe()
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        tokio::select! {
            // Cancel-safe: a token has no state to lose.
            () = cancel.cancelled() => {}
            // Dropped only at the end of the process; the next start reads the node again.
            () = self.rounds() => {}
        }
    }

    async fn rounds(&mut self) {
        self.collector.runtime_asked().await;
        if self.config.registration == Registration::Register {
            self.register().await;
        }
        self.settle_start().await;
        loop {
            self.send_status().await;
            let next = Instant::now() + self.config.update_frequency.mul_f64(1.0 + 0.04 * jitter());
            tokio::time::sleep(SHORTEST_GAP).await;
            self.wait(next).await;
        }
    }

    /// At a restart it takes a short while until volumes and the runtime are known. Reporting a
    /// previously ready node as not ready for that long would make controllers mark its pods
    /// unready.
    async fn settle_start(&mut self) {
        let deadline = Instant::now() + START_SETTLES;
        while let Some(known) = self.latest.clone().filter(|node| is_ready(node)) {
            let facts = self.collector.facts().await;
            let (settings, memory) = (self.collector.settings(), self.memory.clone());
            let computed = update(&known, settings, &facts, memory, self.deps.clock.now());
            if is_ready(&computed.node) || Instant::now() >= deadline {
                return;
            }
            tokio::select! {
                // Cancel-safe: an absolute time.
                () = tokio::time::sleep_until(deadline) => {}
                // Cancel-safe: a change stays marked until the facts are gathered.
                () = self.collector.changed() => {}
            }
        }
    }

    /// Waits until `deadline`, or until something that belongs in the status has changed.
    async fn wait(&mut self, deadline: Instant) {
        loop {
            tokio::select! {
                // Cancel-safe: an absolute time.
                () = tokio::time::sleep_until(deadline) => return,
                // Cancel-safe: a change stays marked until the facts are gathered.
                () = self.collector.changed() => return,
                // Cancel-safe: a change stays marked until it is seen.
                () = crate::inputs::next(&mut self.deps.seen) => {
                    if self.adopt_seen() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes over the watched node; returns whether it differs from the known one.
    fn adopt_seen(&mut self) -> bool {
        self.deps.adopt_seen(&mut self.latest)
    }

    fn know(&mut self, node: Arc<Node>) {
        self.deps.know(node, &mut self.latest);
    }

    /// Facts for the first registration. Collecting them may take seconds (a name server that does
    /// not respond), and the pods of an existing node need not wait for them.
    async fn facts_while_watching(&mut self) -> NodeFacts {
        let facts = self.collector.facts();
        tokio::pin!(facts);
        loop {
            tokio::select! {
                // Not dropped before it is done.
                facts = &mut facts => return facts,
                // Cancel-safe: a change stays marked until it is seen.
                () = crate::inputs::next(&mut self.deps.seen) => {
                    self.deps.adopt_seen(&mut self.latest);
                }
            }
        }
    }

    async fn register(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_register().await {
                Ok(node) => {
                    tracing::info!(node = self.api.name(), "Successfully registered node");
                    self.know(Arc::new(node));
                    self.registered.send_replace(true);
                    return;
                }
                Err(err) => {
                    let node = self.api.name();
                    tracing::error!(node, err = %err, "Unable to register node with API server");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_register(&mut self) -> Result<Node, ApiError> {
        let facts = self.facts_while_watching().await;
        self.adopt_seen();
        let settings = self.collector.settings();
        let memory = self.memory.clone();
        let initial = self.take(initial_node(settings, &facts, memory, self.deps.clock.now()));
        if self.latest.is_none() {
            self.deps.node.send_replace(Some(Arc::new(initial.clone())));
        }
        tracing::info!(node = self.api.name(), "Attempting to register node");
        let now = self.deps.clock.now();
        self.deps.startup.send_modify(|t| t.attempted = t.attempted.or(Some(now)));
        let err = match self.api.create(&initial).await {
            Ok(node) => {
                let now = self.deps.clock.now();
                self.deps.startup.send_modify(|t| t.registered = Some(now));
                self.note_ready(&node);
                return Ok(node);
            }
            Err(err) => err,
        };
        match err.refusal() {
            Some(Refusal::AlreadyExists) => {}
            Some(Refusal::Forbidden) if !self.config.get_on_exists_only => {}
            _ => return Err(err),
        }
        let existing = self.api.get().await?;
        tracing::info!(node = self.api.name(), "Node was previously registered");
        match existing_node_patch(&existing, &initial, &facts) {
            None => Ok(existing),
            Some(patch) => self.api.patch_status(&patch.0).await,
        }
    }

    async fn send_status(&mut self) {
        for attempt in 0..TRIES {
            match self.try_send_status(attempt).await {
                Ok(()) => return,
                Err(err) => {
                    tracing::error!(err = %err, "Error updating node status, will retry");
                    if attempt > 0 {
                        self.api.redial();
                    }
                    if err.is_not_found() {
                        return;
                    }
                }
            }
        }
        tracing::error!("Unable to update node status, update node status exceeds retry count");
    }

    async fn try_send_status(&mut self, attempt: u32) -> Result<(), ApiError> {
        self.adopt_seen();
        let original = match self.latest.clone().filter(|_| attempt == 0) {
            Some(node) => node,
            None => Arc::new(self.api.get().await?),
        };
        let facts = self.collector.facts().await;
        let settings = self.collector.settings();
        let old_cidr = self.memory.pod_cidr.clone();
        let memory = self.memory.clone();
        let computed = update(&original, settings, &facts, memory, self.deps.clock.now());
        let changed = computed.changed;
        let node = self.take(computed);
        if self.memory.pod_cidr != old_cidr {
            self.send_pod_cidr(old_cidr).await;
        }
        if !changed && !self.is_report_due() {
            return Ok(());
        }
        self.spread = match changed || self.reported_at.is_none() {
            true => jitter() - 0.5,
            false => 0.0,
        };
        if let Some(patch) = status_patch(&original, &node) {
            let stored = self.api.patch_status(&patch.0).await?;
            self.note_ready(&stored);
            self.know(Arc::new(stored));
        }
        self.reported_at = Some(Instant::now());
        Ok(())
    }

    fn note_ready(&self, node: &Node) {
        if is_ready(node) {
            let now = self.deps.clock.now();
            self.deps.startup.send_if_modified(|times| {
                let first = times.ready.is_none();
                times.ready.get_or_insert(now);
                first
            });
        }
    }

    fn is_report_due(&self) -> bool {
        let period = self.config.report_frequency.mul_f64(1.0 + self.spread);
        self.reported_at.is_none_or(|at| at.elapsed() >= period)
    }

    /// Sends the node's pod CIDR to the runtime; a failure is retried in the next round.
    async fn send_pod_cidr(&mut self, old: String) {
        let cidr = self.memory.pod_cidr.clone();
        match self.collector.runtime().set_pod_cidr(&cidr).await {
            Ok(()) => tracing::info!(originalPodCIDR = old, newPodCIDR = cidr, "Updating Pod CIDR"),
            Err(err) => {
                tracing::error!(err, "Error updating pod CIDR");
                self.memory.pod_cidr = old;
            }
        }
    }

    /// Stores the state, sends the events, logs the errors, and returns the node.
    fn take(&mut self, computed: NodeUpdate) -> Node {
        for fault in &computed.faults {
            tracing::error!(err = fault, "Failed to set some node status fields");
        }
        for StatusEvent { severity, reason, message } in computed.events {
            let severity = match severity {
                StatusEventSeverity::Normal => EventSeverity::Normal,
                StatusEventSeverity::Warning => EventSeverity::Warning,
            };
            self.deps.events.emit(NodeEvent {
                target: EventTarget::Node,
                severity,
                reason,
                message,
            });
        }
        self.memory = computed.memory;
        computed.node
    }
}

/// Whether the node's Ready condition is true.
fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Resource versions of one object only grow.
fn version(node: &Node) -> u64 {
    node.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default()
}
