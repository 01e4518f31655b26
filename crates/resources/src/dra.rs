//! Dynamic resources (upstream: `cm/dra`).
//!
//! Owns: the drivers, the claims that are prepared on this node, and their checkpoint. Decisions are in
//! `engine::claims`.
//!
//! Promises: a claim is on disk before a driver is asked to prepare it, so that it is unprepared whatever happens; a
//! driver that hangs delays only pods that need it.
//!
//! ```text
//! worker ── prepare ──▶ claims read, checked, all drivers registered ──▶ checkpoint ──▶ NodePrepareResources per driver
//!        ── extras ───▶ CDI names
//!        ── release ──▶ last user? NodeUnprepareResources per driver ──▶ removed from the checkpoint
//! every minute: the same for pods that are gone
//! ```

mod drivers;
mod health;
mod link;
mod metrics;
mod prepare;
mod provider;
mod slices;

pub use metrics::DraMetrics;

use crate::lock;
use api::core::v1::{Container, Pod, ResourceStatus};
use api::ids::PodUid;
use api::pod::PodExt;
use drivers::Drivers;
use engine::claims::checkpoint::{CheckpointError, FILE};
use engine::claims::health::HealthState;
use engine::claims::{ClaimRules, ClaimState, checkpoint, container_requests};
use ports::{ClaimApi, Clock, NodeViews, OnExit, PodsSnapshot, Tasks};
use proto::pod_resources_v1::{CdiDevice, ClaimResource, DynamicResource};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How often claims of pods that are gone are unprepared.
const RECONCILE: Duration = Duration::from_secs(60);
/// Capacity of the channel of pods whose devices changed, as upstream.
const TOUCHED: usize = 100;

/// Why dynamic resources cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// The checkpoint cannot be used.
    #[error("create ResourceClaim cache")]
    Checkpoint(#[source] CheckpointError),
    /// The checkpoint cannot be read or written.
    #[error(transparent)]
    File(#[from] sys::fs::FsError),
    /// The checkpoint cannot be made.
    #[error("claims cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// Settings.
#[derive(Debug, Clone)]
pub struct ClaimsConfig {
    /// The root directory, where the checkpoint is.
    pub dir: PathBuf,
    /// What the feature gates allow.
    pub rules: ClaimRules,
    /// Gate ResourceHealthStatus.
    pub health: bool,
    /// Gate ResourceHealthStatusMessage.
    pub health_message: bool,
}

/// Dependencies of dynamic resources.
#[derive(Debug)]
pub struct ClaimsDeps {
    /// The API server; `None` in standalone mode.
    pub api: Option<Arc<dyn ClaimApi>>,
    /// This node.
    pub node: NodeViews,
    /// The pods of this node.
    pub pods: watch::Receiver<PodsSnapshot>,
    /// Metrics.
    pub metrics: DraMetrics,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where tasks run.
    pub tasks: Tasks,
}

/// The dynamic resources of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Claims {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClaimsConfig,
    deps: ClaimsDeps,
    state: Mutex<ClaimState>,
    health: Mutex<HealthState>,
    drivers: Drivers,
    /// Held while the checkpoint is written, so that an older one never replaces a newer.
    file: Mutex<()>,
    touched: mpsc::Sender<PodUid>,
}

impl Claims {
    /// Reads the checkpoint and starts the reconcile loop. The receiver yields pods whose devices changed their
    /// health.
    pub fn start(
        config: ClaimsConfig,
        deps: ClaimsDeps,
    ) -> Result<(Self, mpsc::Receiver<PodUid>), ClaimsError> {
        let state = read_book(&config.dir.join(FILE))?;
        let health = read_health(&config.dir.join(engine::claims::health::FILE));
        let (touched, receiver) = mpsc::channel(TOUCHED);
        let inner = Inner {
            state: Mutex::new(state),
            health: Mutex::new(health),
            drivers: Drivers::default(),
            file: Mutex::default(),
            touched,
            config,
            deps,
        };
        let claims = Self { inner: Arc::new(inner) };
        claims.show_claims();
        let tasks = claims.inner.deps.tasks.clone();
        tasks.spawn("claims", OnExit::Fine, claims.clone().reconcile());
        claims.wipe_slices(None);
        Ok((claims, receiver))
    }

    /// Whether the checkpoint in this folder is usable; nothing is written.
    pub fn check(dir: &Path) -> Result<(), ClaimsError> {
        read(&dir.join(FILE)).map(drop)
    }

    /// Whether claims of this pod may still have to be unprepared.
    pub fn has_pod(&self, uid: &str) -> bool {
        self.state(|state| state.has_pod(uid))
    }

    /// The claims of a container for the pod resources socket; empty if one of them is not known.
    pub fn shown(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let namespace = pod.namespace_str();
        let used = container_requests(pod, container, self.inner.config.rules);
        let used = used.unwrap_or_default();
        let one = |(name, _): &(String, Vec<String>)| {
            let claim = self.state(|state| state.get(namespace, name).cloned())?;
            let mut claim_resources = Vec::new();
            for (driver, devices) in &claim.drivers {
                // As upstream: each device's list also contains those of the devices before it.
                let mut cdi_devices = Vec::new();
                for device in devices {
                    let cdi = device.cdi.iter().map(|name| CdiDevice { name: name.clone() });
                    cdi_devices.extend(cdi);
                    claim_resources.push(ClaimResource {
                        cdi_devices: cdi_devices.clone(),
                        driver_name: driver.clone(),
                        pool_name: device.pool.clone(),
                        device_name: device.name.clone(),
                        share_id: device.share.clone(),
                    });
                }
            }
            Some(DynamicResource {
                claim_name: claim.name,
                claim_namespace: claim.namespace,
                claim_resources,
            })
        };
        used.iter().map(one).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Health of the devices of a pod's regular containers, by container name.
    pub fn health(&self, pod: &Pod) -> BTreeMap<String, Vec<ResourceStatus>> {
        if !self.inner.config.health {
            return BTreeMap::new();
        }
        let now = self.inner.deps.clock.now();
        let message = self.inner.config.health_message;
        let state = self.state(|state| state.clone());
        let health = lock(&self.inner.health);
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        containers
            .map(|container| {
                let list = health.status(&state, pod, container, message, now);
                (container.name.clone(), list)
            })
            .filter(|(_, list)| !list.is_empty())
            .collect()
    }

    fn state<T>(&self, look: impl FnOnce(&mut ClaimState) -> T) -> T {
        look(&mut lock(&self.inner.state))
    }

    /// Writes the checkpoint.
    async fn save(&self, what: &str) -> Result<(), String> {
        let inner = Arc::clone(&self.inner);
        let written = sys::blocking::run(move || inner.write()).await;
        let written = written.map_err(|error| error.to_string()).and_then(|result| result);
        written.map_err(|error| {
            format!("checkpoint ResourceClaim {what}: could not save checkpoint {FILE}: {error}")
        })
    }

    /// Periodically unprepares claims of pods that are gone.
    async fn reconcile(self) {
        let token = self.inner.deps.tasks.token();
        let mut ticks = tokio::time::interval(RECONCILE);
        loop {
            tokio::select! {
                () = token.cancelled() => return, // cancel-safe: a token
                _ = ticks.tick() => {} // cancel-safe: a tick that is missed comes again
            }
            let snapshot = self.inner.deps.pods.borrow().clone();
            if !snapshot.sources_ready {
                continue;
            }
            let active: BTreeSet<&str> = snapshot
                .pods
                .iter()
                .filter(|(_, entry)| entry.is_active())
                .map(|(uid, _)| uid.as_str())
                .collect();
            let gone = self.state(|state| state.left_behind(|uid| active.contains(uid)));
            for (uid, (namespace, names)) in gone {
                if let Err(err) = self.unprepare(&uid, &namespace, &names).await {
                    tracing::info!(
                        podUID = uid,
                        err,
                        "Unpreparing pod resources in reconcile loop failed, will retry"
                    );
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

fn read_book(path: &Path) -> Result<ClaimState, ClaimsError> {
    if let Some(state) = read(path)? {
        return Ok(state);
    }
    sys::fs::write_atomic(path, checkpoint::first()?, 0o600)?;
    Ok(ClaimState::default())
}

/// The claims in a checkpoint file, if there is one.
fn read(path: &Path) -> Result<Option<ClaimState>, ClaimsError> {
    let state = match sys::fs::read(path) {
        Ok(bytes) => match units::gojson::syntax_fault(&bytes) {
            Some(fault) => Err(CheckpointError::Malformed(fault)),
            None => ClaimState::restore(&units::gojson::text(&bytes)).map(Some),
        },
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(CheckpointError::Malformed(error.in_go())),
    };
    state.map_err(ClaimsError::Checkpoint)
}

fn read_health(path: &Path) -> HealthState {
    let text = match sys::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return HealthState::default(),
        Err(error) => {
            tracing::error!(err = %error.source, "Failed to load health checkpoint, proceeding with empty cache");
            return HealthState::default();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::error!(err = %error, "Failed to load health checkpoint, proceeding with empty cache");
        HealthState::default()
    })
}
