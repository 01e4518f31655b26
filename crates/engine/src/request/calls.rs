//! The small requests: start, stop, exec.

use proto::cri_v1::{ExecSyncRequest, StartContainerRequest, StopContainerRequest};

/// The least time a container gets to stop, in seconds.
pub const MIN_STOP_SECONDS: i64 = 2;

/// The request that starts a created container.
pub fn start_container(container_id: &str) -> StartContainerRequest {
    StartContainerRequest { container_id: container_id.into() }
}

/// The request that stops a container with what is left of its grace period.
pub fn stop_container(container_id: &str, grace_seconds: i64) -> StopContainerRequest {
    StopContainerRequest {
        container_id: container_id.into(),
        timeout: grace_seconds.max(MIN_STOP_SECONDS),
    }
}

/// The request that runs a command in a container; 0 seconds means no time limit.
pub fn exec_sync(container_id: &str, command: &[String], timeout_seconds: i64) -> ExecSyncRequest {
    ExecSyncRequest {
        container_id: container_id.into(),
        cmd: command.to_vec(),
        timeout: timeout_seconds,
    }
}
