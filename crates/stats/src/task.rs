//! The task that owns the readings, and its handle.
//!
//! ```text
//!   handle ──request──▶ task: recent reading? reply with it : read, cache, reply
//! ```

use crate::cadvisor::{self, Filesystem, Known};
use crate::cgroup_cache::CgroupCache;
use crate::collect::{self, Base};
use crate::reading::Reading;
use crate::storage::{self, Storage};
use crate::{resource, summary};
use api::stats::{Moment, Summary};
use async_trait::async_trait;
use cri::RuntimeClient;
use cri::api::{ImageFsInfoResponse, MetricDescriptor};
use engine::cgroup::Driver;
use ports::{
    Clock, OnExit, Pieces, Roots, Stats, StatsError, StatsScope, StorageLayout, Tasks, VolumeUsages,
};
use std::sync::Arc;
use std::time::Duration;
use sys::cgroup::Cgroups;
use sys::host::Machine;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Callers within this time share one reading of cgroups and containers.
const WINDOW: Duration = Duration::from_secs(2);
/// Callers within this time share one measurement of directories.
const STORAGE_WINDOW: Duration = Duration::from_secs(10);
/// How long the locations of the runtime's filesystems are cached.
const PLACES_WINDOW: Duration = Duration::from_secs(300);
/// How long readings, and the cgroups held open for the next one, are retained.
pub(crate) const RETENTION: Duration = Duration::from_secs(90);
const QUEUE: usize = 64;

/// Settings: what to read, and where.
#[derive(Debug, Clone)]
pub struct StatsConfig {
    /// This node's name.
    pub node_name: String,
    /// The directories on disk.
    pub roots: Roots,
    /// The hierarchies.
    pub cgroups: Arc<Cgroups>,
    /// The cgroup driver, which determines the names of pod cgroups.
    pub driver: Driver,
    /// The parent of all pods; `None` without QoS cgroups.
    pub kubepods: Option<String>,
    /// The agent's own cgroup.
    pub kubelet_cgroup: Option<String>,
    /// The runtime's cgroup, if configured.
    pub runtime_cgroup: Option<String>,
    /// The cgroup of everything else, if configured.
    pub misc_cgroup: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// Kernel and operating system, for the version metric.
    pub versions: (String, String),
    /// When the machine booted, in seconds since the epoch.
    pub boot_time: i64,
    /// When this process started.
    pub started: Moment,
    /// Whether volumes are measured.
    pub measure_volumes: bool,
    /// Whether pod and container stats come from the runtime instead of the kernel (gate
    /// PodAndContainerStatsFromCRI).
    pub from_runtime: bool,
}

impl StatsConfig {
    /// The node's own cgroups by their names in the summary.
    pub(crate) fn system_cgroups(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let named = [
            ("kubelet", &self.kubelet_cgroup),
            ("runtime", &self.runtime_cgroup),
            ("misc", &self.misc_cgroup),
        ];
        named.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)))
    }
}

#[cfg(test)]
impl StatsConfig {
    /// A machine without cgroups.
    pub(crate) fn bare() -> Self {
        Self {
            node_name: "n".into(),
            roots: Roots::default(),
            cgroups: Arc::new(Cgroups::V1 { mounts: std::collections::BTreeMap::default() }),
            driver: Driver::Cgroupfs,
            kubepods: None,
            kubelet_cgroup: None,
            runtime_cgroup: None,
            misc_cgroup: None,
            machine: Machine::default(),
            versions: ("6.1".into(), "Linux".into()),
            boot_time: 0,
            started: Moment::default(),
            measure_volumes: false,
            from_runtime: false,
        }
    }
}

/// Dependencies of the task.
#[derive(Debug)]
pub struct StatsDeps {
    /// The runtime.
    pub runtime: RuntimeClient,
    /// Usage of volumes.
    pub volumes: Arc<dyn VolumeUsages>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
}

/// The handle of the task. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StatsHandle {
    requests: mpsc::Sender<Request>,
}

/// Starts the task; it does nothing until there is a request.
pub fn start(config: StatsConfig, deps: StatsDeps, tasks: &Tasks) -> StatsHandle {
    let (requests, queue) = mpsc::channel(QUEUE);
    let task = StatsTask {
        filesystems: cadvisor::filesystems(&config.roots.proc).into(),
        config: Arc::new(config),
        deps,
        queue,
        base: None,
        cgroup_cache: CgroupCache::default(),
        known: Known::default(),
        reading: None,
        storage: None,
        places: None,
        descriptors: None,
    };
    let cancel = tasks.token();
    tasks.spawn("stats", OnExit::Fine, async move {
        tokio::select! {
            // Cancel-safe: a reading in progress is dropped with the process.
            () = cancel.cancelled() => {}
            // Runs until no handle is left.
            () = task.run() => {}
        }
    });
    StatsHandle { requests }
}

enum Request {
    Summary(StatsScope, oneshot::Sender<Result<Arc<Summary>, StatsError>>),
    Layout(oneshot::Sender<Result<StorageLayout, StatsError>>),
    Containers(oneshot::Sender<Pieces>),
}

#[derive(Debug)]
struct StatsTask {
    config: Arc<StatsConfig>,
    deps: StatsDeps,
    queue: mpsc::Receiver<Request>,
    base: Option<Base>,
    cgroup_cache: CgroupCache,
    known: Known,
    /// The filesystems that were mounted at the start.
    filesystems: Arc<[Filesystem]>,
    reading: Option<(Instant, Arc<Reading>)>,
    storage: Option<(Instant, Arc<Storage>)>,
    places: Option<(Instant, Arc<ImageFsInfoResponse>)>,
    descriptors: Option<Arc<Vec<MetricDescriptor>>>,
}

impl StatsTask {
    async fn run(mut self) {
        while let Some(request) = self.next().await {
            // The caller may have been dropped.
            match request {
                Request::Summary(scope, answer) => {
                    let _ = answer.send(self.summary(scope).await);
                }
                Request::Layout(answer) => {
                    let _ = answer.send(storage::layout(&self.config, &self.deps).await);
                }
                Request::Containers(answer) => {
                    let _ = answer.send(self.containers().await);
                }
            }
        }
    }

    /// The next request. Readings that were not requested for a while are released meanwhile.
    async fn next(&mut self) -> Option<Request> {
        if let Some((at, _)) = &self.reading {
            // Cancel-safe: a request that is not received stays in the queue.
            match tokio::time::timeout_at(*at + RETENTION, self.queue.recv()).await {
                Ok(request) => return request,
                Err(_) => {
                    (self.reading, self.storage, self.known) = (None, None, Known::default());
                    let cgroup_cache = std::mem::take(&mut self.cgroup_cache);
                    // Closing thousands of files takes a while. If the job fails, they are closed
                    // as well.
                    let _ = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
                        drop(cgroup_cache)
                    })
                    .await;
                }
            }
        }
        self.queue.recv().await
    }

    async fn reading(&mut self) -> Result<Arc<Reading>, StatsError> {
        if let Some((at, reading)) = &self.reading
            && at.elapsed() < WINDOW
        {
            return Ok(Arc::clone(reading));
        }
        let Self { config, deps, base, cgroup_cache, .. } = self;
        let read = collect::collect(config, deps, base, cgroup_cache).await?;
        let reading = Arc::new(read);
        self.reading = Some((Instant::now(), Arc::clone(&reading)));
        Ok(reading)
    }

    async fn storage(&mut self, reading: &Reading) -> Result<Arc<Storage>, StatsError> {
        if let Some((at, storage)) = &self.storage
            && at.elapsed() < STORAGE_WINDOW
            && reading.pods.iter().all(|pod| {
                pod.containers.is_empty() || storage.pods.contains_key(&pod.reference.uid)
            })
        {
            return Ok(Arc::clone(storage));
        }
        let before = self.storage.as_ref().map(|(_, storage)| &**storage);
        let read = storage::collect(&self.config, &self.deps, reading, before).await?;
        let storage = Arc::new(read);
        self.storage = Some((Instant::now(), Arc::clone(&storage)));
        Ok(storage)
    }

    /// The locations of the runtime's filesystems.
    async fn places(&mut self) -> Result<Arc<ImageFsInfoResponse>, StatsError> {
        if let Some((at, places)) = &self.places
            && at.elapsed() < PLACES_WINDOW
        {
            return Ok(Arc::clone(places));
        }
        let info = self.deps.runtime.image_fs_info().await;
        let info = info.map_err(|e| StatsError(format!("failed to get imageFs stats: {e}")))?;
        let places = Arc::new(info);
        self.places = Some((Instant::now(), Arc::clone(&places)));
        Ok(places)
    }

    async fn node(&mut self) -> Result<Summary, StatsError> {
        let places = self.places().await?;
        let reading = collect::node(&self.config, &self.deps).await?;
        let storage = storage::node(&self.config, places, Moment(reading.at)).await?;
        summary::build(&self.config, &reading, Some(&storage))
    }

    async fn summary(&mut self, scope: StatsScope) -> Result<Arc<Summary>, StatsError> {
        if scope == StatsScope::Node {
            return self.node().await.map(Arc::new);
        }
        if scope == StatsScope::Fresh {
            self.reading = None;
            self.storage = None;
        }
        let reading = self.reading().await?;
        let storage = match scope {
            StatsScope::All | StatsScope::Fresh => Some(self.storage(&reading).await?),
            StatsScope::CpuAndMemory | StatsScope::Node => None,
        };
        summary::build(&self.config, &reading, storage.as_deref()).map(Arc::new)
    }

    async fn containers(&mut self) -> Pieces {
        if self.config.from_runtime {
            return Box::new(std::iter::once(self.runtime_metrics().await));
        }
        let reading = self.reading().await.inspect_err(|error| {
            tracing::warn!(err = %error, "Couldn't get containers");
        });
        if let Ok(reading) = &reading {
            self.known.images.learn(&self.deps.runtime, reading).await;
        }
        let (config, mut known) = (Arc::clone(&self.config), std::mem::take(&mut self.known));
        let filesystems = Arc::clone(&self.filesystems);
        let page = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
            let reading = reading.ok();
            let page = cadvisor::page(&config, reading.as_deref(), &mut known, &filesystems);
            (page, known)
        });
        match page.await {
            Ok((page, known)) => {
                self.known = known;
                page
            }
            Err(_) => nothing(),
        }
    }
}

impl StatsTask {
    /// The runtime's own metrics; their descriptors are queried once.
    async fn runtime_metrics(&mut self) -> String {
        if self.descriptors.is_none() {
            match self.deps.runtime.list_metric_descriptors().await {
                Ok(list) => self.descriptors = Some(Arc::new(list)),
                Err(error) => tracing::error!(err = %error, "Error reading MetricDescriptors"),
            }
        }
        let metrics = self.deps.runtime.list_pod_sandbox_metrics().await.unwrap_or_else(|error| {
            tracing::error!(err = %error, "Failed to get pod metrics");
            Vec::new()
        });
        let descriptors = self.descriptors.clone().unwrap_or_default();
        let config = Arc::clone(&self.config);
        let page = sys::blocking::run_for(sys::blocking::Purpose::Usage, move || {
            cadvisor::page_from_runtime(&config, &descriptors, &metrics)
        });
        page.await.unwrap_or_default()
    }
}

fn nothing() -> Pieces {
    Box::new(std::iter::empty())
}

const GONE: &str = "the usage reader has ended";

#[async_trait]
impl Stats for StatsHandle {
    async fn summary(&self, scope: StatsScope) -> Result<Arc<Summary>, StatsError> {
        let (answer, wait) = oneshot::channel();
        let sent = self.requests.send(Request::Summary(scope, answer)).await;
        sent.map_err(|_| StatsError(GONE.to_owned()))?;
        wait.await.map_err(|_| StatsError(GONE.to_owned()))?
    }

    async fn layout(&self) -> Result<StorageLayout, StatsError> {
        let (answer, wait) = oneshot::channel();
        let sent = self.requests.send(Request::Layout(answer)).await;
        sent.map_err(|_| StatsError(GONE.to_owned()))?;
        wait.await.map_err(|_| StatsError(GONE.to_owned()))?
    }

    async fn resource_metrics(&self) -> String {
        let summary = self.summary(StatsScope::CpuAndMemory).await.inspect_err(|error| {
            tracing::error!(err = %error, "Error getting summary for resourceMetric prometheus endpoint");
        });
        resource::page(summary.ok())
    }

    async fn container_metrics(&self) -> Pieces {
        let (answer, wait) = oneshot::channel();
        if self.requests.send(Request::Containers(answer)).await.is_err() {
            return nothing();
        }
        wait.await.unwrap_or_else(|_| nothing())
    }
}

#[cfg(test)]
mod tests;
