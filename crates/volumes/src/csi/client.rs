//! One driver's node service over its socket. A new connection per operation, authority
//! `localhost`, one deadline for all calls of an operation.

use crate::env::StepError;
use crate::metrics::{code_label, truth};
use engine::volumes::{Outcome, VolumeSpec};
use hyper_util::rt::TokioIo;
use proto::csi_v1 as csi;
use proto::csi_v1::node_client::NodeClient;
use proto::csi_v1::node_service_capability::rpc::Type as Capability;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telemetry::metrics::HistogramFamily;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use units::errno::go_text;

/// Upstream's limit for one operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Limit of a driver's response: real ones are small.
const MAX_ANSWER: usize = 4 << 20;

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", code_label(*code))]
pub(crate) struct CallError {
    /// gRPC code.
    pub(crate) code: Code,
    /// The driver's text.
    pub(crate) message: String,
}

impl CallError {
    /// Whether the driver certainly did nothing and does nothing any more, so that nothing was left behind.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

impl From<CallError> for StepError {
    fn from(error: CallError) -> Self {
        let outcome = if error.is_final() { Outcome::Final } else { Outcome::Uncertain };
        Self { message: error.to_string(), outcome }
    }
}

/// Why there is no connection, in grpc-go's words.
#[derive(Debug, thiserror::Error)]
#[error(
    "connection error: desc = \"transport: Error while dialing: dial unix {}: connect: {}\"",
    socket.display(), go_text(why)
)]
struct DialError {
    socket: PathBuf,
    why: std::io::Error,
}

/// Opens a channel to a socket; the connection is made by the first call.
pub(crate) fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let socket = socket.clone();
            async move {
                let stream = UnixStream::connect(&socket).await;
                stream.map(TokioIo::new).map_err(|why| DialError { socket, why })
            }
        },
    ))
}

/// A driver during one operation.
#[derive(Debug)]
pub(crate) struct Driver {
    name: String,
    seconds: HistogramFamily,
    client: NodeClient<Channel>,
    deadline: Instant,
    /// The volume was specified for an in-tree plugin and migrated to CSI.
    migrated: bool,
}

impl Driver {
    /// For the driver behind this socket.
    pub(crate) fn at(socket: &Path, name: &str, seconds: HistogramFamily) -> Self {
        let client = NodeClient::new(channel(socket)).max_decoding_message_size(MAX_ANSWER);
        let deadline = Instant::now() + TIMEOUT;
        Self { name: name.to_owned(), seconds, client, deadline, migrated: false }
    }

    /// For an operation on this volume; metrics have a label for migrated volumes.
    pub(crate) fn about(self, spec: &VolumeSpec) -> Self {
        Self { migrated: spec.migrated, ..self }
    }

    async fn call<T>(
        &self,
        method: &str,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, CallError> {
        let started = Instant::now();
        let result = self.answered(answer).await;
        let code = code_label(result.as_ref().err().map_or(Code::Ok, |e| e.code));
        let method = format!("/csi.v1.Node/{method}");
        let labels = [self.name.as_str(), &method, &code, truth(self.migrated)];
        self.seconds.observe_duration(&labels, started.elapsed());
        result
    }

    async fn answered<T>(
        &self,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, CallError> {
        match tokio::time::timeout_at(self.deadline, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(status.into()),
            Err(_) => Err(CallError {
                code: Code::DeadlineExceeded,
                message: "context deadline exceeded".into(),
            }),
        }
    }

    /// Whether the driver has a capability. Asked anew at each decision, as upstream does: a driver may
    /// be replaced by a newer one at any time.
    pub(crate) async fn can(&self, wanted: Capability) -> Result<bool, CallError> {
        let mut client = self.client.clone();
        let request = csi::NodeGetCapabilitiesRequest {};
        let answer =
            self.call("NodeGetCapabilities", client.node_get_capabilities(request)).await?;
        Ok(answer
            .capabilities
            .into_iter()
            .filter_map(|c| c.r#type)
            .any(|csi::node_service_capability::Type::Rpc(rpc)| rpc.r#type == wanted as i32))
    }

    pub(crate) async fn info(&self) -> Result<csi::NodeGetInfoResponse, CallError> {
        let mut client = self.client.clone();
        self.call("NodeGetInfo", client.node_get_info(csi::NodeGetInfoRequest {})).await
    }

    pub(crate) async fn stage(
        &self,
        request: csi::NodeStageVolumeRequest,
    ) -> Result<(), CallError> {
        let mut client = self.client.clone();
        self.call("NodeStageVolume", client.node_stage_volume(request)).await.map(drop)
    }

    pub(crate) async fn unstage(&self, volume: &str, path: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: path.to_string_lossy().into_owned(),
        };
        let mut client = self.client.clone();
        self.call("NodeUnstageVolume", client.node_unstage_volume(request)).await.map(drop)
    }

    pub(crate) async fn publish(
        &self,
        request: csi::NodePublishVolumeRequest,
    ) -> Result<(), CallError> {
        let mut client = self.client.clone();
        self.call("NodePublishVolume", client.node_publish_volume(request)).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, volume: &str, path: &Path) -> Result<(), CallError> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: path.to_string_lossy().into_owned(),
        };
        let mut client = self.client.clone();
        self.call("NodeUnpublishVolume", client.node_unpublish_volume(request)).await.map(drop)
    }

    pub(crate) async fn expand(
        &self,
        request: csi::NodeExpandVolumeRequest,
    ) -> Result<i64, CallError> {
        let mut client = self.client.clone();
        self.call("NodeExpandVolume", client.node_expand_volume(request))
            .await
            .map(|r| r.capacity_bytes)
    }

    pub(crate) async fn stats(
        &self,
        volume: &str,
        path: &Path,
    ) -> Result<csi::NodeGetVolumeStatsResponse, CallError> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: path.to_string_lossy().into_owned(),
            staging_target_path: String::new(),
        };
        let mut client = self.client.clone();
        self.call("NodeGetVolumeStats", client.node_get_volume_stats(request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codes_that_leave_the_outcome_open_are_not_final() {
        let error = |code| CallError { code, message: "x".into() };
        for code in [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Unavailable,
            Code::ResourceExhausted,
            Code::Aborted,
        ] {
            assert!(!error(code).is_final(), "{code:?}");
        }
        for code in [Code::Internal, Code::NotFound, Code::InvalidArgument, Code::Unknown] {
            assert!(error(code).is_final(), "{code:?}");
        }
        assert_eq!(error(Code::Cancelled).to_string(), "rpc error: code = Canceled desc = x");
    }

    #[tokio::test]
    async fn a_driver_that_is_not_there_is_told_in_the_words_of_grpc_for_go() {
        let socket = std::env::temp_dir().join(format!("rubelet-no-{}.sock", std::process::id()));
        let registry = telemetry::metrics::Registry::new();
        let seconds = crate::VolumeMetrics::new(&registry).csi;
        let driver = Driver::at(&socket, "d", seconds);
        let told = |cause: &str| {
            format!(
                "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: connect: {cause}\"",
                socket.display()
            )
        };
        let error = driver.info().await.unwrap_err();
        assert_eq!(error.to_string(), told("no such file or directory"));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = driver.info().await.unwrap_err();
        assert_eq!(error.to_string(), told("connection refused"));
        assert!(!error.is_final());
        std::fs::remove_file(&socket).unwrap();
    }
}
