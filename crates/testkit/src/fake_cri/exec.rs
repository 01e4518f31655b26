//! What commands in fake containers answer.

use std::sync::Arc;
use std::time::Duration;

use cri::{Code, ExecOutput};
use proto::cri_v1::{ExecSyncRequest, ExecSyncResponse};
use tonic::Status;

/// A command to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCall {
    /// The container's id.
    pub container_id: String,
    /// The container's name.
    pub container: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The command.
    pub command: Vec<String>,
}

/// How a command ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecReply {
    /// How long it takes. Longer than the time it has: it times out.
    pub after: Duration,
    /// Exit code and output; or a gRPC error.
    pub result: Result<ExecOutput, (Code, String)>,
}

impl ExecReply {
    /// Ends at once with a code and no output.
    pub fn exits(code: i32) -> Self {
        Self::ends(ExecOutput { exit_code: code, ..ExecOutput::default() })
    }

    /// Ends at once with success and this output.
    pub fn prints(stdout: &str) -> Self {
        Self::ends(ExecOutput { stdout: stdout.as_bytes().to_vec(), ..ExecOutput::default() })
    }

    /// Ends at once like this.
    pub fn ends(output: ExecOutput) -> Self {
        Self { after: Duration::ZERO, result: Ok(output) }
    }

    /// Cannot be run at all.
    pub fn fails(code: Code, text: &str) -> Self {
        Self { after: Duration::ZERO, result: Err((code, text.to_owned())) }
    }

    /// Takes that long.
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

pub(super) type Script = Arc<dyn Fn(&ExecCall) -> ExecReply + Send + Sync>;

pub(super) fn default_script() -> Script {
    Arc::new(|_| ExecReply::exits(0))
}

/// Runs a reply against the time the request gives it, with containerd's text for a timeout.
pub(super) async fn run(
    request: &ExecSyncRequest,
    reply: ExecReply,
) -> Result<ExecSyncResponse, Status> {
    let limit = u64::try_from(request.timeout).ok().filter(|seconds| *seconds > 0);
    if let Some(seconds) = limit.filter(|seconds| reply.after > Duration::from_secs(*seconds)) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let text = format!(
            "failed to exec in container: timeout {seconds}s exceeded: context deadline exceeded"
        );
        return Err(Status::deadline_exceeded(text));
    }
    if !reply.after.is_zero() {
        tokio::time::sleep(reply.after).await;
    }
    match reply.result {
        Ok(ExecOutput { exit_code, stdout, stderr }) => {
            Ok(ExecSyncResponse { stdout, stderr, exit_code })
        }
        Err((code, text)) => Err(Status::new(code, text)),
    }
}
