//! Optional features of the runtime, learned from its responses.

use std::sync::{Mutex, PoisonError};

use crate::call::Call;
use crate::error::CriError;

/// Whether a call is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Support {
    /// Not called yet, or it only failed for other reasons.
    #[default]
    Unknown,
    /// It responded.
    Yes,
    /// It responded with `Unimplemented`.
    No,
}

/// The optional parts of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `GetContainerEvents`.
    pub events: Support,
    /// `RuntimeConfig`.
    pub runtime_config: Support,
    /// `UpdatePodSandboxResources`.
    pub update_pod_sandbox_resources: Support,
    /// `ListPodSandboxStats` and `PodSandboxStats`.
    pub pod_sandbox_stats: Support,
    /// `ListPodSandboxMetrics` and its descriptors.
    pub pod_sandbox_metrics: Support,
    /// `CheckpointContainer`.
    pub checkpoint: Support,
    /// The `Stream*` lists of the runtime service.
    pub runtime_list_streaming: Support,
    /// The `Stream*` list of the image service.
    pub image_list_streaming: Support,
}

impl Features {
    fn of(&mut self, call: Call) -> Option<&mut Support> {
        Some(match call {
            Call::GetContainerEvents => &mut self.events,
            Call::RuntimeConfig => &mut self.runtime_config,
            Call::UpdatePodSandboxResources => &mut self.update_pod_sandbox_resources,
            Call::PodSandboxStats | Call::ListPodSandboxStats => &mut self.pod_sandbox_stats,
            Call::ListPodSandboxMetrics | Call::ListMetricDescriptors => {
                &mut self.pod_sandbox_metrics
            }
            Call::CheckpointContainer => &mut self.checkpoint,
            Call::StreamPodSandboxes
            | Call::StreamContainers
            | Call::StreamContainerStats
            | Call::StreamPodSandboxStats
            | Call::StreamPodSandboxMetrics => &mut self.runtime_list_streaming,
            Call::StreamImages => &mut self.image_list_streaming,
            _ => return None,
        })
    }
}

/// The features known so far.
#[derive(Debug, Default)]
pub(crate) struct Learned(Mutex<Features>);

impl Learned {
    pub(crate) fn get(&self) -> Features {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an outcome. Only a response of the call itself counts: `NotFound` proves that the
    /// call is supported, a dead connection proves nothing.
    pub(crate) fn note(&self, call: Call, outcome: Result<(), &CriError>) {
        let support = match outcome {
            Ok(()) => Support::Yes,
            Err(err) if err.is_unimplemented() => Support::No,
            Err(err) if err.is_not_found() => Support::Yes,
            Err(_) => return,
        };
        let mut features = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = features.of(call) {
            *known = support;
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn only_the_calls_own_answer_counts() {
        let learned = Learned::default();
        let call = Call::UpdatePodSandboxResources;
        let err = CriError::from_status(call, &Status::unavailable("gone"));
        learned.note(call, Err(&err));
        assert_eq!(learned.get().update_pod_sandbox_resources, Support::Unknown);
        let err = CriError::from_status(call, &Status::unimplemented("no"));
        learned.note(call, Err(&err));
        assert_eq!(learned.get().update_pod_sandbox_resources, Support::No);
        learned.note(call, Ok(()));
        assert_eq!(learned.get().update_pod_sandbox_resources, Support::Yes);
    }
}
