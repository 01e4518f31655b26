//! Putting the pod subsystem together and starting its tasks.

use crate::admission::Admission;
use crate::admission::checkpoint::{ACTUATED, ALLOCATED, CheckpointError, ResourceStore};
use crate::admission::resize::Resizes;
use crate::config::{PodsConfig, PodsDeps};
use crate::dispatch::{DispatchParts, DispatchTask};
use crate::handle::PodsHandle;
use crate::heartbeat::Heartbeat;
use crate::housekeeping::ContainerGc;
use crate::jitter::Jitter;
use crate::pod_states::PodStates;
use crate::prober::{Budget, ProbeStore, ProberHandle, ProberParts};
use crate::runtime::Runtime;
use crate::shared::{Shared, Timelines};
use crate::slots::StartSlots;
use crate::sources::file::FileSource;
use crate::sources::http::UrlSource;
use crate::sources::statics::StaticPods;
use crate::sources::{ManifestFaults, SourceReport, SourceSet};
use crate::status::StatusCache;
use crate::status::followers::Followers;
use crate::status::mirror::Mirrors;
use crate::status::publisher::PublisherTask;
use crate::userns::UserNamespaces;
use crate::view::{ViewHandle, ViewTask};
use api::core::v1::Pod;
use engine::admission::sysctl::SysctlFault;
use engine::pod::life::LifeConfig;
use ports::{OnExit, PodSource, Tasks};
use probes::Names;
use probes::http::HttpClient;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Sets that wait for the dispatcher (`kubelet: configCh`).
const SETS: usize = 50;

/// Why the pod subsystem cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// A state file cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// User namespaces of pods.
    #[error("failed to create kubelet: create user namespace manager")]
    Userns(#[from] crate::userns::UsernsStartError),
    /// `allowedUnsafeSysctls` names something that pods cannot have of their own.
    #[error(transparent)]
    Sysctl(#[from] SysctlFault),
}

/// Starts the pod subsystem. Reads the checkpoints first; a damaged one stops the start.
pub async fn start(
    config: PodsConfig,
    deps: PodsDeps,
    tasks: &Tasks,
) -> Result<PodsHandle, PodsError> {
    let admission = Admission::new(config.admission.clone(), &config.roots)?;
    let runtime = Runtime::new(deps.runtime);
    let clock = deps.clock;
    let jitter = Jitter::seeded(config.seed);
    let root = config.roots.kubelet.clone();
    let allocated =
        ResourceStore::open(root.join(ALLOCATED), "allocated-state", config.gates, tasks)?;
    let actuated = ResourceStore::open(root.join(ACTUATED), "actuated-state", config.gates, tasks)?;
    let life = LifeConfig { sync_frequency: config.sync_frequency, ..LifeConfig::default() };
    let pod_states = PodStates::new(life, Arc::clone(&clock), jitter.clone());
    let status = StatusCache::new(
        Arc::clone(&clock),
        config.status_gates.clone(),
        deps.metrics.terminated.clone(),
        Followers::new(deps.metrics.events_dropped.clone()),
    );
    let started_at = clock.now();
    let (view_task, view) = ViewTask::new(
        (runtime.clone(), Arc::clone(&deps.cgroups)),
        Arc::clone(&clock),
        tasks.clone(),
        config.view,
        deps.metrics.clone(),
    );
    tasks.spawn("runtime-view", OnExit::Exit, view_task.run());
    let names = sys::names::Resolver::new(&config.roots.etc);
    let prober = ProberHandle::new(ProberParts {
        runtime: runtime.clone(),
        status: status.clone(),
        pod_states: pod_states.clone(),
        events: Arc::clone(&deps.events),
        clock: Arc::clone(&clock),
        metrics: deps.metrics.clone(),
        tasks: tasks.clone(),
        names: names.clone(),
        store: ProbeStore::open(config.roots.rubelet().join("probes.json"), tasks),
        budget: Budget::per_second(config.probes_per_second),
        gates: config.gates,
        change_on_restart: config.status_gates.change_on_restart,
        user_agent: config.user_agent("kube-probe"),
        started_at,
    });
    let timelines = Timelines::new(Arc::clone(&clock));
    let userns = UserNamespaces::open(&config.roots.kubelet, config.user_namespaces)?;
    let shared = Arc::new(Shared {
        userns,
        slots: StartSlots::new(deps.processors),
        runtime,
        view: view.clone(),
        pod_states: pod_states.clone(),
        images: deps.images,
        volumes: deps.volumes,
        cgroups: deps.cgroups,
        placement: deps.placement,
        objects: deps.objects,
        mirrors: Mirrors::new(deps.api.clone(), deps.node.clone()),
        resizes: Resizes::new(
            Arc::clone(&clock),
            Arc::clone(&deps.events),
            deps.metrics.resize.clone(),
        ),
        events: deps.events,
        node: deps.node,
        clock: Arc::clone(&clock),
        jitter,
        status: status.clone(),
        prober,
        allocated,
        actuated,
        tasks: tasks.clone(),
        timelines: timelines.clone(),
        metrics: deps.metrics.clone(),
        handlers: deps.handlers,
        names,
        heartbeat: Heartbeat::new(config.sync_frequency),
        garbage: tokio::sync::Notify::new(),
        has_api: deps.api.is_some(),
        config,
    });
    let published = deps.published;
    let watched = published.subscribe();
    let (sets, set_inbox) = mpsc::channel(SETS);
    let (requests, request_inbox) = mpsc::channel(SETS);
    let faults = watch::Sender::new(ManifestFaults::default());
    let watched_faults = faults.subscribe();
    let configured = start_sources(&shared, &view, sets, faults, deps.api_pods, tasks);
    let dispatch = DispatchTask::new(DispatchParts {
        admission,
        again: requests.clone(),
        shared: Arc::clone(&shared),
        configured,
        sets: set_inbox,
        requests: request_inbox,
        published,
    });
    tasks.spawn("pods", OnExit::Exit, dispatch.run());
    if let Some(api) = deps.api {
        let publisher = PublisherTask {
            api,
            status,
            pods: watched.clone(),
            pod_states,
            clock,
            timelines,
            metrics: deps.metrics.clone(),
        };
        tasks.spawn("pod-status", OnExit::Exit, publisher.run(tasks.token()));
    }
    let gc = ContainerGc { shared: Arc::clone(&shared), pods: watched.clone() };
    tasks.spawn("container-gc", OnExit::Exit, gc.run(tasks.token()));
    Ok(PodsHandle { shared, requests, published: watched, faults: watched_faults })
}

/// Starts every configured source; says which there are.
fn start_sources(
    shared: &Arc<Shared>,
    view: &ViewHandle,
    sets: mpsc::Sender<SourceSet>,
    faults: watch::Sender<ManifestFaults>,
    api_pods: Option<mpsc::Receiver<Vec<Arc<Pod>>>>,
    tasks: &Tasks,
) -> BTreeSet<PodSource> {
    let mut configured = BTreeSet::new();
    let report = |source| SourceReport::new(source, sets.clone(), faults.clone());
    if let Some(path) = shared.config.static_pod_path.clone() {
        configured.insert(PodSource::File);
        let period = shared.config.file_check_frequency;
        let (report, cancel) = (report(PodSource::File), tasks.token());
        let (shared, view) = (Arc::clone(shared), view.clone());
        tasks.spawn("pods-from-files", OnExit::Exit, async move {
            let Some(statics) = static_pods(&shared, &view, &cancel).await else { return };
            FileSource::new(path, period, statics, report).run(cancel).await;
        });
    }
    if let Some(url) = shared.config.static_pod_url.clone() {
        configured.insert(PodSource::Http);
        let (report, cancel) = (report(PodSource::Http), tasks.token());
        let (shared, view) = (Arc::clone(shared), view.clone());
        tasks.spawn("pods-from-url", OnExit::Exit, async move {
            let Some(statics) = static_pods(&shared, &view, &cancel).await else { return };
            let client = HttpClient::verified(
                &shared.config.roots.etc,
                Names::of(&shared.names, "pods-from-url"),
            );
            UrlSource::new(url, statics, report, client).run(cancel).await;
        });
    }
    if let Some(mut api_pods) = api_pods {
        configured.insert(PodSource::Api);
        let (report, cancel) = (report(PodSource::Api), tasks.token());
        tasks.spawn("pods-from-api", OnExit::Exit, async move {
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return, // cancel-safe: a token
                    set = api_pods.recv() => match set { // cancel-safe: mpsc
                        Some(pods) => report.deliver(pods).await,
                        // Whoever fed us is gone: its last word stands.
                        None => return cancel.cancelled().await,
                    }
                }
            }
        });
    }
    configured
}

/// What makes pods of manifests, once it is known what runs; `None` when everything ends.
async fn static_pods(
    shared: &Arc<Shared>,
    view: &ViewHandle,
    cancel: &tokio_util::sync::CancellationToken,
) -> Option<StaticPods> {
    let running = tokio::select! {
        () = cancel.cancelled() => return None, // cancel-safe: a token
        running = view.first_audit() => running, // cancel-safe: a watch
    };
    let store = shared.config.roots.rubelet().join("adopted-static-pods.json");
    Some(StaticPods::new(shared.config.static_pods(), Arc::clone(&running.listed), store))
}
