//! Which pods there are and what they want, from snapshots and requests.

use super::{Request, VolumesTask};
use crate::metrics::label;
use crate::pool::SHOWN_AFTER;
use crate::published::{PodPublished, Published};
use crate::resolve::Resolved;
use api::core::v1::{Pod, Volume};
use api::ids::{PodUid, VolumeName};
use engine::volumes::{
    Action, DesiredPod, MountState, OpKey, VolumeSpec, Want, label_conflict, widest_mode,
};
use ports::{ObjectChange, ObjectKind, PodLife, VolumeFacts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// One pod's page.
#[derive(Debug)]
pub(super) struct PodBook {
    pub(super) pod: Arc<Pod>,
    pub(super) want: Want,
    /// Its worker asked for it although no snapshot has shown it yet.
    pub(super) unseen: bool,
    /// Its worker said that its containers are gone.
    pub(super) released: bool,
    /// Its worker asked for its volumes.
    pub(super) asked: bool,
    /// When its page was begun.
    pub(super) since: Instant,
    /// It must be looked at.
    pub(super) dirty: bool,
    pub(super) resolving: bool,
    pub(super) again_at: Option<Instant>,
    /// How many looks were begun and ended.
    pub(super) started: u64,
    pub(super) finished: u64,
    pub(super) errors: BTreeSet<String>,
}

impl PodBook {
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

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

impl VolumesTask {
    /// Takes over a new snapshot.
    pub(super) fn read_pods(&mut self) {
        let snapshot = self.pods.borrow_and_update().clone();
        self.sources_ready = snapshot.sources_ready;
        self.recount = true;
        let mut refresh = Vec::new();
        for (uid, entry) in snapshot.pods.iter() {
            let book = self.books.get_mut(uid);
            let asked = book.as_ref().is_some_and(|b| b.asked);
            let want = match entry.life {
                PodLife::Syncing => Some(Want::Mount),
                PodLife::Pending if asked => Some(Want::Mount),
                PodLife::Pending | PodLife::Terminating => Some(Want::Keep),
                PodLife::Rejected | PodLife::Terminated | PodLife::Finished => None,
            };
            match (book, want) {
                (Some(book), Some(want)) => {
                    book.unseen = false;
                    if !Arc::ptr_eq(&book.pod, &entry.pod) {
                        let changed = book.pod.metadata != entry.pod.metadata
                            || book.pod.spec != entry.pod.spec;
                        book.pod = Arc::clone(&entry.pod);
                        if changed {
                            book.dirty = true;
                            refresh.push(uid.clone());
                        }
                    }
                    if !book.released {
                        book.want = want;
                    }
                }
                (None, Some(want)) => {
                    self.books.insert(uid.clone(), PodBook::new(Arc::clone(&entry.pod), want));
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
            .books
            .iter()
            .filter(|(uid, book)| !book.unseen && !snapshot.pods.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.drop_pod(&uid);
        }
        self.wishes.retain(|(uid, _), _| self.desired.pods.contains_key(uid));
        self.forget_failures();
    }

    /// Has another look at those of the pod's volumes that change while it runs.
    fn refresh(&mut self, uid: &PodUid) {
        let wanted = self.desired.pods.get(uid);
        self.actual.request_remount(uid, |name, spec| {
            spec.plugin.is_content()
                || wanted.and_then(|p| p.volumes.get(name)).is_some_and(|v| v.refresh)
        });
    }

    fn drop_pod(&mut self, uid: &PodUid) {
        self.books.remove(uid);
        self.desired.pods.remove(uid);
    }

    /// Writes a pod's wish into the desired world.
    fn apply_want(&mut self, uid: &PodUid) {
        let Some(book) = self.books.get(uid) else { return };
        if book.released {
            self.desired.pods.remove(uid);
            return;
        }
        let entry = self.desired.pods.entry(uid.clone()).or_insert_with(|| DesiredPod {
            want: book.want,
            resolved: false,
            volumes: BTreeMap::new(),
        });
        entry.want = book.want;
    }

    /// Takes a request of the handle.
    pub(super) fn answer(&mut self, request: Request) {
        self.recount = true;
        match request {
            Request::Ready { pod, reply } => {
                let uid = uid_of(&pod);
                let snapshot_has_it = self.pods.borrow().pods.contains_key(&uid);
                let book = self
                    .books
                    .entry(uid.clone())
                    .or_insert_with(|| PodBook::new(Arc::clone(&pod), Want::Mount));
                book.unseen |= !snapshot_has_it;
                book.pod = pod;
                book.released = false;
                book.asked = true;
                book.want = Want::Mount;
                book.dirty = true;
                let after = book.started + 1;
                self.refresh(&uid);
                self.apply_want(&uid);
                self.waiters.push(super::ReadyWaiter { uid, after, reply });
            }
            Request::Released { pod, reply } => {
                let uid = uid_of(&pod);
                if let Some(book) = self.books.get_mut(&uid) {
                    book.released = true;
                    book.unseen = false;
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
                let state = self.describe(&uid_of(&pod));
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

    /// A look at a pod's volumes ended.
    pub(super) fn book_resolved(&mut self, uid: PodUid, mut resolved: Resolved) {
        self.refuse_labels(&uid, &mut resolved);
        let Some(book) = self.books.get_mut(&uid) else { return };
        book.resolving = false;
        book.finished = book.started;
        book.errors = resolved.errors;
        let complete = book.errors.is_empty();
        if !complete {
            book.again_at = Some(Instant::now() + super::RESOLVE_AGAIN);
        }
        if book.released {
            return;
        }
        let want = book.want;
        let entry = self.desired.pods.entry(uid.clone()).or_insert_with(|| DesiredPod {
            want,
            resolved: false,
            volumes: BTreeMap::new(),
        });
        entry.resolved = complete;
        let now = Instant::now();
        for (name, volume) in &resolved.volumes {
            let at = self.wishes.entry((uid.clone(), name.clone())).or_insert(now);
            // What is looked at again is wished for anew.
            *at = if volume.refresh { now } else { *at };
        }
        if complete {
            entry.volumes = resolved.volumes;
        } else {
            entry.volumes.extend(resolved.volumes);
        }
        self.read_node();
    }

    /// Since when the mounted volume was wished for.
    pub(super) fn wished_at(&self, action: &Action) -> Instant {
        let Action::Mount { volume, pod } = action else { return Instant::now() };
        let known = self.wishes.get(&(pod.clone(), volume.clone())).copied();
        known.unwrap_or_else(Instant::now)
    }

    /// Takes out volumes that another pod has under another SELinux label, where that is an error.
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
        for (uid, book) in &self.books {
            let namespace = book.pod.metadata.namespace.as_deref().unwrap_or_default();
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
            // A mount that waits because the object was missing need not wait on.
            let Some(pod) = self.desired.pods.get(&uid) else { continue };
            for (name, volume) in &pod.volumes {
                if concerns(&volume.spec) {
                    self.backoffs.succeeded(&OpKey::Pod(name.clone(), uid.clone()));
                }
            }
        }
    }

    /// A certificate came, or was refused.
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

    /// Which volumes the controller says are attached here.
    pub(super) fn read_node(&mut self) {
        let view = self.env.node.borrow().clone();
        let Some(status) = view.node.as_ref().and_then(|n| n.status.as_ref()) else { return };
        // Only what the node also reports in use: else the controller might detach it meanwhile.
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

    /// The node object was read for volumes found on disk.
    pub(super) fn book_attached(&mut self, attached: Option<BTreeMap<VolumeName, String>>) {
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

    /// Shows the new state to everybody.
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

    /// Everything that does not come back: calls into the kernel, and drivers that do not answer.
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

/// Whether the volume shows the object.
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
