//! Devices of device plugins (upstream: `devicemanager`).
//!
//! Owns: the registration socket, the connections to plugins, the device assignments and their checkpoint.
//! Decisions are in `engine::devices`.
//!
//! Promises: a container's devices are in the checkpoint before it starts; a plugin that is late, gone or hung never
//! ends a container; one that hangs delays only pods that need it; of two plugins for one resource the one that
//! registered last is used.
//!
//! ```text
//! plugin ── Register ──▶ dial, options ──▶ ListAndWatch ──▶ state ──▶ node status, pods to sync
//!                                              └─ ends: devices unhealthy, 5 minutes later 0
//! admission ──▶ choose ──▶ (GetPreferredAllocation) ──▶ Allocate ──▶ state, checkpoint
//! ```

mod absent_plugins;
mod allocate;
mod calls;
mod metrics;
mod plugins;
mod provider;
mod registration;

pub use absent_plugins::LateDevices;
pub use metrics::DeviceMetrics;

use crate::lock;
use api::core::v1::{Pod, ResourceHealth, ResourceStatus};
use api::ids::PodUid;
use api::pod::PodExt;
use calls::Calls;
use engine::devices::checkpoint::FILE;
use engine::devices::{Amounts, DeviceState, DevicesOf};
use engine::node::DeviceFacts;
use engine::topology::NumaMask;
use plugins::Plugin;
use ports::{OnExit, PodsSnapshot, Tasks};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

/// Capacity of the channel of pods whose devices changed, as upstream.
const TOUCHED: usize = 100;

/// Why the device manager cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The plugin folder is not usable.
    #[error(transparent)]
    Folder(#[from] sys::fs::FsError),
    /// The registration socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] sockets::ListenError),
}

/// Settings.
#[derive(Debug, Clone)]
pub struct DevicesConfig {
    /// `/var/lib/kubelet/device-plugins`.
    pub dir: PathBuf,
    /// NUMA nodes of the machine.
    pub numa_nodes: Vec<u32>,
    /// Gate ResourceHealthStatus.
    pub health_status: bool,
    /// Gate DRAExtendedResource.
    pub claims_for_extended: bool,
    /// Pod UID and name of each container that was running when the agent started.
    pub running: BTreeSet<(String, String)>,
    /// What happens to a pod whose plugin is not registered at admission.
    pub late: LateDevices,
}

/// Dependencies of the device manager.
#[derive(Debug)]
pub struct DevicesDeps {
    /// The pods of this node.
    pub pods: watch::Receiver<PodsSnapshot>,
    /// Metrics.
    pub metrics: DeviceMetrics,
    /// Where tasks run.
    pub tasks: Tasks,
}

/// The device manager. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Devices {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: DevicesConfig,
    deps: DevicesDeps,
    began: Instant,
    folder_was_empty: bool,
    state: Mutex<DeviceState>,
    /// The plugin in use by resource.
    plugins: Mutex<BTreeMap<String, Plugin>>,
    /// Running calls to plugins, and errors of ended ones until they are read.
    calls: Mutex<Calls>,
    /// NUMA nodes decided at admission, by pod UID and container.
    affinities: Mutex<BTreeMap<(String, String), NumaMask>>,
    /// Held while the checkpoint is written, so that an older one never replaces a newer.
    file: Mutex<()>,
    facts: watch::Sender<DeviceFacts>,
    /// Notified whenever a plugin lists devices, a call ends or a plugin is dropped.
    news: watch::Sender<()>,
    touched: mpsc::Sender<PodUid>,
    stopped: Notify,
    fault: Mutex<Option<String>>,
}

impl Devices {
    /// Reads the checkpoint and opens the registration socket. The receiver yields pods whose devices changed
    /// their health.
    pub fn start(
        config: DevicesConfig,
        deps: DevicesDeps,
    ) -> Result<(Self, mpsc::Receiver<PodUid>), DevicesError> {
        sys::fs::create_dir_all(&config.dir, 0o750)?;
        let names = sys::fs::list_dir(&config.dir)?;
        let mut state = DeviceState::new(config.numa_nodes.clone());
        read_checkpoint(&mut state, &config.dir.join(FILE));
        remove_sockets(&config.dir, &names)?;
        let socket = sockets::Listening::bind(&config.dir.join(registration::SOCKET))?;
        let (touched, receiver) = mpsc::channel(TOUCHED);
        let inner = Inner {
            began: Instant::now(),
            folder_was_empty: names.iter().all(|name| name.starts_with('.')),
            state: Mutex::new(state),
            plugins: Mutex::default(),
            calls: Mutex::default(),
            affinities: Mutex::default(),
            file: Mutex::default(),
            facts: watch::Sender::new(DeviceFacts::default()),
            news: watch::Sender::new(()),
            touched,
            stopped: Notify::new(),
            fault: Mutex::default(),
            config,
            deps,
        };
        let devices = Self { inner: Arc::new(inner) };
        devices.refresh();
        let tasks = devices.inner.deps.tasks.clone();
        tasks.spawn("device-registration", OnExit::Fine, devices.clone().serve(socket));
        tasks.spawn("device-grace", OnExit::Fine, devices.clone().drop_stopped());
        Ok((devices, receiver))
    }

    /// The extended resources in the node's status.
    pub fn facts(&self) -> watch::Receiver<DeviceFacts> {
        self.inner.facts.subscribe()
    }

    /// Why no plugin can register (upstream: health check `device-plugin`).
    pub fn check(&self) -> Result<(), String> {
        match &*lock(&self.inner.fault) {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// The devices of a container by resource.
    pub fn of_container(&self, uid: &str, container: &str) -> DevicesOf {
        self.state(|state| state.devices_of(uid, container))
    }

    /// All healthy devices by resource.
    pub fn allocatable(&self) -> DevicesOf {
        self.state(|state| state.allocatable())
    }

    /// Frees devices of pods that are not among these.
    pub fn forget_all_but(&self, active: &BTreeSet<PodUid>) {
        let is_active = |uid: &str| active.contains(&PodUid::from(uid));
        self.abandon_where(|wanted| !is_active(&wanted.uid));
        self.state(|state| state.forget_all_but(is_active));
        lock(&self.inner.affinities).retain(|(uid, _), _| is_active(uid));
    }

    /// Devices the pod holds, by resource: admission counts them as the node's even while their plugin is gone.
    pub fn owed(&self, uid: &str) -> Amounts {
        self.state(|state| state.owed(uid))
    }

    /// Health of the devices of a pod's regular containers, by container name.
    pub fn health(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        if !self.inner.config.health_status {
            return BTreeMap::new();
        }
        let uid = pod.uid_str();
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let of = |name: &str| -> Vec<ResourceStatus> {
            let health = self.state(|state| state.health(uid, name));
            health.into_iter().map(|(resource, devices)| status(resource, devices)).collect()
        };
        containers
            .map(|container| (container.name.clone(), of(&container.name)))
            .filter(|(_, list)| !list.is_empty())
            .collect()
    }

    fn state<T>(&self, look: impl FnOnce(&mut DeviceState) -> T) -> T {
        look(&mut lock(&self.inner.state))
    }

    fn now(&self) -> Duration {
        self.inner.began.elapsed()
    }

    /// Publishes the node's extended resources; returns whether a resource was dropped.
    fn refresh(&self) -> bool {
        let now = self.now();
        let (mut facts, dropped) = self.state(|state| state.facts(now));
        facts.folder_was_empty = self.inner.folder_was_empty;
        self.inner.facts.send_if_modified(|known| {
            let changed = *known != facts;
            *known = facts;
            changed
        });
        self.inner.news.send_replace(());
        dropped
    }

    /// Writes the checkpoint.
    async fn save(&self) -> Result<(), String> {
        let inner = Arc::clone(&self.inner);
        let written = sys::blocking::run(move || inner.write()).await;
        let written = written.map_err(|error| error.to_string()).and_then(|result| result);
        written.map_err(|error| format!("failed to write checkpoint file {FILE:?}: {error}"))
    }

    /// Drops resources whose plugin has been gone for the grace period.
    async fn drop_stopped(self) {
        let token = self.inner.deps.tasks.token();
        // Expiry is "later than", not "at".
        const SLACK: Duration = Duration::from_millis(10);
        loop {
            let next = self.state(|state| state.next_drop());
            let wait = async {
                match next {
                    Some(at) => tokio::time::sleep_until(self.inner.began + at + SLACK).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = token.cancelled() => return, // cancel-safe: a token
                () = self.inner.stopped.notified() => {} // cancel-safe: a permit stays
                () = wait => { // cancel-safe: computed again
                    if self.refresh() && let Err(err) = self.save().await {
                        tracing::error!(err, "Failed to write checkpoint file");
                    }
                }
            }
        }
    }
}

impl Inner {
    fn write(&self) -> Result<(), String> {
        let _one_at_a_time = lock(&self.file);
        let text = lock(&self.state).to_checkpoint().map_err(|error| error.to_string())?;
        let path = self.config.dir.join(FILE);
        sys::fs::write_atomic(path, text, 0o600).map_err(|error| error.source.to_string())
    }
}

fn status(resource: String, devices: Vec<(String, bool)>) -> ResourceStatus {
    let health = |(id, healthy): (String, bool)| ResourceHealth {
        resource_id: id,
        health: Some(if healthy { "Healthy" } else { "Unhealthy" }.to_owned()),
        ..ResourceHealth::default()
    };
    ResourceStatus { name: resource, resources: Some(devices.into_iter().map(health).collect()) }
}

/// Reads the checkpoint. An unusable file is ignored and overwritten by the next write: devices may be allocated
/// twice, but pods keep running.
fn read_checkpoint(state: &mut DeviceState, path: &Path) {
    let text = match sys::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return,
        Err(error) => {
            tracing::error!(err = %error.source, path = %path.display(), "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date");
            return;
        }
    };
    match state.restore(&text, Duration::ZERO) {
        Ok(unreadable) => {
            for entry in unreadable {
                tracing::error!(entry, "Can't unmarshal allocResp");
            }
        }
        Err(error) => {
            tracing::error!(err = %error, path = %path.display(), "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date");
        }
    }
}

/// Removes the plugins' sockets. Plugins watch the folder: when their socket vanishes and the kubelet's appears,
/// they register again.
fn remove_sockets(dir: &Path, names: &[String]) -> Result<(), DevicesError> {
    for name in names {
        let path = dir.join(name);
        if sys::fs::is_socket(&path) {
            sys::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
