//! [`VolumesHandle`], the public interface of the volume subsystem.

use crate::certificates::{self, Certificates};
use crate::config::{VolumesConfig, VolumesDeps};
use crate::csi;
use crate::csi::drivers::Drivers;
use crate::csi::info::{self, CsiHandler};
use crate::env::Env;
use crate::paths::Paths;
use crate::plugin_registration::{PluginHandlers, watch_plugins};
use crate::pool::{NORMAL, Pool};
use crate::published::Published;
use crate::quota::Quotas;
use crate::subpath::{self, SubPathError, Which};
use crate::task::{Request, VolumeStory, VolumesTask, WaitState};
use crate::usage::{self, Ask, UsageCache};
use api::core::v1::Pod;
use api::ids::PodUid;
use async_trait::async_trait;
use engine::volumes::used_volumes;
use ports::{
    OnExit, PluginHandler, PodMounts, PodsSnapshot, SubPathRequest, Tasks, VolumeError,
    VolumeFacts, VolumeUsage, VolumeUsages, Volumes,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Upstream's timeout for waiting until volumes are mounted or unmounted.
const WAIT: Duration = Duration::from_secs(2 * 60 + 3);
const REQUESTS: usize = 256;

/// Starts the subsystem. It first reconstructs volumes from disk, then follows the pod snapshots.
pub fn start(config: VolumesConfig, deps: VolumesDeps) -> VolumesHandle {
    start_with(config, deps, Pool::new())
}

/// [`start`] with a given pool for blocking calls.
pub(crate) fn start_with(config: VolumesConfig, deps: VolumesDeps, pool: Pool) -> VolumesHandle {
    let env = Arc::new(Env {
        paths: Paths::new(config.roots.clone()),
        quotas: Quotas::new(config.project_quotas, &config.roots.etc),
        config,
        objects: deps.objects,
        storage: deps.storage,
        events: deps.events,
        node: deps.node,
        clock: deps.clock,
        pool,
        csi: Drivers::new(deps.metrics.csi.clone()),
        certificates: Certificates::new(),
        metrics: deps.metrics,
        flex_drivers: Mutex::default(),
        csi_ready: watch::channel(false).0,
    });
    if env.config.pod_certificates && env.storage.is_some() {
        let followed = certificates::run(Arc::clone(&env), deps.pods.clone(), deps.tasks.token());
        deps.tasks.spawn("pod-certificates", OnExit::Exit, followed);
    }
    let (requests, receiver) = mpsc::channel(REQUESTS);
    let (publisher, published) = watch::channel(Published::default());
    let pods = deps.pods.clone();
    let task = VolumesTask::new(Arc::clone(&env), deps.pods, receiver, publisher);
    let token = deps.tasks.token();
    deps.tasks.spawn("volumes", OnExit::Exit, task.run(token.clone()));
    let initialise = info::initialise(Arc::clone(&env));
    deps.tasks.spawn("csi-node", OnExit::Fine, async move {
        // Safe to cancel: initialisation starts over with the process.
        token.run_until_cancelled(initialise).await;
    });
    let usages = env.config.usage_period.map(|keep| Arc::new(UsageCache::new(keep)));
    let handle = VolumesHandle { env, requests, published, usages, pods, tasks: deps.tasks };
    if let Some(period) = handle.env.config.usage_period.filter(|_| handle.env.config.health) {
        let (token, watched) = (handle.tasks.token(), handle.clone().watch_health(period));
        handle.tasks.spawn("volume-health", OnExit::Fine, async move {
            // Safe to cancel: only measurements are lost.
            token.run_until_cancelled(watched).await;
        });
    }
    handle
}

/// Cloneable handle of the volume subsystem.
#[derive(Debug, Clone)]
pub struct VolumesHandle {
    pub(crate) env: Arc<Env>,
    requests: mpsc::Sender<Request>,
    published: watch::Receiver<Published>,
    usages: Option<Arc<UsageCache>>,
    pods: watch::Receiver<PodsSnapshot>,
    tasks: Tasks,
}

impl VolumesHandle {
    /// What node status reports about volumes, now.
    pub fn facts(&self) -> Arc<VolumeFacts> {
        Arc::clone(&self.published.borrow().facts)
    }

    /// What node status reports about volumes, followed by a task among `tasks`.
    pub fn watch_facts(&self, tasks: &Tasks) -> watch::Receiver<VolumeFacts> {
        let mut published = self.published.clone();
        let (out, facts) = watch::channel(VolumeFacts::clone(&self.facts()));
        tasks.spawn("volume-facts", OnExit::Fine, async move {
            while published.changed().await.is_ok() {
                let seen = Arc::clone(&published.borrow_and_update().facts);
                out.send_if_modified(|known| {
                    let changed = *known != *seen;
                    if changed {
                        *known = VolumeFacts::clone(&seen);
                    }
                    changed
                });
            }
        });
        facts
    }

    /// What every pod's volumes wait for, and which calls hang.
    pub async fn explain(&self) -> VolumeStory {
        self.ask(|reply| Request::Explain { reply }).await.unwrap_or_default()
    }

    /// Watches a folder for plugins that announce themselves, until the tasks are cancelled.
    pub fn watch_plugins(&self, dir: PathBuf, handlers: PluginHandlers, tasks: &Tasks) {
        watch_plugins(dir, handlers, self.env.metrics.plugins.clone(), tasks);
    }

    /// The registration handler for CSI drivers; pass it to [`Self::watch_plugins`] for `CSIPlugin`.
    pub fn csi_plugins(&self) -> Arc<dyn PluginHandler> {
        Arc::new(CsiHandler { env: Arc::clone(&self.env) })
    }

    /// Measures every pod's volumes periodically, so that abnormal volume health is reported even if nobody
    /// requests statistics.
    async fn watch_health(self, period: Duration) {
        loop {
            tokio::time::sleep(period).await;
            let pods: Vec<PodUid> = self.pods.borrow().pods.keys().cloned().collect();
            for uid in pods {
                self.usages(&uid).await;
            }
        }
    }

    /// The mount progress of the pod's volumes.
    pub(crate) async fn describe(&self, pod: &Arc<Pod>) -> Option<WaitState> {
        self.ask(|reply| Request::Describe { pod: Arc::clone(pod), reply }).await
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(make(reply)).await.ok()?;
        answer.await.ok()
    }
}

#[async_trait]
impl VolumeUsages for VolumesHandle {
    async fn usages(&self, uid: &PodUid) -> Arc<Vec<VolumeUsage>> {
        // A negative `volumeStatsAggPeriod` disables measuring.
        let Some(cache) = &self.usages else { return Arc::default() };
        let done = match cache.ask(uid) {
            Ask::Fresh(usages) => return usages,
            Ask::Wait => return cache.soon(uid).await,
            Ask::Measure(done) => done,
        };
        let (handle, cached, pod) = (self.clone(), Arc::clone(cache), uid.clone());
        let token = self.tasks.token();
        self.tasks.spawn("volume-usage", OnExit::Fine, async move {
            let measured = async {
                let asked = handle.ask(|reply| Request::Mounted { uid: pod.clone(), reply });
                let volumes = asked.await.unwrap_or_default();
                let known = handle.pods.borrow().pods.get(&pod).map(|e| Arc::clone(&e.pod));
                usage::measure(&handle.env, pod.as_str(), known.as_ref(), volumes).await
            };
            // Safe to cancel: only measurements are lost.
            if let Some(usages) = token.run_until_cancelled(measured).await {
                cached.keep(&pod, usages);
            }
            drop(done);
        });
        cache.soon(uid).await
    }
}

const STOPPED: &str = "the volume subsystem has stopped";

#[async_trait]
impl Volumes for VolumesHandle {
    async fn wait_ready(&self, pod: &Arc<Pod>) -> Result<PodMounts, VolumeError> {
        if used_volumes(pod).is_empty() {
            return Ok(PodMounts::new());
        }
        let asked = self.ask(|reply| Request::Ready { pod: Arc::clone(pod), reply });
        if let Ok(answer) = tokio::time::timeout(WAIT, asked).await {
            return answer.unwrap_or_else(|| Err(VolumeError::NotReady(STOPPED.into())));
        }
        let Some(state) = self.describe(pod).await else {
            return Err(VolumeError::NotReady(STOPPED.into()));
        };
        let full = csi::limits::is_full(&self.env, &state.unattached_storage).await;
        let cause = "context deadline exceeded";
        let shown = state.text(cause);
        match state.ended(cause) {
            Err(VolumeError::TimedOut(_)) if full => Err(VolumeError::AttachLimit(shown)),
            result => result,
        }
    }

    async fn wait_released(&self, pod: &Arc<Pod>) -> Result<(), VolumeError> {
        let asked = self.ask(|reply| Request::Released { pod: Arc::clone(pod), reply });
        if let Ok(answer) = tokio::time::timeout(WAIT, asked).await {
            return answer.ok_or_else(|| VolumeError::NotReady(STOPPED.into()));
        }
        let state = self.describe(pod).await;
        let mounted = state.map(|s| s.mounted.join(" ")).unwrap_or_default();
        Err(VolumeError::TimedOut(format!(
            "mounted volumes=[{mounted}]: context deadline exceeded"
        )))
    }

    fn in_use(&self, uid: &PodUid) -> bool {
        // Not known before reconstruction from disk.
        let published = self.published.borrow();
        !published.ready || published.pods.get(uid).is_some_and(|p| p.mounted)
    }

    async fn bind_sub_path(&self, request: &SubPathRequest) -> Result<PathBuf, VolumeError> {
        let spec_name = {
            let published = self.published.borrow();
            let pod = published.pods.get(&request.pod_uid);
            pod.and_then(|p| p.spec_names.get(&request.volume_name)).cloned()
        };
        let spec_name = spec_name.unwrap_or_else(|| request.volume_name.clone());
        let target = self
            .env
            .paths
            .sub_paths(request.pod_uid.as_str())
            .join(spec_name)
            .join(&request.container_name)
            .join(request.mount_index.to_string());
        let (volume, sub_path) = (request.volume_path.clone(), request.sub_path.clone());
        let key = volume.to_string_lossy().into_owned();
        let bound = self
            .env
            .pool
            .run(&key, "bind subPath", NORMAL, move || subpath::bind(&volume, &sub_path, &target))
            .await;
        let what = |step: &str| {
            VolumeError::Prepare(format!(
                "failed to {step} for volumeMount {:?} of container {:?}",
                request.volume_name, request.container_name
            ))
        };
        let log = |e: &dyn std::fmt::Display| {
            tracing::error!(podUID = %request.pod_uid, containerName = request.container_name,
                volumeMountName = request.volume_name, err = %e, "failed to bind subPath");
        };
        match bound {
            Ok(Ok(path)) => Ok(path),
            Ok(Err(SubPathError::Invalid(text))) => Err(VolumeError::Prepare(text)),
            Ok(Err(e @ SubPathError::Create(_))) => {
                log(&e);
                Err(what("create subPath directory"))
            }
            Ok(Err(e @ SubPathError::Prepare(_))) => {
                log(&e);
                Err(what("prepare subPath"))
            }
            Err(e) => {
                log(&e);
                Err(what("prepare subPath"))
            }
        }
    }

    async fn clean_sub_paths(
        &self,
        uid: &PodUid,
        container: Option<&str>,
    ) -> Result<(), VolumeError> {
        let top = self.env.paths.sub_paths(uid.as_str());
        let key = top.to_string_lossy().into_owned();
        let container = container.map(str::to_owned);
        self.env
            .pool
            .run(&key, "clean subPath mounts", NORMAL, move || {
                let which = container.as_deref().map_or(Which::All, Which::Container);
                subpath::clean(&top, which)
            })
            .await
            .map_err(|e| VolumeError::Prepare(e.to_string()))?
            .map_err(|e| VolumeError::Prepare(format!("error cleaning subPath mounts: {e}")))
    }
}
