//! What others may read without asking the task.

use api::ids::PodUid;
use ports::VolumeFacts;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One pod's part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodPublished {
    /// Something of it is or may be mounted.
    pub(crate) mounted: bool,
    /// Spec names (they name folders) by the pod's volume names.
    pub(crate) spec_names: BTreeMap<String, String>,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    /// The disk has been read.
    pub(crate) ready: bool,
    /// By pod; pods without volumes are left out.
    pub(crate) pods: BTreeMap<PodUid, PodPublished>,
    /// For node status.
    pub(crate) facts: Arc<VolumeFacts>,
}
