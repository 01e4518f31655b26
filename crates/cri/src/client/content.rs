//! containerd's content store, which is served on the same socket as its CRI: the progress of a
//! pull.
//!
//! Not part of CRI: a runtime that lacks it is asked once, and every error means "unknown".

use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::containerd_content_v1::{
    Info, ListContentRequest, ListStatusesRequest, ReadContentRequest, Status as IntakeStatus,
};
use tonic::{Code, Request, Status};

use super::RuntimeClient;

/// The deadline of a call: progress is not worth waiting for.
const LIMIT: Duration = Duration::from_secs(3);
/// The namespace in which containerd stores images pulled over CRI.
const NAMESPACE: &str = "k8s.io";

impl RuntimeClient {
    /// The ingests in progress.
    pub async fn content_intakes(&self) -> Option<Vec<IntakeStatus>> {
        let mut store = self.inner.content.clone();
        let request = scoped(ListStatusesRequest::default());
        let answer = async move { store.list_statuses(request).await };
        Some(self.content(answer).await?.into_inner().statuses)
    }

    /// All content in the store.
    pub async fn content_held(&self) -> Option<Vec<Info>> {
        let mut store = self.inner.content.clone();
        let request = scoped(ListContentRequest::default());
        let all = async move {
            let mut stream = store.list(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(part) = stream.message().await? {
                all.extend(part.info);
            }
            Ok(all)
        };
        self.content(all).await
    }

    /// One content blob; `None` also if it is larger than `most`.
    pub async fn content_read(&self, digest: &str, most: usize) -> Option<Vec<u8>> {
        let mut store = self.inner.content.clone();
        let request = scoped(ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 });
        let bytes = async move {
            let mut stream = store.read(request).await?.into_inner();
            let mut bytes = Vec::new();
            while let Some(part) = stream.message().await? {
                bytes.extend(part.data);
                if bytes.len() > most {
                    return Err(Status::out_of_range("more than is wanted"));
                }
            }
            Ok(bytes)
        };
        self.content(bytes).await
    }

    async fn content<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Option<T> {
        if self.inner.lacks_content.load(Ordering::Relaxed) {
            return None;
        }
        match tokio::time::timeout(LIMIT, answer).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(status)) => {
                if status.code() == Code::Unimplemented {
                    self.inner.lacks_content.store(true, Ordering::Relaxed);
                }
                tracing::debug!(err = status.message(), "Failed to query the content store");
                None
            }
            Err(_) => {
                tracing::debug!("Timeout of the content store");
                None
            }
        }
    }
}

fn scoped<M>(message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(LIMIT);
    let namespace = tonic::metadata::MetadataValue::from_static(NAMESPACE);
    request.metadata_mut().insert("containerd-namespace", namespace);
    request
}
