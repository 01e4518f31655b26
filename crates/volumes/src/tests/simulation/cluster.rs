//! The rest of the cluster: the node's status, the controller that attaches and detaches by it, and the one
//! that expands claims. It continues while the node is down.

use super::machine::{ATTACHED, Machine};
use super::world::{Pods, Stage};
use crate::csi::source::attachment_name;
use crate::tests::fixture::FakeObjects;
use crate::tests::storage::FakeStorage;
use api::core::v1::{AttachedVolume, Node};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The driver whose volumes need a controller to attach them.
pub(super) const ATTACHING: &str = "attaching.test";
/// The size of an expanded claim.
pub(super) const GROWN: &str = "32Mi";
pub(super) const GROWN_BYTES: i64 = 32 << 20;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Cluster {
    pub(super) machine: Machine,
    pub(super) objects: Arc<FakeObjects>,
    pub(super) storage: Arc<FakeStorage>,
    pub(super) pods: Pods,
}

fn unique(volume: &str) -> String {
    format!("kubernetes.io/csi/{ATTACHING}^{volume}")
}

impl Cluster {
    fn change_node(&self, change: impl FnOnce(&mut Node)) {
        let mut node = self.objects.node.lock().unwrap();
        let mut next = (**node).clone();
        change(&mut next);
        *node = Arc::new(next);
    }

    /// The node as the API server has it.
    pub(super) fn node(&self) -> Arc<Node> {
        Arc::clone(&self.objects.node.lock().unwrap())
    }

    /// Sets `volumesInUse` of the node's status; `None` as long as the node does not know.
    pub(super) fn report(&self, in_use: Option<Vec<String>>) {
        let Some(in_use) = in_use else { return };
        self.change_node(|node| {
            node.status.get_or_insert_default().volumes_in_use = Some(in_use);
        });
    }

    /// Volumes of pods that have not ended.
    fn wanted(&self) -> BTreeSet<String> {
        let pods = self.pods.lock().unwrap();
        let living = pods.values().filter(|sim| sim.stage != Stage::Stopped);
        let volumes =
            living.flat_map(|sim| sim.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()));
        let claims =
            volumes.filter_map(|v| Some(v.persistent_volume_claim.as_ref()?.claim_name.clone()));
        claims.filter(|claim| claim.starts_with(ATTACHED)).collect()
    }

    /// One pass of the attach-detach controller.
    pub(super) fn control(&self) {
        let wanted = self.wanted();
        let node = self.node();
        let status = node.status.clone().unwrap_or_default();
        let in_use: BTreeSet<String> = status.volumes_in_use.into_iter().flatten().collect();
        let mut attached = self.machine.state().storage.attached.clone();
        for volume in &wanted {
            if attached.insert(volume.clone()) {
                let name = attachment_name(volume, ATTACHING, "node");
                let attachment = json!({"metadata": {"name": name},
                    "spec": {"attacher": ATTACHING, "nodeName": "node", "source": {}},
                    "status": {"attached": true}});
                let attachment = Arc::new(serde_json::from_value(attachment).unwrap());
                self.storage.attachments.lock().unwrap().insert(name, attachment);
                self.note("attached", volume);
            }
        }
        let detached: Vec<String> = (attached.iter())
            .filter(|volume| !wanted.contains(*volume) && !in_use.contains(&unique(volume)))
            .cloned()
            .collect();
        for volume in &detached {
            let mut state = self.machine.state();
            let published = state.storage.published.values().any(|v| v == volume);
            if published || state.storage.staged.contains_key(volume) {
                state.wrong(format!("{volume} detached while it is in use"));
            }
            drop(state);
            self.note("detached", volume);
            attached.remove(volume);
            let name = attachment_name(volume, ATTACHING, "node");
            self.storage.attachments.lock().unwrap().remove(&name);
        }
        self.change_node(|node| {
            let listed = attached
                .iter()
                .map(|volume| AttachedVolume { name: unique(volume), device_path: String::new() });
            node.status.get_or_insert_default().volumes_attached = Some(listed.collect());
        });
        self.machine.state().storage.attached = attached;
    }

    fn note(&self, what: &str, volume: &str) {
        self.machine.state().note(what, std::path::Path::new(volume));
    }

    /// The user requests a larger claim, and the controller has expanded the volume.
    pub(super) fn grow(&self, claim: &str) {
        let size = json!({"storage": GROWN});
        let mut volumes = self.objects.volumes.lock().unwrap();
        let volume = volumes.get_mut(&format!("pv-{claim}")).unwrap();
        let mut grown = (**volume).clone();
        grown.spec.get_or_insert_default().capacity =
            Some(serde_json::from_value(size.clone()).unwrap());
        *volume = Arc::new(grown);
        let mut claims = self.objects.claims.lock().unwrap();
        let object = claims.get_mut(claim).unwrap();
        let mut grown = (**object).clone();
        // A size that is no longer requested is given up when its expansion fails twice.
        let resources = grown.spec.get_or_insert_default().resources.get_or_insert_default();
        resources.requests = Some(serde_json::from_value(size.clone()).unwrap());
        let status = grown.status.get_or_insert_default();
        status.allocated_resources = Some(serde_json::from_value(size).unwrap());
        let pending = json!({"storage": "NodeResizePending"});
        status.allocated_resource_statuses = Some(serde_json::from_value(pending).unwrap());
        *object = Arc::new(grown);
        drop(claims);
        self.note("grows", claim);
    }

    /// Whether the claim was expanded by the controller.
    pub(super) fn is_growing(&self, claim: &str) -> bool {
        let volumes = self.objects.volumes.lock().unwrap();
        let spec = volumes[&format!("pv-{claim}")].spec.as_ref();
        spec.and_then(|s| s.capacity.as_ref()).is_some_and(|c| c["storage"].0 == GROWN)
    }

    /// Whether the driver and the claim's status both have the new size.
    pub(super) fn has_grown(&self, claim: &str) -> bool {
        let claims = self.objects.claims.lock().unwrap();
        let status = claims[claim].status.as_ref();
        let reported = status.is_some_and(|s| {
            s.capacity.as_ref().is_some_and(|c| c["storage"].0 == GROWN)
                && s.allocated_resource_statuses.as_ref().is_none_or(|m| m.is_empty())
        });
        reported && self.machine.state().storage.sizes.get(claim) == Some(&GROWN_BYTES)
    }
}
