//! Images for pods: present, allowed, pulled with the right credentials, removed when space runs out.
//!
//! Owns: pulls (limits, back-off, credentials), the pull records on disk, image garbage collection.
//!
//! Promises: events, reasons and messages are those of the Go kubelet; a pull that nobody wants any
//! more is cut off, whether it waits or runs; records can be read by either agent; passwords never
//! reach a log.
//!
//! Deliberately absent: deciding. Names, keyrings, records and the removal order are
//! `engine::image`; this crate asks and acts.
//!
//! ```text
//! ensure ─▶ name ─▶ present? ─▶ allowed? ──yes──▶ use it
//!                      │            │no
//!                      └──absent────┴─▶ intent ─▶ back-off? ─▶ slot ─▶ rate ─▶ PullImage ─▶ record
//! ```
#![forbid(unsafe_code)]

mod back_off;
mod calls;
mod credentials;
mod ensure;
mod gc;
mod metrics;
mod progress;
mod providers;
mod pull;
mod pull_slots;
mod records;

pub use calls::ImageCalls;
pub use credentials::DockerConfigPlaces;
pub use gc::{ImageFs, ImageFsSpace, ImageGc, ImageGcError};
pub use metrics::ImageMetrics;
pub use providers::ProviderSetup;
pub use pull::PullProgress;

use async_trait::async_trait;
use engine::image::pull_order::PullOrder;
use engine::image::record::VerificationPolicy;
use ports::{Clock, EnsureImage, EnsuredImage, Events, ImageFault, ImageSource, Objects, Tasks};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Settings of image pulls.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// `serializeImagePulls`.
    pub serialize_pulls: bool,
    /// `maxParallelImagePulls`; `None` is no limit. Not looked at for serial pulls.
    pub max_parallel_pulls: Option<usize>,
    /// `maxPods`.
    pub max_pods: u32,
    /// Who goes first of those that wait.
    pub pull_order: PullOrder,
    /// How often pods are told how far their pulls are; `None` for never, as upstream.
    pub progress_events: Option<Duration>,
    /// `registryPullQPS`; 0 is no limit.
    pub registry_qps: f64,
    /// `registryBurst`.
    pub registry_burst: u32,
    /// `imagePullCredentialsVerificationPolicy`; `None` switches verification off
    /// (gate KubeletEnsureSecretPulledImages).
    pub verification: Option<VerificationPolicy>,
    /// The kubelet root directory; records live in `image_manager` below it.
    pub kubelet_root: PathBuf,
    /// Where the node's own docker configuration is looked for.
    pub docker_config: DockerConfigPlaces,
    /// Credential provider plugins.
    pub providers: Option<ProviderSetup>,
    /// Whether the runtime handler is named in image calls (gate RuntimeClassInImageCriApi).
    pub handler_in_calls: bool,
}

/// What image pulls work with.
#[derive(Debug, Clone)]
pub struct ImagesDeps {
    /// The runtime's image service.
    pub calls: Arc<dyn ImageCalls>,
    /// Pull secrets, service accounts and tokens.
    pub objects: Arc<dyn Objects>,
    /// Events.
    pub events: Arc<dyn Events>,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Where pulls run.
    pub tasks: Tasks,
    /// Counters.
    pub metrics: ImageMetrics,
}

/// Why image pulls cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// The records' folders cannot be made.
    #[error("prepare image pull records")]
    Records(#[from] sys::fs::FsError),
    /// The work was cut off.
    #[error("prepare image pull records")]
    Blocking(#[from] sys::blocking::BlockingError),
}

/// The front of image pulls. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<ensure::Inner>,
}

impl Images {
    /// Reads the records of an earlier run and is ready.
    pub async fn start(config: ImagesConfig, deps: ImagesDeps) -> Result<Self, ImagesError> {
        Ok(Self { inner: Arc::new(ensure::Inner::open(config, deps).await?) })
    }

    /// Pulls that wait or run, oldest first, with how far each is.
    pub async fn pulls(&self) -> Vec<PullProgress> {
        self.inner.pulls_with_progress().await
    }

    /// Garbage collection over the same records.
    pub fn collector(
        &self,
        policy: engine::image::gc::GcPolicy,
        space: Arc<dyn ImageFs>,
    ) -> ImageGc {
        self.inner.collector(policy, space)
    }
}

#[async_trait]
impl ImageSource for Images {
    async fn ensure(&self, request: EnsureImage) -> Result<EnsuredImage, ImageFault> {
        ensure::ensure(&self.inner, request).await
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests make their own files")]
mod tests;
