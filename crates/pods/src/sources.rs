//! What should run: manifest files, a URL and the API server, merged into one stream of changes.
//!
//! Owns: reading each source ([`file`], [`http`]), the identity of static pods ([`statics`]), the
//! comparison of what a source says now with what it said before ([`merge`]), and the pairs of
//! static and mirror pods ([`desired`]).
//!
//! Promises: every source always delivers its complete set; losing or repeating a delivery changes
//! nothing; a broken manifest never hides a good one.

pub(crate) mod desired;
pub(crate) mod file;
pub(crate) mod http;
pub(crate) mod manifest;
pub(crate) mod merge;
pub(crate) mod statics;

use api::core::v1::Pod;
use ports::PodSource;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The complete set of one source.
#[derive(Debug)]
pub(crate) struct SourceSet {
    /// Who says so.
    pub(crate) source: PodSource,
    /// Every pod of it.
    pub(crate) pods: Vec<Arc<Pod>>,
}

/// Manifest files that cannot be used, with the reason of each.
pub type ManifestFaults = Arc<BTreeMap<PathBuf, String>>;

/// Where a source delivers to.
#[derive(Debug, Clone)]
pub(crate) struct SourceReport {
    source: PodSource,
    sets: mpsc::Sender<SourceSet>,
    faults: watch::Sender<ManifestFaults>,
}

impl SourceReport {
    pub(crate) fn new(
        source: PodSource,
        sets: mpsc::Sender<SourceSet>,
        faults: watch::Sender<ManifestFaults>,
    ) -> Self {
        Self { source, sets, faults }
    }

    /// Delivers the complete set; waits while the reader is busy.
    pub(crate) async fn deliver(&self, pods: Vec<Arc<Pod>>) {
        // The reader is gone only when everything ends.
        let _ = self.sets.send(SourceSet { source: self.source, pods }).await;
    }

    /// Publishes the files that cannot be used.
    pub(crate) fn faults(&self, faults: &BTreeMap<PathBuf, String>) {
        self.faults.send_if_modified(|known| {
            let changed = **known != *faults;
            if changed {
                *known = Arc::new(faults.clone());
            }
            changed
        });
    }
}
