//! The image service of the fake.

use std::pin::Pin;

use cri::Call;
use futures::Stream;
use proto::cri_v1::image_service_server::ImageService;
use proto::cri_v1::{
    ImageFsInfoRequest, ImageFsInfoResponse, ImageStatusRequest, ImageStatusResponse,
    ListImagesRequest, ListImagesResponse, PullImageRequest, PullImageResponse, RemoveImageRequest,
    RemoveImageResponse, StreamImagesRequest, StreamImagesResponse,
};
use tonic::{Request, Response, Status};

use super::{FakeCri, lock, stats};

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ImageService for FakeCri {
    type StreamImagesStream =
        Pin<Box<dyn Stream<Item = Result<StreamImagesResponse, Status>> + Send>>;

    async fn list_images(&self, request: Request<ListImagesRequest>) -> Reply<ListImagesResponse> {
        self.answer(Call::ListImages, request, |fake, message| async move {
            let wanted = message.filter.and_then(|filter| filter.image);
            Ok(ListImagesResponse { images: lock(&fake.inner.state).images.list(wanted.as_ref()) })
        })
        .await
    }

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> Reply<Self::StreamImagesStream> {
        self.answer(Call::StreamImages, request, |fake, message| async move {
            let wanted = message.filter.and_then(|filter| filter.image);
            let images = lock(&fake.inner.state).images.list(wanted.as_ref());
            let parts =
                images.into_iter().map(|image| Ok(StreamImagesResponse { images: vec![image] }));
            let stream: Self::StreamImagesStream =
                Box::pin(futures::stream::iter(parts.collect::<Vec<_>>()));
            Ok(stream)
        })
        .await
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Reply<ImageStatusResponse> {
        self.answer(Call::ImageStatus, request, |fake, message| async move {
            let name = message.image.unwrap_or_default().image;
            let image = lock(&fake.inner.state).images.find(&name).cloned();
            Ok(ImageStatusResponse { image, ..Default::default() })
        })
        .await
    }

    async fn pull_image(&self, request: Request<PullImageRequest>) -> Reply<PullImageResponse> {
        self.answer(Call::PullImage, request, |fake, message| async move {
            let name = message.image.unwrap_or_default().image;
            let pull = lock(&fake.inner.state).images.pull_of(&name);
            tokio::time::sleep(pull.takes).await;
            if let Some((code, text)) = pull.error {
                return Err(Status::new(code, text));
            }
            Ok(PullImageResponse { image_ref: fake.add_image(&name) })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Reply<RemoveImageResponse> {
        self.answer(Call::RemoveImage, request, |fake, message| async move {
            let name = message.image.unwrap_or_default().image;
            lock(&fake.inner.state).images.remove(&name);
            fake.changed();
            Ok(RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        request: Request<ImageFsInfoRequest>,
    ) -> Reply<ImageFsInfoResponse> {
        self.answer(Call::ImageFsInfo, request, |fake, _| async move {
            let used = lock(&fake.inner.state).images.used_bytes();
            let usage = stats::filesystem(fake.now_nanos(), used);
            Ok(ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            })
        })
        .await
    }
}
