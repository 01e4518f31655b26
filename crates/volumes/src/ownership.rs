//! `fsGroup`: ownership of a volume's files, with progress events while the change takes long.

use crate::env::{Env, StepError};
use crate::metrics::label;
use crate::plugins::MountInput;
use crate::pool::Patience;
use api::core::v1::Pod;
use api::pod::PodExt;
use engine::volumes::Plugin;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sys::ownership::{GroupOwnership, Progress};
use telemetry::metrics::HistogramFamily;
use tokio::time::Instant;

const FIRST_REPORT: Duration = Duration::from_secs(30);
const NEXT_REPORT: Duration = Duration::from_secs(60);
const DOCS: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";

type Walked = Result<(), StepError>;

/// The pod's `fsGroup`.
pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    let gid = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(gid).ok()
}

/// Whether the pod's `fsGroupChangePolicy` is `OnRootMismatch`.
fn on_root_mismatch(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|s| s.security_context.as_ref())
        .and_then(|s| s.fs_group_change_policy.as_deref())
        .is_some_and(|policy| policy == "OnRootMismatch")
}

/// Ownership of a pod's emptyDir and content volumes, whose files the kubelet makes itself.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    gid: Option<u32>,
    operations: HistogramFamily,
}

impl Owner {
    pub(crate) fn of(env: &Env, pod: &Pod) -> Self {
        Self { gid: fs_group(pod), operations: env.metrics.operation.clone() }
    }

    /// Changes a volume's files synchronously (emptyDir and content volumes always recurse).
    pub(crate) fn take(&self, path: &Path, read_only: bool, plugin: &str) -> Walked {
        let Some(gid) = self.gid else { return Ok(()) };
        let started = Instant::now();
        let progress = Progress::default();
        let walked = GroupOwnership { gid, read_only }.apply(path, &progress);
        log_failures(path, &progress);
        count(&self.operations, plugin, walked.is_ok(), started.elapsed());
        Ok(walked?)
    }
}

/// Gives a volume of any size to the pod's group, following its change policy; emits progress events
/// while it takes longer than expected.
pub(crate) async fn apply(
    env: &Env,
    input: &MountInput,
    path: PathBuf,
    read_only: bool,
) -> Result<(), StepError> {
    let (pod, step) = (&input.pod, &input.step);
    let Some(gid) = fs_group(pod) else { return Ok(()) };
    let ownership = GroupOwnership { gid, read_only };
    let only_root = on_root_mismatch(pod);
    step.enter(format!("setting volume ownership of {} for group {gid}", path.display()));
    let progress = Arc::new(Progress::default());
    let counter = Arc::clone(&progress);
    let key = path.to_string_lossy().into_owned();
    let shown = from_uid_on(pod, &path);
    let started = Instant::now();
    let walk =
        env.pool.run(&key, "set ownership", Patience::Unlimited, move || -> (bool, Walked) {
            match only_root && ownership.root_matches(&path).unwrap_or(false) {
                true => (false, Ok(())),
                false => {
                    let walked = ownership.apply(&path, &counter);
                    log_failures(&path, &counter);
                    (true, walked.map_err(StepError::from))
                }
            }
        });
    tokio::pin!(walk);
    // Upstream reports progress for these plugins only.
    let reports_progress = matches!(input.spec.plugin, Plugin::Csi | Plugin::Local);
    let mut wait = FIRST_REPORT;
    loop {
        // Cancel-safe: the walk is pinned outside the loop, the timeout only borrows it.
        match tokio::time::timeout(wait, &mut walk).await {
            Ok(result) => {
                let (walked, result) = result?;
                if walked {
                    let operations = &env.metrics.operation;
                    count(operations, &label(&input.spec), result.is_ok(), started.elapsed());
                }
                return result;
            }
            Err(_) => {
                let done = progress.entries.load(Ordering::Relaxed);
                let message = if wait == FIRST_REPORT {
                    format!(
                        "Setting volume ownership for {shown} is taking longer than expected, consider using OnRootMismatch - {DOCS}"
                    )
                } else {
                    format!("Setting volume ownership for {shown}, processed {done} files.")
                };
                if reports_progress {
                    env.warn(pod, "VolumePermissionChangeInProgress", message);
                }
                step.enter(format!("setting volume ownership of {shown}, {done} files so far"));
                wait = NEXT_REPORT;
            }
        }
    }
}

/// Logs how many files the filesystem refused to change: they do not keep the pod from starting.
fn log_failures(path: &Path, progress: &Progress) {
    let failures = progress.failures.load(Ordering::Relaxed);
    if failures > 0 {
        tracing::warn!(path = %path.display(), failures, "group or mode of some files was not changed");
    }
}

/// Counts a change of ownership as an operation of its own.
fn count(operations: &HistogramFamily, plugin: &str, well: bool, took: Duration) {
    let status = if well { "success" } else { "fail-unknown" };
    let labels = [plugin, "volume_apply_access_control", status, "false"];
    operations.observe_duration(&labels, took);
}

/// The path from the pod's UID on, as events show it.
fn from_uid_on(pod: &Pod, path: &Path) -> String {
    let uid = pod.uid_str();
    let text = path.to_string_lossy();
    match text.find(uid).filter(|_| !uid.is_empty()) {
        Some(at) => text.get(at..).unwrap_or_default().to_owned(),
        None => text.into_owned(),
    }
}
