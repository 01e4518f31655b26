//! The state that the volumes task publishes for others to read.

use api::ids::PodUid;
use ports::VolumeFacts;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The published state of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodPublished {
    /// Some volume of the pod is or may be mounted.
    pub(crate) mounted: bool,
    /// Spec names (they name folders) by the pod's volume names.
    pub(crate) spec_names: BTreeMap<String, String>,
}

/// The published state of all pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    /// Volumes on disk have been reconstructed.
    pub(crate) ready: bool,
    /// By pod; pods without volumes are left out.
    pub(crate) pods: BTreeMap<PodUid, PodPublished>,
    /// For node status.
    pub(crate) facts: Arc<VolumeFacts>,
}
