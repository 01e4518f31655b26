//! Who is built from what, and who hears whom.

use crate::cluster::Cluster;
use crate::exclusive::Exclusive;
use crate::explain::Story;
use crate::host::{Host, HostProcessors, configured_driver};
use crate::idle_metrics;
use crate::placement::{self, Placing, PlacingDeps};
use crate::refusals::{self, Accepted};
use crate::watchdog::Check;
use crate::{
    AgentError, allocatable, iptables, layout, protect, runtime, settings, traces, upkeep,
};
use config::Config;
use cri::{RuntimeClient, RuntimeOperations};
use futures::future::BoxFuture;
use kubeapi::certs::{ServingConfig, serving as serving_rotation, serving_alone};
use node::{
    Eviction, EvictionMetrics, EvictionParts, NodeInputs, NodeParts, OomWatch, RuntimeHealth,
    Shutdown, ShutdownMetrics, ShutdownParts,
};
use pods::images::{ImageMetrics, Images, ImagesConfig, ImagesDeps};
use pods::{Leftovers, PodsConfig, PodsDeps, PodsHandle, RuntimeHandlers};
use ports::{
    Clock, EventSeverity, EventTarget, NodeEvent, NodeView, OnExit, PodsSnapshot, Roots,
    SystemClock, Tasks,
};
use resources::SystemCgroups;
use resources::devices::Devices;
use server::ServerDeps;
use server::tls::{ServingCertificate, self_signed};
use stats::StatsDeps;
use std::sync::Arc;
use telemetry::log::LogHandle;
use telemetry::metrics::{
    BuildInfo, Desc, Kind, Registry, register_build_info, register_features, register_own_counts,
    register_process,
};
use tokio::sync::watch;
use volumes::{PluginHandlers, VolumeMetrics, VolumesDeps};

/// What runs, for those who watch over it.
#[derive(Debug)]
pub(crate) struct Started {
    pods: PodsHandle,
    devices: Devices,
}

impl Started {
    /// Checks that must pass for the service manager to hear from us.
    pub(crate) fn checks(&self) -> Vec<(&'static str, Check)> {
        let health = self.pods.view_health();
        let check: Check = Arc::new(move || match &health.borrow().audit_error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        });
        let devices = self.devices.clone();
        let plugins: Check = Arc::new(move || devices.check());
        vec![("syncloop", check), ("device-plugin", plugins)]
    }
}

/// Builds and starts everything. Tasks that were started before a fault are ended by the caller.
pub(crate) fn start<'a>(
    config: &'a Config,
    logs: LogHandle,
    health: Arc<server::HealthMetrics>,
    tasks: &'a Tasks,
) -> BoxFuture<'a, Result<Started, AgentError>> {
    Box::pin(start_all(config, logs, health, tasks))
}

async fn start_all(
    config: &Config,
    logs: LogHandle,
    health: Arc<server::HealthMetrics>,
    tasks: &Tasks,
) -> Result<Started, AgentError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let began = clock.now();
    let roots = settings::roots(config);
    let registry = Registry::new();
    let probe_registry = Registry::new();
    let mut host = Host::read(config, &roots)?;
    traces::start(config, &host.hostname, tasks);
    let client = runtime::connect(config, Arc::new(RuntimeOperations::new(&registry))).await?;
    let driver = runtime::cgroup_driver(&client, configured_driver(config), &registry).await?;
    let Accepted { thresholds, providers } = refusals::check(config, &host, &roots)?;
    let host_network_users = config.gates.enabled("UserNamespacesHostNetworkSupport")
        && runtime::user_namespaces_on_host_network(&client).await;
    host.declared_features = settings::declared_features(config, host_network_users);
    let checkpoints = config.gates.enabled("ContainerCheckpoint");
    let folders = layout::make(&config.flags.root_dir, &roots, checkpoints);
    if folders.is_ok() {
        share_root(&roots);
    }
    own_process(config, &roots);

    let (view_out, view) = watch::channel(Arc::new(NodeView::default()));
    let cluster = Cluster::join(config, &host, &view, (&clock, &registry), tasks).await?;
    cluster.events.emit(NodeEvent {
        target: EventTarget::Node,
        severity: EventSeverity::Normal,
        reason: "Starting",
        message: "Starting kubelet.".to_owned(),
    });
    if let Err(fault) = folders {
        cluster.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "KubeletSetupFailed",
            message: fault.clone(),
        });
        return Err(AgentError::Folders(fault));
    }
    if !host.cgroups.is_v2() {
        cluster.events.emit(NodeEvent {
            target: EventTarget::Node,
            severity: EventSeverity::Warning,
            reason: "CgroupV1",
            message: CGROUP_V1.to_owned(),
        });
    }
    let exclusive = Exclusive::start(config, &host, &roots, &client, &registry).await?;
    let how = (driver, thresholds.as_slice(), exclusive.lifts_quota(config));
    let events = &cluster.events;
    let cgroups = allocatable::set_up(config, &host, &roots, how, &registry, events, tasks).await?;
    let system = SystemCgroups::new(
        Arc::clone(&host.cgroups),
        roots.proc.clone(),
        config.resources.kubelet_cgroups.clone(),
        config.resources.system_cgroups.clone(),
        config.node.oom_score_adj,
    )?;
    tasks.spawn("system-cgroups", OnExit::Fine, system.run(tasks.token()));

    let (snapshots, snapshot) = watch::channel(PodsSnapshot::default());
    exclusive.reconcile(config, snapshot.clone(), client.clone(), tasks);
    let volumes = volumes::start(
        settings::volumes(config, &host, &roots),
        VolumesDeps {
            pods: snapshot.clone(),
            objects: Arc::clone(&cluster.objects),
            storage: cluster.storage,
            events: Arc::clone(&cluster.events),
            node: view.clone(),
            clock: Arc::clone(&clock),
            metrics: VolumeMetrics::new(&registry),
            tasks: tasks.clone(),
        },
    );
    let running = placement::running(&client).await;
    let placement = Placing::start(
        config,
        &roots,
        PlacingDeps {
            running,
            exclusive: &exclusive,
            pods: snapshot,
            api: cluster.claims,
            node: view.clone(),
            clock: Arc::clone(&clock),
            registry: &registry,
            tasks,
        },
    )?;
    let plugins = PluginHandlers::from([
        ("CSIPlugin".to_owned(), volumes.csi_plugins()),
        ("DevicePlugin".to_owned(), Arc::new(placement.devices.clone())),
        ("DRAPlugin".to_owned(), Arc::new(placement.claims)),
    ]);
    volumes.watch_plugins(roots.kubelet.join("plugins_registry"), plugins, tasks);
    let signer = cluster.connection.clone();
    let (pressure_out, pressure) = watch::channel(Vec::new());
    let (shutting_down_out, shutting_down) = watch::channel(false);
    let (fault_out, runtime_fault) = watch::channel(None);
    let node = node::start(
        settings::node(config, &host, &roots),
        NodeParts {
            connection: cluster.connection,
            runtime: Arc::new(client.clone()),
            inputs: NodeInputs {
                volumes: volumes.watch_facts(tasks),
                devices: placement.devices.facts(),
                pressure,
                shutting_down,
                runtime_fault,
                soft_warning: watch::channel(protect::soft_warning(&host)).1,
                slow_calls: runtime::slow_calls(config, &client, tasks),
            },
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(&clock),
            view: view_out,
        },
        tasks,
    );
    node.measure(&registry);
    let images = Images::start(
        ImagesConfig { providers, ..settings::images(config) },
        ImagesDeps {
            calls: Arc::new(client.clone()),
            objects: Arc::clone(&cluster.objects),
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(&clock),
            tasks: tasks.clone(),
            metrics: ImageMetrics::new(&registry),
        },
    )
    .await
    .map_err(|error| match &error {
        pods::images::ImagesError::Records(folder) => {
            let fault = layout::make_all(&folder.path, 0o700).err().unwrap_or_default();
            AgentError::Setting(format!(
                "failed to create kubelet: failed to setup the FSPullRecordsAccessor: {fault}"
            ))
        }
        pods::images::ImagesError::Blocking(_) => AgentError::Images(error),
    })?;
    let collector = upkeep::start(config, &images, &client, &clock, &registry, tasks)?;
    let runtime_name = runtime_name(&client).await;
    let pods = pods::start(
        PodsConfig {
            user_namespaces: upkeep::user_namespaces(config, &roots)?,
            ..settings::pods(config, &host, &roots, &runtime_name)
        },
        PodsDeps {
            handlers: handlers(node.runtime_health(), tasks),
            runtime: client.clone(),
            images: Arc::new(images.clone()),
            volumes: Arc::new(volumes.clone()),
            cgroups: Arc::clone(&cgroups),
            placement: placement.front,
            objects: cluster.objects,
            events: Arc::clone(&cluster.events),
            node: view.clone(),
            api: cluster.pods,
            api_pods: cluster.pod_sets,
            published: snapshots,
            metrics: pods::PodMetrics::new(&registry, &probe_registry),
            clock: Arc::clone(&clock),
            processors: Arc::new(HostProcessors {
                cores: host.machine.cores,
                proc: roots.proc.clone(),
            }),
        },
        tasks,
    )
    .await?;
    let certificate = Arc::new(ServingCertificate::default());
    let mut server_settings = settings::server(config, &host);
    let named = server_settings.certificate_files.take();
    match &named {
        // The cluster gives it; what is in the files is good until then.
        _ if config.server.server_tls_bootstrap => {}
        Some((crt, key)) if *crt != config.dirs.certs.join("kubelet.crt") => {
            certificate.read(crt, key).map_err(server::ServerError::from)?;
            server_settings.certificate_files = Some((crt.clone(), key.clone()));
        }
        // It is yet to be given, or one file of the pair is not named: then there never is one.
        None => {}
        Some(_) => {
            let now = clock.now().as_second();
            let pair = self_signed(&certificate, &config.dirs.certs, &host.hostname, now);
            server_settings.certificate_files = Some(pair.map_err(server::ServerError::from)?);
        }
    }
    if config.server.server_tls_bootstrap {
        let serving = ServingConfig {
            node_name: host.hostname.clone(),
            cert_dir: config.dirs.certs.clone(),
            first: named,
            allow_dns_only: config.gates.enabled("AllowDNSOnlyNodeCSR"),
        };
        if let Some(connection) = signer {
            let (identity, rotation) =
                serving_rotation(&connection, serving, view.clone(), Arc::clone(&clock));
            certificate.follow(identity);
            let rotation = rotation.with_metrics(&registry).run(tasks.token());
            tasks.spawn("serving-certificate", OnExit::Fine, rotation);
        } else {
            certificate.follow(serving_alone(&serving, Arc::clone(&clock), &registry));
        }
    }
    placement::look_after(placement.touched, &pods, tasks);
    let started = Started { pods: pods.clone(), devices: placement.devices };
    let usage = stats::start(
        settings::stats(config, &host, &roots, driver, api::stats::Moment(began)),
        StatsDeps {
            runtime: client.clone(),
            volumes: Arc::new(volumes.clone()),
            clock: Arc::clone(&clock),
        },
        tasks,
    );
    let faults = protect::view_faults(pods.view_health(), fault_out, tasks.token());
    tasks.spawn("view-faults", OnExit::Fine, faults);
    let eviction = Eviction::new(
        protect::eviction(config, &host, &roots, driver, thresholds),
        EvictionParts {
            stats: Arc::new(usage.clone()),
            pods: Arc::new(pods.clone()),
            reclaim: Arc::new(Leftovers { pods: pods.clone(), images: collector }),
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(&clock),
            metrics: EvictionMetrics::new(&registry),
            pressure: pressure_out,
        },
    );
    tasks.spawn("eviction", OnExit::Fine, eviction.run(tasks.token()));
    if let Some(log) = protect::kernel_log(config, &roots)? {
        let mut watch = OomWatch::new(log, Arc::clone(&cluster.events), Arc::clone(&host.cgroups));
        if config.opt_ins.oom_events {
            watch = watch.telling(Arc::new(pods.clone()));
        }
        tasks.spawn("oom-watch", OnExit::Fine, watch.run(tasks.token()));
    }
    let shutdown = Shutdown::new(
        protect::shutdown(config, &roots),
        ShutdownParts {
            pods: Arc::new(pods.clone()),
            volumes: Arc::new(volumes.clone()),
            events: cluster.events,
            clock: Arc::clone(&clock),
            metrics: protect::keeps_shutdown_times(config).then(|| ShutdownMetrics::new(&registry)),
            shutting_down: shutting_down_out,
            tasks: tasks.clone(),
        },
    );
    tasks.spawn("shutdown", OnExit::Fine, shutdown.run());
    own_metrics(&registry, config, &roots);
    node_metrics(&registry, host.cgroups.is_v2());
    let (start, shown) = (began.as_second(), Arc::clone(&health));
    probe_registry.collector(move |scrape| {
        if shown.is_reset() {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "metrics are floats")]
        let start = start as f64;
        scrape.family(&START, Kind::Gauge).push_values(&[], &[], start.into(), None);
    });
    runtime::measure_slow_calls(&registry, client.clone());
    let story = Story {
        pods: pods.clone(),
        volumes,
        devices: started.devices.clone(),
        cgroups,
        images,
        runtime: client.clone(),
        clock: Arc::clone(&clock),
    };
    server::serve_explain(Arc::new(story), &roots.rubelet(), tasks);
    if config.gates.enabled("PodsAPI") {
        server::serve_pods(Arc::new(pods.clone()), &roots.kubelet.join("pods-api"), tasks)?;
    }
    free_of_health(config)?;
    let deps = ServerDeps {
        pods: Arc::new(pods),
        runtime: client,
        stats: Arc::new(usage),
        started: began.as_second(),
        metrics: registry,
        probe_metrics: probe_registry,
        configz: configz(config, driver),
        version: shown_version(config),
        flags: config.flagz(),
        logs,
        roots,
        checks: started.checks(),
        health,
        clock,
        tasks: tasks.clone(),
        checkpoints: server::CheckpointQuota::new(config.opt_ins.checkpoint_limit),
    };
    server::start(server_settings, certificate, deps, cluster.reviews, tasks).await.map_err(
        |error| match error {
            server::ServerError::Listen { address, source } => AgentError::Listen(format!(
                "listen tcp {address}: bind: {}",
                units::errno::go_text(&source)
            )),
            other => AgentError::Server(other),
        },
    )?;
    if config.node.make_iptables_util_chains {
        tasks.spawn("iptables", OnExit::Fine, iptables::run(tasks.token()));
    }
    Ok(started)
}

/// Upstream's health endpoint is open before its servers are: one that wants the same port ends the
/// start, while the health endpoint would only be tried again.
fn free_of_health(config: &Config) -> Result<(), AgentError> {
    let Some(health) = config.server.healthz else { return Ok(()) };
    let every = |ip: std::net::IpAddr| ip.is_unspecified();
    let taken = [config.server.https, config.server.read_only].into_iter().flatten().find(|at| {
        let same = at.ip() == health.ip() || every(at.ip()) || every(health.ip());
        same && at.port() == health.port()
    });
    taken.map_or(Ok(()), |at| {
        Err(AgentError::Listen(format!("listen tcp {at}: bind: address already in use")))
    })
}

const START: Desc = Desc::alpha(
    "process_start_time_seconds",
    "Start time of the process since unix epoch in seconds.",
);
const CGROUP_VERSION: Desc = Desc::alpha("kubelet_cgroup_version", "cgroup version on the hosts.");
const PROVIDER: Desc = Desc::alpha(
    "kubelet_metrics_provider",
    "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
)
.labels(&["provider"]);

/// What the node is, once and for all.
fn node_metrics(registry: &Registry, v2: bool) {
    registry.gauge(CGROUP_VERSION).set(&[], if v2 { 2.0 } else { 1.0 });
    registry.gauge(PROVIDER).set(&["cadvisor"], 1.0);
}

/// What the process says about itself.
fn own_metrics(registry: &Registry, config: &Config, roots: &Roots) {
    register_process(registry, roots.proc.clone());
    let mut numbers = units::release::KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let mut number = || numbers.next().unwrap_or_default().to_owned();
    register_build_info(
        registry,
        &BuildInfo {
            major: number(),
            minor: number(),
            git_version: units::release::REPORTED_VERSION.to_owned(),
            compiler: "rustc".to_owned(),
            platform: format!("linux/{}", units::release::ARCHITECTURE),
            ..BuildInfo::default()
        },
    );
    let gates = config.gates.states();
    register_features(registry, gates.map(|(gate, on)| (gate.name, gate.stage.as_str(), on)));
    register_own_counts(registry);
    idle_metrics::register(registry);
}

/// The version that `--version` has set, or the one that this kubelet stands in for.
fn shown_version(config: &Config) -> String {
    match config.version.as_str() {
        units::release::REPORTED_VERSION => units::release::KUBERNETES_VERSION.to_owned(),
        set => set.to_owned(),
    }
}

/// The configuration in force: with the driver that the runtime named.
fn configz(config: &Config, driver: engine::cgroup::Driver) -> String {
    config.configz(match driver {
        engine::cgroup::Driver::Cgroupfs => "cgroupfs",
        engine::cgroup::Driver::Systemd => "systemd",
    })
}

const CGROUP_V1: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a \
     future release. Please migrate to cgroup v2. More information at \
     https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";

/// What each runtime handler can do, as requests need it.
fn handlers(
    mut health: watch::Receiver<RuntimeHealth>,
    tasks: &Tasks,
) -> watch::Receiver<RuntimeHandlers> {
    let (out, handlers) = watch::channel(RuntimeHandlers::default());
    tasks.spawn("runtime-handlers", OnExit::Fine, async move {
        loop {
            let seen = supported(&health.borrow_and_update());
            out.send_if_modified(|known| {
                let changed = *known != seen;
                *known = seen;
                changed
            });
            if health.changed().await.is_err() {
                return;
            }
        }
    });
    handlers
}

fn supported(health: &RuntimeHealth) -> RuntimeHandlers {
    let named = |wanted: fn(&engine::node::RuntimeHandlerFacts) -> bool| {
        health.handlers.iter().filter(|h| wanted(h)).map(|h| h.name.clone()).collect()
    };
    RuntimeHandlers {
        known: health.handlers.iter().map(|handler| handler.name.clone()).collect(),
        recursive_read_only: named(|h| h.recursive_read_only_mounts),
        user_namespaces: named(|h| h.user_namespaces),
    }
}

/// The prefix of container ids.
async fn runtime_name(client: &RuntimeClient) -> String {
    match client.version("0.1.0").await {
        Ok(version) => version.runtime_name,
        Err(error) => {
            tracing::warn!(err = %error, "the runtime did not tell its name");
            "containerd".to_owned()
        }
    }
}

/// Makes mounts below the root directory visible to containers that ask for it.
fn share_root(roots: &Roots) {
    if let Err(error) = sys::propagation::make_shared(&roots.kubelet, &roots.proc) {
        tracing::warn!(err = %error, path = %roots.kubelet.display(), "root directory is not a shared mount; mount propagation will not work");
    }
}

/// OOM score and file limit of this process; what is not allowed is only logged.
fn own_process(config: &Config, roots: &Roots) {
    if let Err(error) = sys::process::set_own_oom_score(&roots.proc, config.node.oom_score_adj) {
        tracing::info!(err = %error.source, "Failed to ApplyOOMScoreAdj");
    }
    if let Err(error) = sys::process::set_open_files_limit(config.node.max_open_files) {
        tracing::info!(err = %error, "Failed to set rlimit on max file handles");
    }
    if !sys::process::is_root() {
        tracing::error!("Kubelet running with insufficient permissions");
    }
}
