//! Eighth stage: images, then the pods themselves.

use super::StartContext;
use super::preflight::Preflight;
use super::resources::Resources;
use super::runtime::Runtime;
use crate::cluster::{Cluster, PodSets};
use crate::host::HostProcessors;
use crate::placement::{self, ChangedDevices};
use crate::{AgentError, image_gc_and_logs, layout, settings};
use ::images::{ImageGc, ImageMetrics, Images, ImagesConfig, ImagesDeps, ImagesError};
use ::node::{NodeHandle, RuntimeHealth};
use ::pods::{PodMetrics, PodsConfig, PodsDeps, PodsHandle, RuntimeHandlers};
use ::volumes::VolumesHandle;
use cri::RuntimeClient;
use ports::{OnExit, PodsSnapshot, Tasks};
use std::sync::Arc;
use tokio::sync::watch;

/// What the pods are run with.
pub(super) struct Inputs<'a> {
    pub(super) accepted: &'a Preflight,
    pub(super) runtime: &'a Runtime,
    pub(super) cluster: &'a Cluster,
    pub(super) resources: &'a Resources,
    pub(super) volumes: &'a VolumesHandle,
    pub(super) node: &'a NodeHandle,
    pub(super) pod_sets: PodSets,
    pub(super) published: watch::Sender<PodsSnapshot>,
    pub(super) changed_devices: ChangedDevices,
}

/// The pods and their images.
pub(super) struct Pods {
    pub(super) handle: PodsHandle,
    pub(super) images: Images,
    /// Removes images that nobody uses; eviction may hurry it.
    pub(super) collector: Arc<ImageGc>,
}

pub(super) async fn start(cx: &StartContext<'_>, inputs: Inputs<'_>) -> Result<Pods, AgentError> {
    let StartContext { config, tasks, clock, roots, registry, .. } = cx;
    let Inputs { accepted, runtime, cluster, resources, volumes, node, .. } = inputs;
    let (host, client) = (&accepted.host, &runtime.client);
    let images = images(cx, accepted, client, cluster).await?;
    let collector = image_gc_and_logs::start(config, &images, client, clock, registry, tasks)?;
    let runtime_name = runtime_name(client).await;
    let handle = ::pods::start(
        PodsConfig {
            user_namespaces: image_gc_and_logs::user_namespaces(config, roots)?,
            ..settings::pods(config, host, roots, &runtime_name)
        },
        PodsDeps {
            handlers: handlers(node.runtime_health(), tasks),
            runtime: client.clone(),
            images: Arc::new(images.clone()),
            volumes: Arc::new(volumes.clone()),
            cgroups: Arc::clone(&resources.cgroups),
            placement: Arc::clone(&resources.placing.front),
            objects: Arc::clone(&cluster.objects),
            events: Arc::clone(&cluster.events),
            node: cx.listeners.node_view.clone(),
            api: cluster.pods.clone(),
            api_pods: inputs.pod_sets,
            published: inputs.published,
            metrics: PodMetrics::new(registry, &cx.probe_registry),
            clock: Arc::clone(clock),
            processors: Arc::new(HostProcessors {
                cores: host.machine.cores,
                proc: roots.proc.clone(),
            }),
        },
        tasks,
    )
    .await?;
    placement::look_after(inputs.changed_devices, &handle, tasks);
    Ok(Pods { handle, images, collector })
}

async fn images(
    cx: &StartContext<'_>,
    accepted: &Preflight,
    client: &RuntimeClient,
    cluster: &Cluster,
) -> Result<Images, AgentError> {
    let images = Images::start(
        ImagesConfig { providers: accepted.providers.clone(), ..settings::images(cx.config) },
        ImagesDeps {
            calls: Arc::new(client.clone()),
            objects: Arc::clone(&cluster.objects),
            events: Arc::clone(&cluster.events),
            clock: Arc::clone(&cx.clock),
            tasks: cx.tasks.clone(),
            metrics: ImageMetrics::new(&cx.registry),
        },
    );
    images.await.map_err(|error| match &error {
        ImagesError::Records(folder) => {
            let fault = layout::make_all(&folder.path, 0o700).err().unwrap_or_default();
            AgentError::Setting(format!(
                "failed to create kubelet: failed to setup the FSPullRecordsAccessor: {fault}"
            ))
        }
        ImagesError::Blocking(_) => AgentError::Images(error),
    })
}

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
