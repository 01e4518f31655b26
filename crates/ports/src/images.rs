//! Images for containers and volumes.

use api::core::v1::{Pod, Secret};
use api::image::ImageUser;
use async_trait::async_trait;
use proto::cri_v1::PodSandboxConfig;
use std::sync::Arc;

/// An image that a container or volume needs.
#[derive(Debug, Clone)]
pub struct EnsureImage {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The image as the spec names it.
    pub image: String,
    /// The pull policy; empty means the default for the image's tag.
    pub policy: String,
    /// The part of the pod that events are about; `None` for image volumes.
    pub field_path: Option<String>,
    /// The sandbox it is for.
    pub sandbox: PodSandboxConfig,
    /// The runtime handler it is for.
    pub runtime_handler: String,
    /// The pod's pull secrets, as far as they are there.
    pub secrets: Vec<Arc<Secret>>,
}

/// An image that is there and may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnsuredImage {
    /// The reference to create containers with.
    pub image_ref: String,
    /// The user the image names; not asked for where no container is made of it.
    pub user: ImageUser,
    /// The runtime handler that image calls named; empty if they name none.
    pub runtime_handler: String,
    /// It was pulled for this request.
    pub pulled: bool,
}

/// Why an image cannot be used: the waiting reason and message of the container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct ImageFault {
    /// E.g. `ErrImagePull`.
    pub reason: String,
    /// The text beside it.
    pub message: String,
}

/// Where pod workers get images from.
#[async_trait]
pub trait ImageSource: Send + Sync + std::fmt::Debug {
    /// Makes sure that the image is there and the pod may use it. Dropping the wait cuts its pull off.
    async fn ensure(&self, request: EnsureImage) -> Result<EnsuredImage, ImageFault>;
}
