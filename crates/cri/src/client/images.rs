//! Calls about images.

use proto::cri_v1::{
    AuthConfig, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec,
    ImageStatusRequest, ImageStatusResponse, ListImagesRequest, PodSandboxConfig, PullImageRequest,
    RemoveImageRequest, StreamImagesRequest,
};
use telemetry::go_text::quote;

use super::{RuntimeClient, gather, request, verified};
use crate::call::{Call, Service};
use crate::error::CriError;
use crate::verify;

impl RuntimeClient {
    /// The images that match; all without a filter.
    pub async fn list_images(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>, CriError> {
        let streamed = self.stream_images(filter.clone());
        self.list(Service::Image, streamed, self.list_images_plain(filter)).await
    }

    /// The same, from the streamed list.
    pub async fn stream_images(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>, CriError> {
        let deadline = Some(self.timeout());
        let message = StreamImagesRequest { filter };
        let mut service = self.image_service();
        let attempt = Box::pin(async move {
            let opened = service.stream_images(request(message, deadline)).await;
            gather(opened, |part| part.images).await
        });
        self.invoke(Call::StreamImages, deadline, attempt).await
    }

    async fn list_images_plain(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>, CriError> {
        let deadline = Some(self.timeout());
        let message = ListImagesRequest { filter };
        let mut service = self.image_service();
        let attempt =
            Box::pin(async move { service.list_images(request(message, deadline)).await });
        Ok(self.invoke(Call::ListImages, deadline, attempt).await?.images)
    }

    /// The status of an image; its `image` is unset if it is not present.
    pub async fn image_status(
        &self,
        image: ImageSpec,
        verbose: bool,
    ) -> Result<ImageStatusResponse, CriError> {
        let deadline = Some(self.timeout());
        let name = image.image.clone();
        let message = ImageStatusRequest { image: Some(image), verbose };
        let mut service = self.image_service();
        let attempt =
            Box::pin(async move { service.image_status(request(message, deadline)).await });
        let answer = self.invoke(Call::ImageStatus, deadline, attempt).await?;
        let verdict = verify::image_status(&name, &answer);
        verified(Call::ImageStatus, answer, verdict)
    }

    /// Pulls an image; returns its reference. A pull has no deadline: drop the future to cancel it.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let name = image.image.clone();
        let message = PullImageRequest { image: Some(image), auth, sandbox_config };
        let mut service = self.image_service();
        let attempt = Box::pin(async move { service.pull_image(request(message, None)).await });
        let reference = self.invoke(Call::PullImage, None, attempt).await?.image_ref;
        let verdict = match reference.is_empty() {
            true => Err(format!("imageRef of image {} is not set", quote(&name))),
            false => Ok(()),
        };
        verified(Call::PullImage, reference, verdict)
    }

    /// Removes an image. Idempotent.
    pub async fn remove_image(&self, image: ImageSpec) -> Result<(), CriError> {
        let deadline = Some(self.timeout());
        let message = RemoveImageRequest { image: Some(image) };
        let mut service = self.image_service();
        let attempt =
            Box::pin(async move { service.remove_image(request(message, deadline)).await });
        self.invoke(Call::RemoveImage, deadline, attempt).await.map(drop)
    }

    /// The filesystems of images and containers.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        let deadline = Some(self.timeout());
        let mut service = self.image_service();
        let attempt = Box::pin(async move {
            service.image_fs_info(request(ImageFsInfoRequest {}, deadline)).await
        });
        self.invoke(Call::ImageFsInfo, deadline, attempt).await
    }
}
