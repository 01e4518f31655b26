//! Which pods there are and what they want, from snapshots and requests.

use super::{Request, VolumesTask};
use crate::metrics::label;
use crate::pool::SHOWN_AFTER;
use crate::published::{PodPublished, Published};
use crate::resolve::Resolved;
use api::core::v1::{Pod, Volume};
use api::ids::{PodUid, VolumeName};
use api::pod::PodExt;
use engine::volumes::{
    Action, DesiredPod, MountState, OpKey, VolumeSpec, Want, label_conflict, widest_mode,
};
use ports::{ObjectChange, ObjectKind, PodLife, VolumeFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// The task's state of one pod.
#[derive(Debug)]
pub(super) struct PodState {
    pub(super) pod: Arc<Pod>,
    pub(super) want: Want,
    /// Its worker asked for its volumes before any snapshot contained the pod.
    pub(super) unseen: bool,
    /// Its worker reported that its containers are gone.
    pub(super) released: bool,
    /// Its worker asked for its volumes.
    pub(super) asked: bool,
    /// When this state was created.
    pub(super) since: Instant,
    /// Its volumes must be resolved again.
    pub(super) dirty: bool,
    pub(super) resolving: bool,
    pub(super) again_at: Option<Instant>,
    /// The number of resolves started, and the number up to which they have finished.
    pub(super) started: u64,
    pub(super) finished: u64,
    pub(super) errors: BTreeSet<String>,
}

impl PodState {
    fn new(pod: Arc<Pod>, want: Want) -> Self {
        Self {
            pod,
            want,
            unseen: false,
            released: false,
            asked: false,
            since: Instant::now(),
            dirty: true,
            resolving: false,
            again_at: None,
            started: 0,
            finished: 0,
            errors: BTreeSet::new(),
        }
    }
}

impl VolumesTask {
    /// Reads the latest pods snapshot.
    pub(super) fn read_pods(&mut self) {
        let snapshot = self.pods.borrow_and_update().clone();
        self.sources_ready = snapshot.sources_ready;
        self.recount = true;
        let mut refresh = Vec::new();
        for (uid, entry) in snapshot.pods.iter() {
            let pod_state = self.pod_states.get_mut(uid);
            let asked = pod_state.as_ref().is_some_and(|b| b.asked);
            let want = match entry.life {
                PodLife::Syncing => Some(Want::Mount),
                PodLife::Pending if asked => Some(Want::Mount),
                PodLife::Pending | PodLife::Terminating => Some(Want::Keep),
                PodLife::Rejected | PodLife::Terminated | PodLife::Finished => None,
            };
            match (pod_state, want) {
                (Some(pod_state), Some(want)) => {
                    pod_state.unseen = false;
                    if !Arc::ptr_eq(&pod_state.pod, &entry.pod) {
                        let changed = pod_state.pod.metadata != entry.pod.metadata
                            || pod_state.pod.spec != entry.pod.spec;
                        pod_state.pod = Arc::clone(&entry.pod);
                        if changed {
                            pod_state.dirty = true;
                            refresh.push(uid.clone());
                        }
                    }
                    if !pod_state.released {
                        pod_state.want = want;
                    }
                }
                (None, Some(want)) => {
                    self.pod_states
                        .insert(uid.clone(), PodState::new(Arc::clone(&entry.pod), want));
                }
                (Some(_), None) => self.drop_pod(uid),
                (None, None) => {}
            }
            self.apply_want(uid);
        }
        for uid in refresh {
            self.refresh(&uid);
        }
        let gone: Vec<PodUid> = self
            .pod_states
            .iter()
            .filter(|(uid, pod_state)| !pod_state.unseen && !snapshot.pods.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.drop_pod(&uid);
        }
        self.requested_at.retain(|(uid, _), _| self.desired.pods.contains_key(uid));
        self.forget_failures();
    }

    /// Schedules a remount of those of the pod's volumes that change while it runs.
    fn refresh(&mut self, uid: &PodUid) {
        let wanted = self.desired.pods.get(uid);
        self.actual.request_remount(uid, |name, spec| {
            spec.plugin.is_content()
                || wanted.and_then(|p| p.volumes.get(name)).is_some_and(|v| v.refresh)
        });
    }

    fn drop_pod(&mut self, uid: &PodUid) {
        self.pod_states.remove(uid);
        self.desired.pods.remove(uid);
    }

    /// Writes what a pod wants into the desired state.
    fn apply_want(&mut self, uid: &PodUid) {
        let Some(pod_state) = self.pod_states.get(uid) else { return };
        if pod_state.released {
            self.desired.pods.remove(uid);
            return;
        }
        let entry = self.desired.pods.entry(uid.clone()).or_insert_with(|| DesiredPod {
            want: pod_state.want,
            resolved: false,
            volumes: BTreeMap::new(),
        });
        entry.want = pod_state.want;
    }

    /// Handles a request from the handle.
    pub(super) fn answer(&mut self, request: Request) {
        self.recount = true;
        match request {
            Request::Ready { pod, reply } => {
                let uid = pod.uid();
                let snapshot_has_it = self.pods.borrow().pods.contains_key(&uid);
                let pod_state = self
                    .pod_states
                    .entry(uid.clone())
                    .or_insert_with(|| PodState::new(Arc::clone(&pod), Want::Mount));
                pod_state.unseen |= !snapshot_has_it;
                pod_state.pod = pod;
                pod_state.released = false;
                pod_state.asked = true;
                pod_state.want = Want::Mount;
                pod_state.dirty = true;
                let after = pod_state.started + 1;
                self.refresh(&uid);
                self.apply_want(&uid);
                self.waiters.push(super::ReadyWaiter { uid, after, reply });
            }
            Request::Released { pod, reply } => {
                let uid = pod.uid();
                if let Some(pod_state) = self.pod_states.get_mut(&uid) {
                    pod_state.released = true;
                    pod_state.unseen = false;
                }
                self.desired.pods.remove(&uid);
                self.release_waiters.push((uid, reply));
            }
            Request::Mounted { uid, reply } => {
                let mut mounted = Vec::new();
                let wanted = self.desired.pods.get(&uid);
                for (unique, volume) in wanted.iter().flat_map(|p| &p.volumes) {
                    if self.is_mounted(unique, &uid) {
                        let named = volume.names.iter().cloned();
                        mounted.extend(named.map(|n| (n, Arc::clone(&volume.spec))));
                    }
                }
                // The asker may have gone away.
                drop(reply.send(mounted));
            }
            Request::Describe { pod, reply } => {
                let state = self.describe(&pod.uid());
                // The asker may have gone away.
                drop(reply.send(state));
            }
            Request::Explain { reply } => {
                let story = super::VolumeStory { waits: self.waits(), hung: self.quarantined() };
                // The asker may have gone away.
                drop(reply.send(story));
            }
        }
    }

    /// Records the result of resolving a pod's volumes.
    pub(super) fn finish_resolve(&mut self, uid: PodUid, mut resolved: Resolved) {
        self.refuse_labels(&uid, &mut resolved);
        let Some(pod_state) = self.pod_states.get_mut(&uid) else { return };
        pod_state.resolving = false;
        pod_state.finished = pod_state.started;
        pod_state.errors = resolved.errors;
        let complete = pod_state.errors.is_empty();
        if !complete {
            pod_state.again_at = Some(Instant::now() + super::RESOLVE_AGAIN);
        }
        if pod_state.released {
            return;
        }
        let want = pod_state.want;
        let entry = self.desired.pods.entry(uid.clone()).or_insert_with(|| DesiredPod {
            want,
            resolved: false,
            volumes: BTreeMap::new(),
        });
        entry.resolved = complete;
        let now = Instant::now();
        for (name, volume) in &resolved.volumes {
            let at = self.requested_at.entry((uid.clone(), name.clone())).or_insert(now);
            // A remount counts from now.
            *at = if volume.refresh { now } else { *at };
        }
        if complete {
            entry.volumes = resolved.volumes;
        } else {
            entry.volumes.extend(resolved.volumes);
        }
        self.read_node();
    }

    /// When the volume of a mount action was requested; now for other actions.
    pub(super) fn requested_since(&self, action: &Action) -> Instant {
        let Action::Mount { volume, pod } = action else { return Instant::now() };
        let known = self.requested_at.get(&(pod.clone(), volume.clone())).copied();
        known.unwrap_or_else(Instant::now)
    }

    /// Removes volumes that another pod has mounted with another SELinux label, where that is an error.
    fn refuse_labels(&self, uid: &PodUid, resolved: &mut Resolved) {
        let Some(labelling) = &self.env.config.labelling else { return };
        let own = self.desired.pods.get(uid);
        let metrics = &self.env.metrics;
        resolved.volumes.retain(|name, volume| {
            if own.is_some_and(|pod| pod.volumes.contains_key(name)) {
                return true;
            }
            let plugin = label(&volume.spec).replacen(':', "/", 1);
            let labels = [plugin.as_str(), widest_mode(&volume.spec)];
            let Some(held) = self.desired.pods.values().find_map(|p| p.volumes.get(name)) else {
                if !volume.label.wanted.is_empty() {
                    metrics.labelled.with(&labels).add(1.0);
                }
                return true;
            };
            let Some(conflict) = label_conflict(held, volume) else { return true };
            if !labelling.covers(&volume.spec) {
                metrics.labels_would_conflict.with(&labels).add(1.0);
                return true;
            }
            metrics.labels_conflict.with(&labels).add(1.0);
            resolved.errors.insert(conflict);
            false
        });
    }

    /// A config map or secret changed (`None`: any of them may have).
    pub(super) fn object_changed(&mut self, change: Option<ObjectChange>) {
        let mut affected = Vec::new();
        for (uid, pod_state) in &self.pod_states {
            let namespace = pod_state.pod.namespace_str();
            if change.as_ref().is_some_and(|c| c.namespace != namespace) {
                continue;
            }
            affected.push(uid.clone());
        }
        for uid in affected {
            let concerns = |spec: &VolumeSpec| {
                spec.plugin.is_content()
                    && change
                        .as_ref()
                        .is_none_or(|c| spec.as_inline().is_none_or(|volume| refers_to(volume, c)))
            };
            self.actual.request_remount(&uid, |_, spec| concerns(spec));
            // A mount in back-off because the object was missing is retried at once.
            let Some(pod) = self.desired.pods.get(&uid) else { continue };
            for (name, volume) in &pod.volumes {
                if concerns(&volume.spec) {
                    self.backoffs.succeeded(&OpKey::Pod(name.clone(), uid.clone()));
                }
            }
        }
    }

    /// A certificate was issued or refused.
    pub(super) fn certificates_changed(&mut self) {
        let concerns = |spec: &VolumeSpec| {
            let projected = spec.as_inline().and_then(|volume| volume.projected.as_ref());
            projected
                .is_some_and(|p| p.sources.iter().flatten().any(|s| s.pod_certificate.is_some()))
        };
        for (uid, pod) in &self.desired.pods {
            for (name, _) in pod.volumes.iter().filter(|(_, v)| concerns(&v.spec)) {
                self.actual.request_remount(uid, |mounted, _| mounted == name);
                self.backoffs.succeeded(&OpKey::Pod(name.clone(), uid.clone()));
            }
        }
    }

    /// Reads from the node's status which volumes the controller has attached.
    pub(super) fn read_node(&mut self) {
        let view = self.env.node.borrow().clone();
        let Some(status) = view.node.as_ref().and_then(|n| n.status.as_ref()) else { return };
        // Only volumes that the status also reports in use: the controller may detach others at any time.
        let in_use: BTreeSet<&str> =
            status.volumes_in_use.iter().flatten().map(String::as_str).collect();
        self.reported_attached = status
            .volumes_attached
            .iter()
            .flatten()
            .filter(|v| in_use.contains(v.name.as_str()))
            .map(|v| VolumeName::from(v.name.as_str()))
            .collect();
    }

    /// Records which of the volumes found on disk the node object reports as attached.
    pub(super) fn finish_node_check(&mut self, attached: Option<BTreeMap<VolumeName, String>>) {
        let Some(attached) = attached else {
            self.node_at = Some(Instant::now() + super::RESOLVE_AGAIN);
            return;
        };
        for (name, device) in attached {
            if let Some(volume) = self.actual.volumes.get_mut(&name) {
                volume.attachable = true;
                volume.attached = true;
                volume.device_path = device;
            }
        }
        self.found_checked = true;
    }

    /// Publishes the new state.
    pub(super) fn publish(&mut self) {
        let quarantined = self.quarantined();
        let known = self.publisher.borrow().facts.quarantined.clone();
        if !std::mem::take(&mut self.recount) && quarantined == known {
            return;
        }
        let mut pods: BTreeMap<PodUid, PodPublished> = BTreeMap::new();
        for volume in self.actual.volumes.values() {
            for uid in volume.pods.keys() {
                pods.entry(uid.clone()).or_default().mounted = true;
            }
        }
        for (uid, pod) in &self.desired.pods {
            for volume in pod.volumes.values() {
                let entry = pods.entry(uid.clone()).or_default();
                for name in &volume.names {
                    entry.spec_names.insert(name.clone(), volume.spec.name.clone());
                }
            }
        }
        let facts = VolumeFacts {
            in_use: self.found_checked.then(|| self.actual.in_use(&self.desired)),
            not_ready: self.storage_fault(),
            quarantined,
        };
        self.count(facts.quarantined.len());
        self.publisher.send_if_modified(|old| {
            let changed = !old.ready || old.pods != pods || *old.facts != facts;
            if changed {
                *old = Published { ready: true, pods, facts: Arc::new(facts) };
            }
            changed
        });
    }

    /// Calls that hang: into the kernel, and to drivers that do not answer.
    pub(super) fn quarantined(&self) -> Vec<String> {
        let mut all = self.env.pool.quarantined();
        for (key, step) in &self.steps {
            let (what, since) = step.read();
            let known = all.iter().any(|line| line.contains(&format!(" of {} ", key.volume())));
            if since >= SHOWN_AFTER && what.contains("of driver ") && !known {
                all.push(format!("{what} of {} for {}s", key.volume(), since.as_secs()));
            }
        }
        all
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of volumes are small")]
    fn count(&self, quarantined: usize) {
        let gauge = &self.env.metrics.volumes;
        gauge.clear();
        let mut totals: BTreeMap<(String, &str), f64> = BTreeMap::new();
        for spec in self.desired.pods.values().flat_map(|p| p.volumes.values()).map(|v| &v.spec) {
            *totals.entry((label(spec), "desired_state_of_world")).or_default() += 1.0;
        }
        for volume in self.actual.volumes.values() {
            let pods = volume.pods.len() as f64;
            *totals.entry((label(&volume.spec), "actual_state_of_world")).or_default() += pods;
        }
        for ((plugin, state), total) in totals {
            gauge.set(&[&plugin, state], total);
        }
        self.env.metrics.quarantined.set(&[], quarantined as f64);
    }

    fn storage_fault(&self) -> Option<String> {
        let ready = self.env.storage.is_none() || *self.env.csi_ready.borrow();
        (!ready).then(|| "CSINode is not yet initialized".to_owned())
    }

    /// Whether the pod's mount of a volume is known to be there.
    pub(super) fn is_mounted(&self, volume: &VolumeName, uid: &PodUid) -> bool {
        self.actual.mount(volume, uid).is_some_and(|m| m.state == MountState::Mounted)
    }
}

/// Whether the volume has content from the object.
fn refers_to(volume: &Volume, change: &ObjectChange) -> bool {
    let name = change.name.as_str();
    let sources = || volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    match change.kind {
        ObjectKind::ConfigMap => {
            volume.config_map.as_ref().is_some_and(|c| c.name == name)
                || sources().any(|s| s.config_map.as_ref().is_some_and(|c| c.name == name))
        }
        ObjectKind::Secret => {
            let own = volume.secret.as_ref().and_then(|s| s.secret_name.as_deref());
            own == Some(name)
                || sources().any(|s| s.secret.as_ref().is_some_and(|c| c.name == name))
        }
    }
}
