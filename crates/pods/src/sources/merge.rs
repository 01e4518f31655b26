//! From complete sets to changes, per source.
//!
//! Promises: changes of one delivery come in the order remove, add, update, delete, reconcile; a
//! pod that differs only in what we wrote ourselves (where it came from, when it was seen) is not a
//! change.

use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::{MIRROR_ANNOTATION, PodExt, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ports::PodSource;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One change of what should run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// It is not wanted any more.
    Remove(Arc<Pod>),
    /// It is new.
    Add(Arc<Pod>),
    /// Its spec, labels or annotations changed.
    Update(Arc<Pod>),
    /// It is to be deleted gracefully.
    Delete(Arc<Pod>),
    /// Only its status changed.
    Reconcile(Arc<Pod>),
}

/// What one delivery means.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Merged {
    /// Changes in the order they must be handled.
    pub(crate) changes: Vec<Change>,
    /// Pods dropped because another one of the same delivery has their name.
    pub(crate) duplicates: Vec<Arc<Pod>>,
}

/// The last set of every source.
#[derive(Debug, Default)]
pub(crate) struct MergeState {
    pods: BTreeMap<PodSource, BTreeMap<PodUid, Known>>,
}

/// One pod of a set.
#[derive(Debug, Clone)]
struct Known {
    /// As it was delivered: the same one again is no change, without a look inside.
    given: Arc<Pod>,
    /// With our annotations.
    marked: Arc<Pod>,
}

impl MergeState {
    /// Whether the source has delivered.
    pub(crate) fn has_delivered(&self, source: PodSource) -> bool {
        self.pods.contains_key(&source)
    }

    /// Takes in the complete set of one source.
    pub(crate) fn merge(
        &mut self,
        source: PodSource,
        set: Vec<Arc<Pod>>,
        now: Timestamp,
    ) -> Merged {
        let mut merged = Merged::default();
        let known = self.pods.entry(source).or_default();
        let mut names = BTreeSet::new();
        let mut next = BTreeMap::new();
        let (mut adds, mut updates, mut deletes, mut reconciles) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for pod in &set {
            if !names.insert((&pod.metadata.namespace, &pod.metadata.name)) {
                merged.duplicates.push(Arc::clone(pod));
                continue;
            }
            let uid = pod.uid();
            let given = Arc::clone(pod);
            let Some(old) = known.get(&uid) else {
                let marked = Arc::new(marked(pod, source, &seen_text(now, TimeZone::system())));
                adds.push(Change::Add(Arc::clone(&marked)));
                next.insert(uid, Known { given, marked });
                continue;
            };
            if Arc::ptr_eq(&old.given, pod) {
                next.insert(uid, old.clone());
                continue;
            }
            let seen = old.marked.annotation(SEEN_ANNOTATION).unwrap_or_default();
            let marked = if !same_wish(&old.marked, pod) {
                let pod = Arc::new(marked(pod, source, seen));
                let deleting = pod.metadata.deletion_timestamp.is_some();
                let change = if deleting { Change::Delete } else { Change::Update };
                let list = if deleting { &mut deletes } else { &mut updates };
                list.push(change(Arc::clone(&pod)));
                pod
            } else if old.marked.status != pod.status {
                let pod = Arc::new(marked(pod, source, seen));
                reconciles.push(Change::Reconcile(Arc::clone(&pod)));
                pod
            } else {
                Arc::clone(&old.marked)
            };
            next.insert(uid, Known { given, marked });
        }
        let removes = known.iter().filter(|(uid, _)| !next.contains_key(*uid));
        merged.changes.extend(removes.map(|(_, pod)| Change::Remove(Arc::clone(&pod.marked))));
        for list in [adds, updates, deletes, reconciles] {
            merged.changes.extend(list);
        }
        *known = next;
        merged
    }
}

/// `config.seen` in Go's `RFC3339Nano` with all nine digits, by the node's own clock.
fn seen_text(now: Timestamp, zone: TimeZone) -> String {
    let local = now.to_zoned(zone);
    if local.offset().is_zero() {
        return format!("{now:.9}");
    }
    local.strftime("%Y-%m-%dT%H:%M:%S%.9f%:z").to_string()
}

fn marked(pod: &Pod, source: PodSource, seen: &str) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.managed_fields = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.to_owned(), source.as_str().to_owned());
    annotations.insert(SEEN_ANNOTATION.to_owned(), seen.to_owned());
    pod
}

fn same_wish(a: &Pod, b: &Pod) -> bool {
    a.spec == b.spec
        && a.metadata.labels.iter().flatten().eq(b.metadata.labels.iter().flatten())
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.metadata.deletion_grace_period_seconds == b.metadata.deletion_grace_period_seconds
        && foreign_annotations(a).eq(foreign_annotations(b))
}

fn foreign_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let local = [SOURCE_ANNOTATION, SEEN_ANNOTATION, MIRROR_ANNOTATION];
    pod.metadata.annotations.iter().flatten().filter(move |(key, _)| !local.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        pod.spec = Some(api::core::v1::PodSpec::default());
        pod
    }

    fn kinds(merged: &Merged) -> Vec<(&'static str, String)> {
        merged
            .changes
            .iter()
            .map(|change| {
                let (kind, pod) = match change {
                    Change::Remove(p) => ("remove", p),
                    Change::Add(p) => ("add", p),
                    Change::Update(p) => ("update", p),
                    Change::Delete(p) => ("delete", p),
                    Change::Reconcile(p) => ("reconcile", p),
                };
                (kind, pod.metadata.uid.clone().unwrap_or_default())
            })
            .collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn removals_come_before_additions_and_updates() {
        let mut state = MergeState::default();
        let first = vec![Arc::new(pod("1", "a")), Arc::new(pod("2", "b"))];
        state.merge(PodSource::Api, first, at(0));
        let mut changed = pod("2", "b");
        changed.metadata.labels = Some([("x".to_owned(), "y".to_owned())].into());
        let second = vec![Arc::new(changed), Arc::new(pod("3", "a"))];
        let merged = state.merge(PodSource::Api, second, at(1));
        let expected = [("remove", "1"), ("add", "3"), ("update", "2")];
        assert_eq!(kinds(&merged), expected.map(|(k, u)| (k, u.to_owned())));
    }

    #[test]
    fn the_seen_time_is_that_of_the_nodes_clock() {
        let zone = TimeZone::fixed(jiff::tz::offset(-3));
        assert_eq!(seen_text(at(0), TimeZone::UTC), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(seen_text(at(0), zone), "1969-12-31T21:00:00.000000000-03:00");
    }

    #[test]
    fn a_status_change_is_a_reconcile_and_the_seen_time_is_kept() {
        let mut state = MergeState::default();
        state.merge(PodSource::Api, vec![Arc::new(pod("1", "a"))], at(0));
        let mut changed = pod("1", "a");
        changed.status =
            Some(api::core::v1::PodStatus { phase: Some("Running".into()), ..Default::default() });
        let merged = state.merge(PodSource::Api, vec![Arc::new(changed.clone())], at(9));
        assert_eq!(kinds(&merged), [("reconcile", "1".to_owned())]);
        let Change::Reconcile(pod) = &merged.changes[0] else { panic!() };
        let first = seen_text(at(0), TimeZone::system());
        assert_eq!(pod.annotation(SEEN_ANNOTATION), Some(first.as_str()));
        let again = state.merge(PodSource::Api, vec![Arc::new(changed)], at(10));
        assert_eq!(again, Merged::default());
    }

    #[test]
    fn a_deletion_timestamp_is_a_delete() {
        let mut state = MergeState::default();
        state.merge(PodSource::Api, vec![Arc::new(pod("1", "a"))], at(0));
        let mut deleted = pod("1", "a");
        deleted.metadata.deletion_timestamp = Some(api::machinery::apis::meta::v1::Time(at(5)));
        let merged = state.merge(PodSource::Api, vec![Arc::new(deleted)], at(5));
        assert_eq!(kinds(&merged), [("delete", "1".to_owned())]);
    }

    #[test]
    fn the_source_annotation_of_the_object_is_not_believed() {
        let mut state = MergeState::default();
        let mut lying = pod("1", "a");
        lying.metadata.annotations =
            Some([(SOURCE_ANNOTATION.to_owned(), "file".to_owned())].into());
        let merged = state.merge(PodSource::Api, vec![Arc::new(lying)], at(0));
        let Change::Add(pod) = &merged.changes[0] else { panic!() };
        assert_eq!(pod.annotation(SOURCE_ANNOTATION), Some("api"));
    }

    #[test]
    fn the_second_pod_of_a_name_is_dropped() {
        let mut state = MergeState::default();
        let set = vec![Arc::new(pod("1", "a")), Arc::new(pod("2", "a"))];
        let merged = state.merge(PodSource::Http, set, at(0));
        assert_eq!(kinds(&merged), [("add", "1".to_owned())]);
        assert_eq!(merged.duplicates.len(), 1);
    }
}
