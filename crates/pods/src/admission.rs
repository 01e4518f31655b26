//! Whether a pod may run here, and with which resources.
//!
//! Owns: the chain of checks (decisions are `engine::admission`'s, allocation is placement's) and the
//! checkpoint of what was admitted.
//!
//! Promises: a pod that was admitted before our restart is judged with the resources it was admitted
//! with; an admitted pod is on disk before it starts.

pub(crate) mod checkpoint;
pub(crate) mod resize;

use crate::shared::Shared;
use crate::sources::desired::uid_of;
use api::core::v1::Pod;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Settings of admission.
#[derive(Debug, Clone, Default)]
pub struct AdmissionConfig {
    /// `allowedUnsafeSysctls`.
    pub allowed_unsafe_sysctls: Vec<String>,
}

/// A refused pod: reason and message of its status and event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// The chain.
#[derive(Debug)]
pub(crate) struct Admission {
    _config: AdmissionConfig,
}

impl Admission {
    pub(crate) fn new(config: AdmissionConfig) -> Self {
        Self { _config: config }
    }

    /// Admits a pod beside the others that hold resources here.
    pub(crate) async fn admit(
        &mut self,
        pod: &Arc<Pod>,
        _others: &[Arc<Pod>],
        shared: &Shared,
    ) -> Result<(), Refusal> {
        let uid = uid_of(pod);
        let allocated = match shared.allocated.get(&uid).and_then(|e| e.applied_to(pod)) {
            Some(changed) => Arc::new(changed),
            None => Arc::clone(pod),
        };
        shared
            .placement
            .admit(&allocated)
            .await
            .map_err(|refused| Refusal { reason: refused.reason, message: refused.message })?;
        shared.allocated.record_pod(&uid, &allocated);
        shared.allocated.saved().await;
        Ok(())
    }

    /// Notes that a pod may want other resources than it has.
    pub(crate) fn note_resize(&mut self, _pod: &Arc<Pod>, _shared: &Shared) {}
}

/// The reason as events carry it: a text that lives as long as we do. There are few of them (checks
/// and resource names of this node); beyond a bound they are told as unexpected.
pub(crate) fn static_reason(reason: &str) -> &'static str {
    static KNOWN: std::sync::Mutex<BTreeSet<&'static str>> = std::sync::Mutex::new(BTreeSet::new());
    const BOUND: usize = 256;
    let Ok(mut known) = KNOWN.lock() else { return "UnexpectedAdmissionError" };
    if let Some(text) = known.get(reason) {
        return text;
    }
    if known.len() >= BOUND {
        return "UnexpectedAdmissionError";
    }
    let text: &'static str = Box::leak(reason.to_owned().into_boxed_str());
    known.insert(text);
    text
}
