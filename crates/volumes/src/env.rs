//! What every operation needs, and the errors operations end with.

use crate::certificates::Certificates;
use crate::config::VolumesConfig;
use crate::csi::drivers::Drivers;
use crate::metrics::VolumeMetrics;
use crate::paths::Paths;
use crate::plugins::flex::FlexDriver;
use crate::pool::{Pool, PoolError};
use crate::quota::Quotas;
use api::core::v1::Pod;
use engine::volumes::{AllocatableResources, Outcome};
use ports::{Clock, EventSeverity, EventTarget, Events, NodeEvent, NodeViews, Objects, StorageApi};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use units::errno::go_text;

/// Shared by all operations.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) config: VolumesConfig,
    pub(crate) paths: Paths,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) storage: Option<Arc<dyn StorageApi>>,
    pub(crate) events: Arc<dyn Events>,
    pub(crate) node: NodeViews,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) pool: Pool,
    pub(crate) metrics: VolumeMetrics,
    pub(crate) csi: Drivers,
    /// Volumes whose usage is tracked by a project quota.
    pub(crate) quotas: Quotas,
    /// Certificates of pods.
    pub(crate) certificates: Certificates,
    /// Flexvolume drivers that have answered.
    pub(crate) flex_drivers: Mutex<BTreeMap<String, FlexDriver>>,
    /// Whether this node has its `CSINode` object.
    pub(crate) csi_ready: watch::Sender<bool>,
}

impl Env {
    /// The node's allocatable resources, as far as they are known.
    pub(crate) fn allocatable(&self) -> AllocatableResources {
        let view = self.node.borrow();
        view.node
            .as_ref()
            .and_then(|n| n.status.as_ref())
            .and_then(|s| s.allocatable.clone())
            .unwrap_or_default()
    }

    /// A warning about the pod.
    pub(crate) fn warn(&self, pod: &Arc<Pod>, reason: &'static str, message: String) {
        self.emit(pod, EventSeverity::Warning, reason, message);
    }

    /// An event about the pod.
    pub(crate) fn emit(
        &self,
        pod: &Arc<Pod>,
        severity: EventSeverity,
        reason: &'static str,
        message: String,
    ) {
        let target = EventTarget::Pod { pod: Arc::clone(pod), field_path: None };
        self.events.emit(NodeEvent { target, severity, reason, message });
    }
}

/// How a step of an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StepError {
    /// Upstream's text.
    pub(crate) message: String,
    /// Whether the step left anything behind.
    pub(crate) outcome: Outcome,
}

impl StepError {
    /// Nothing was left behind.
    pub(crate) fn settled(message: impl Into<String>) -> Self {
        Self { message: message.into(), outcome: Outcome::Final }
    }

    /// Something may have been left behind.
    pub(crate) fn uncertain(message: impl Into<String>) -> Self {
        Self { message: message.into(), outcome: Outcome::Uncertain }
    }

    /// The step could not start.
    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), outcome: Outcome::Transient }
    }

    /// From an error with its causes; something may have been left behind.
    pub(crate) fn from_error(error: &dyn Error) -> Self {
        Self::uncertain(chain(error))
    }
}

impl From<PoolError> for StepError {
    fn from(error: PoolError) -> Self {
        Self::uncertain(error.to_string())
    }
}

impl From<sys::fs::FsError> for StepError {
    fn from(error: sys::fs::FsError) -> Self {
        Self::uncertain(error.in_go())
    }
}

impl From<sys::removal::RemoveError> for StepError {
    fn from(error: sys::removal::RemoveError) -> Self {
        Self::from_error(&error)
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let shown = |error: &(dyn Error + 'static)| match error.downcast_ref::<std::io::Error>() {
        Some(kernel) => go_text(kernel),
        None => error.to_string(),
    };
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = shown(cause);
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// The current step of an operation and when it began, shown to those who wait for the operation.
#[derive(Debug, Clone)]
pub(crate) struct Step(Arc<Mutex<(String, Instant)>>);

impl Step {
    pub(crate) fn new(what: &str) -> Self {
        Self(Arc::new(Mutex::new((what.to_owned(), Instant::now()))))
    }

    /// The operation goes on to its next step.
    pub(crate) fn enter(&self, what: impl Into<String>) {
        if let Ok(mut state) = self.0.lock() {
            *state = (what.into(), Instant::now());
        }
    }

    /// The step and how long it has taken so far.
    pub(crate) fn read(&self) -> (String, Duration) {
        match self.0.lock() {
            Ok(state) => (state.0.clone(), state.1.elapsed()),
            Err(_) => (String::new(), Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_made_is_told_as_go_tells_it() {
        let error = sys::fs::create_dir_all("/proc/none/deeper", 0o755).unwrap_err();
        let message = StepError::from(error).message;
        assert_eq!(message, "mkdir /proc/none: no such file or directory");
    }
}
