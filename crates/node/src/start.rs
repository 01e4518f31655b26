//! Starts all node tasks, with or without an API server.

use crate::collect::{Collector, CollectorConfig};
use crate::heartbeat::{Heartbeat, HeartbeatConfig, HeartbeatDeps};
use crate::inputs::NodeInputs;
use crate::lease::{Lease, LeaseConfig};
use crate::runtime::{RuntimeHealth, RuntimeProbe, send_configured_cidr, watch_runtime};
use crate::standalone::Standalone;
use crate::startup::{self, StartupTimes};
use crate::view;
use api::core::v1::Node;
use engine::node::{NodeMemory, NodeSettings, initial_node};
use kubeapi::{Connection, LeaseApi, NodeApi};
use ports::{Clock, Events, NodeView, OnExit, Roots, Tasks};
use std::sync::Arc;
use telemetry::metrics::Registry;
use tokio::sync::watch;

/// Settings of the node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The settings of the node object.
    pub settings: NodeSettings,
    /// The directories on disk.
    pub roots: Roots,
    /// Registration and status.
    pub heartbeat: HeartbeatConfig,
    /// The lease.
    pub lease: LeaseConfig,
    /// `podCIDR`: sent to the runtime before the API server's is known; empty for none.
    pub pod_cidr: String,
}

/// Dependencies of the node.
#[derive(Debug)]
pub struct NodeParts {
    /// The API server; `None` is standalone mode.
    pub connection: Option<Connection>,
    /// The runtime.
    pub runtime: Arc<dyn RuntimeProbe>,
    /// Inputs of other subsystems.
    pub inputs: NodeInputs,
    /// Where events go.
    pub events: Arc<dyn Events>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where the node's state is published.
    pub view: watch::Sender<Arc<NodeView>>,
}

/// What others may watch. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    name: String,
    health: watch::Receiver<RuntimeHealth>,
    registered: watch::Receiver<bool>,
    startup: watch::Receiver<StartupTimes>,
}

impl NodeHandle {
    /// Registers the metrics of the node's name and startup latency.
    pub fn measure(&self, registry: &Registry) {
        startup::measure(registry, self.name.clone(), self.startup.clone());
    }

    /// The runtime's health.
    pub fn runtime_health(&self) -> watch::Receiver<RuntimeHealth> {
        self.health.clone()
    }

    /// Becomes true once the node is registered (at once in standalone mode).
    pub fn registered(&self) -> watch::Receiver<bool> {
        self.registered.clone()
    }
}

/// A node for the admission of pods before the API server's is known: a static pod must start, and
/// must not be rejected, while the API server is unreachable (it may be the API server).
fn first_node(collector: &mut Collector, clock: &dyn Clock) -> Node {
    let facts = collector.first_facts();
    initial_node(collector.settings(), &facts, NodeMemory::default(), clock.now()).node
}

/// Starts the node's tasks among `tasks`. The view has a node when this returns.
pub fn start(config: NodeConfig, parts: NodeParts, tasks: &Tasks) -> NodeHandle {
    let NodeParts { connection, runtime, inputs, events, clock, view } = parts;
    let (health_out, health) = watch::channel(RuntimeHealth::default());
    let probe = Arc::clone(&runtime);
    tasks.spawn("runtime-health", OnExit::Exit, watch_runtime(probe, health_out, tasks.token()));
    let name = config.settings.node_name.clone();
    let booted = sys::host::boot_time(&config.roots.proc, clock.now());
    let collecting = CollectorConfig { settings: config.settings, roots: config.roots };
    let asked = Arc::clone(&runtime);
    let configured = async move { send_configured_cidr(&*asked, config.pod_cidr).await };
    let mut collector = Collector::new(collecting, runtime, health.clone(), inputs.clone());
    let first = Arc::new(first_node(&mut collector, &*clock));
    view.send_modify(|view| Arc::make_mut(view).node = Some(Arc::clone(&first)));
    let (node_out, node) = watch::channel(Some(first));
    let publish = view::publish(node, health.clone(), inputs, view, tasks.token());
    tasks.spawn("node-view", OnExit::Exit, publish);
    let Some(connection) = connection else {
        let standalone = Standalone::new(collector, clock, node_out);
        let token = tasks.token();
        // An update that is cut off at the end of the process is made at the next start.
        tasks.spawn("standalone-node", OnExit::Exit, async move {
            if token.run_until_cancelled(configured).await.is_some() {
                standalone.run(token).await;
            }
        });
        let startup = watch::channel(StartupTimes::default()).1;
        return NodeHandle { name, health, registered: watch::channel(true).1, startup };
    };
    let api = NodeApi::new(&connection, name.clone());
    let (seen_out, seen) = watch::channel(None);
    tasks.spawn("node-watch", OnExit::Exit, api.clone().watch(seen_out, tasks.token()));
    let times = StartupTimes { booted, started: Some(clock.now()), ..StartupTimes::default() };
    let (startup_out, startup) = watch::channel(times);
    let outside = HeartbeatDeps {
        events,
        clock: Arc::clone(&clock),
        seen,
        node: node_out,
        startup: startup_out,
    };
    let heartbeat = Heartbeat::new(api.clone(), config.heartbeat, collector, outside);
    let registered = heartbeat.registered();
    let token = tasks.token();
    // An update that is cut off at the end of the process is made at the next start.
    tasks.spawn("node-status", OnExit::Exit, async move {
        if let Some(known) = token.run_until_cancelled(configured).await {
            heartbeat.knowing_cidr(known).run(token).await;
        }
    });
    let lease = Lease::new(LeaseApi::new(&connection, name.clone()), api, clock, config.lease);
    tasks.spawn("node-lease", OnExit::Exit, lease.run(tasks.token()));
    NodeHandle { name, health, registered, startup }
}
