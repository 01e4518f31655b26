//! The image calls of the runtime, as narrow as pulls and collection need them.

use async_trait::async_trait;
use cri::RuntimeClient;
use engine::image::gc::{Holders, ImageKey};
use engine::image::progress::PullBytes;
use engine::request::labels;
use jiff::Timestamp;
use proto::cri_v1::{AuthConfig, Container, Image, ImageSpec, PodSandboxConfig};

/// Image calls. An error is the text the Go kubelet shows.
#[async_trait]
pub trait ImageCalls: Send + Sync + std::fmt::Debug {
    /// The image, if it is there.
    async fn status(&self, spec: ImageSpec) -> Result<Option<Image>, String>;
    /// Pulls; gives the image's reference. Has no deadline.
    async fn pull(
        &self,
        spec: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox: PodSandboxConfig,
    ) -> Result<String, String>;
    /// All images.
    async fn list(&self) -> Result<Vec<Image>, String>;
    /// Removes an image.
    async fn remove(&self, image: &ImageKey) -> Result<(), String>;
    /// Images that containers run or mount, of these.
    async fn in_use(&self, images: &[Image]) -> Result<Holders, String>;
    /// How far the pull of an image is, where the runtime tells.
    async fn progress(&self, _image: &str, _now: Timestamp) -> Option<PullBytes> {
        None
    }
}

#[async_trait]
impl ImageCalls for RuntimeClient {
    async fn status(&self, spec: ImageSpec) -> Result<Option<Image>, String> {
        let answer = self.image_status(spec, false).await.map_err(|e| e.to_string())?;
        Ok(answer.image)
    }

    async fn pull(
        &self,
        spec: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox: PodSandboxConfig,
    ) -> Result<String, String> {
        self.pull_image(spec, auth, Some(sandbox)).await.map_err(|e| e.to_string())
    }

    async fn list(&self) -> Result<Vec<Image>, String> {
        self.list_images(None).await.map_err(|e| e.to_string())
    }

    async fn remove(&self, image: &ImageKey) -> Result<(), String> {
        let spec = ImageSpec {
            image: image.id.clone(),
            runtime_handler: image.handler.clone(),
            ..ImageSpec::default()
        };
        self.remove_image(spec).await.map_err(|e| e.to_string())
    }

    async fn in_use(&self, images: &[Image]) -> Result<Holders, String> {
        let mut used = Holders::new();
        for container in self.list_containers(None).await.map_err(|e| e.to_string())? {
            let holder = holder(&container);
            let id = if container.image_id.is_empty() {
                container.image_ref
            } else {
                container.image_id
            };
            let handler = container.image.map(|image| image.runtime_handler).unwrap_or_default();
            used.entry(ImageKey { id, handler }).or_default().insert(holder.clone());
            let status = match self.container_status(&container.id, false).await {
                Ok(answer) => answer.status,
                // It ended while we looked: what it used is free.
                Err(e) if e.is_not_found() => continue,
                Err(e) => return Err(format!("get container status: {e}")),
            };
            for mount in status.iter().flat_map(|s| &s.mounts) {
                let Some(mounted) = mount.image.as_ref().map(|i| &i.image) else { continue };
                // Mounts do not say for which handler: none of them may go.
                for image in images.iter().filter(|image| image.id == *mounted) {
                    used.entry(key(image)).or_default().insert(holder.clone());
                }
            }
        }
        Ok(used)
    }

    async fn progress(&self, image: &str, now: Timestamp) -> Option<PullBytes> {
        super::progress::of_content(self, image, now).await
    }
}

/// `namespace/pod/container`, or the id of a container that is of no pod.
fn holder(container: &Container) -> String {
    let label = |name: &str| container.labels.get(name).map(String::as_str);
    let names = [labels::POD_NAMESPACE, labels::POD_NAME, labels::CONTAINER_NAME].map(label);
    match names {
        [Some(namespace), Some(pod), Some(name)] => format!("{namespace}/{pod}/{name}"),
        _ => container.id.clone(),
    }
}

/// Which image the runtime lists.
pub(super) fn key(image: &Image) -> ImageKey {
    let handler = image.spec.as_ref().map(|spec| spec.runtime_handler.clone());
    ImageKey { id: image.id.clone(), handler: handler.unwrap_or_default() }
}
