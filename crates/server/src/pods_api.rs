//! The pods socket: the node's pods for local programs, without the API server.
//!
//! Owns: `pods-api/pods-api.sock`, API v1alpha1. Promises: a watcher receives the existing pods,
//! then every change of each in order, or an error that it fell behind; a slow watcher does not
//! delay others. Deliberately absent: the list of pods itself (`ports::PodFeed`), pods of other
//! nodes.

mod encode;
mod table;

pub(crate) use encode::quantity;

use api::core::v1::Pod;
use async_trait::async_trait;
use encode::encode;
use futures::stream::{self, BoxStream, StreamExt};
use ports::{OnExit, PodChange, PodChangeKind, PodFeed, ShownPod, Tasks};
use proto::pods_v1alpha1::pods_server::{Pods, PodsServer};
use proto::pods_v1alpha1::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};
use serde_json::{Value, json};
use sockets::{ListenError, Listening, RateLimit};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// Upstream's rate limits for all calls but the watch.
const CALLS_PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;
/// The mode of the socket's directory.
const FOLDER_MODE: u32 = 0o750;

/// Why the socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum PodsApiError {
    /// Its directory cannot be created.
    #[error(transparent)]
    Folder(#[from] sys::fs::FsError),
    /// It cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Serves the pods below `dir` until the tasks end.
pub fn serve_pods(pods: Arc<dyn PodFeed>, dir: &Path, tasks: &Tasks) -> Result<(), PodsApiError> {
    sys::fs::create_dir_all(dir, FOLDER_MODE)?;
    let socket = Listening::replace(&dir.join("pods-api.sock"))?;
    tracing::info!(endpoint = %socket.path().display(), "Starting to serve the pods API");
    let token = tasks.token();
    let limit = RateLimit::new(CALLS_PER_SECOND, BURST);
    let routes = Routes::new(PodsServer::new(PodsApi { pods, limit, token: token.clone() }));
    let all = tasks.clone();
    tasks.spawn("pods-api", OnExit::Fine, async move {
        if let Err(error) = socket.serve(routes, token).await {
            // As upstream: otherwise nobody would notice.
            all.fail(format!("serve the pods API: {error}"));
        }
    });
    Ok(())
}

/// The gRPC service.
#[derive(Debug)]
struct PodsApi {
    pods: Arc<dyn PodFeed>,
    limit: RateLimit,
    token: CancellationToken,
}

impl PodsApi {
    fn may_call(&self) -> Result<(), Status> {
        let allowed = self.limit.allow();
        allowed.then_some(()).ok_or_else(|| Status::resource_exhausted("rejected by rate limit"))
    }
}

#[async_trait]
impl Pods for PodsApi {
    type WatchPodsStream = BoxStream<'static, Result<WatchPodsEvent, Status>>;

    async fn list_pods(
        &self,
        _: Request<ListPodsRequest>,
    ) -> Result<Response<ListPodsResponse>, Status> {
        self.may_call()?;
        let pods = self.pods.shown().values().map(bytes).collect();
        Ok(Response::new(ListPodsResponse { pods }))
    }

    async fn get_pod(
        &self,
        request: Request<GetPodRequest>,
    ) -> Result<Response<GetPodResponse>, Status> {
        self.may_call()?;
        let uid = request.into_inner().pod_uid;
        match self.pods.shown().get(uid.as_str()) {
            Some(shown) => Ok(Response::new(GetPodResponse { pod: bytes(shown) })),
            None => Err(Status::not_found(format!("pod with UID {uid} not found"))),
        }
    }

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        tracing::info!("WatchPods called");
        // Subscribed first, so that changes while the existing pods are sent are not lost.
        let changes = self.pods.follow();
        let added = |(_, shown)| Ok(event(EventType::Added, bytes(&shown)));
        let first = stream::iter(self.pods.shown()).map(added);
        let complete = event(EventType::InitialSyncComplete, Vec::new());
        let events = first.chain(stream::iter([Ok(complete)])).chain(feed(changes));
        let ended = self.token.clone().cancelled_owned();
        Ok(Response::new(events.take_until(ended).boxed()))
    }
}

/// Watch events of the changes; if the feed ends, the watcher fell behind.
fn feed(
    changes: mpsc::Receiver<PodChange>,
) -> impl stream::Stream<Item = Result<WatchPodsEvent, Status>> {
    stream::unfold(Some(changes), |changes| async {
        let mut changes = changes?;
        match changes.recv().await {
            Some(change) => Some((Ok(changed(&change)), Some(changes))),
            None => Some((Err(Status::resource_exhausted("watch client channel closed")), None)),
        }
    })
}

fn changed(change: &PodChange) -> WatchPodsEvent {
    let pod = &change.shown;
    match change.kind {
        PodChangeKind::Added => event(EventType::Added, bytes(pod)),
        PodChangeKind::Modified => event(EventType::Modified, bytes(pod)),
        PodChangeKind::Deleted => event(EventType::Deleted, name_only(&pod.pod)),
    }
}

fn event(kind: EventType, pod: Vec<u8>) -> WatchPodsEvent {
    WatchPodsEvent { r#type: kind.into(), pod }
}

/// The pod's protobuf, with the newest status.
fn bytes(shown: &ShownPod) -> Vec<u8> {
    let mut pod = serde_json::to_value(&*shown.pod).unwrap_or_default();
    if let (Some(status), Some(fields)) = (&shown.status, pod.as_object_mut()) {
        let status = serde_json::to_value(&**status).unwrap_or_default();
        fields.insert("status".to_owned(), status);
    }
    encode(table::POD, &pod)
}

fn name_only(pod: &Pod) -> Vec<u8> {
    let meta = &pod.metadata;
    let pod: Value =
        json!({"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}});
    encode(table::POD, &pod)
}

#[cfg(test)]
mod tests;
