//! Pods that should run, and which mirror pod belongs to which static pod.

use api::core::v1::Pod;
use api::ids::PodUid;
use api::pod::PodExt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The desired pods (`kubelet: podManager`).
#[derive(Debug, Default)]
pub(crate) struct DesiredPods {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    by_name: BTreeMap<String, PodUid>,
    mirrors: BTreeMap<String, Arc<Pod>>,
    /// Whose status the mirror of a name shows: the newest static pod of that name, also after it
    /// was taken out.
    shown: BTreeMap<String, PodUid>,
}

impl DesiredPods {
    /// Adds or replaces a pod or mirror pod.
    pub(crate) fn upsert(&mut self, pod: &Arc<Pod>) {
        let name = pod.full_name();
        if pod.is_mirror() {
            self.mirrors.insert(name, Arc::clone(pod));
        } else {
            if pod.is_static() {
                self.shown.insert(name.clone(), pod.uid());
            }
            self.by_name.insert(name, pod.uid());
            self.pods.insert(pod.uid(), Arc::clone(pod));
        }
    }

    /// Takes a pod or mirror pod out.
    pub(crate) fn remove(&mut self, pod: &Pod) {
        let name = pod.full_name();
        if pod.is_mirror() {
            if self.mirrors.get(&name).is_some_and(|m| m.metadata.uid == pod.metadata.uid) {
                self.mirrors.remove(&name);
                self.forget_shown(&name);
            }
            return;
        }
        let uid = pod.uid();
        if self.by_name.get(&name) == Some(&uid) {
            self.by_name.remove(&name);
        }
        self.pods.remove(&uid);
        self.forget_shown(&name);
    }

    fn forget_shown(&mut self, name: &str) {
        if !self.by_name.contains_key(name) && !self.mirrors.contains_key(name) {
            self.shown.remove(name);
        }
    }

    /// A pod by UID.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.pods.get(uid)
    }

    /// All pods but mirrors.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&PodUid, &Arc<Pod>)> {
        self.pods.iter()
    }

    /// The mirror of a static pod, if the API has one. A pod that another one of its name has
    /// replaced has none: its end must not show as the other's status.
    pub(crate) fn mirror_of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        let name = pod.full_name();
        let shows_this = self.shown.get(&name) == Some(&pod.uid());
        self.mirrors.get(&name).filter(|_| pod.is_static() && shows_this)
    }

    /// The static pod behind a mirror.
    pub(crate) fn static_of(&self, mirror: &Pod) -> Option<&Arc<Pod>> {
        let uid = self.by_name.get(&mirror.full_name())?;
        self.pods.get(uid).filter(|pod| pod.is_static())
    }

    /// How many mirror pods there are.
    pub(crate) fn mirror_count(&self) -> usize {
        self.mirrors.len()
    }

    /// Mirrors whose static pod is not configured any more.
    pub(crate) fn orphaned_mirrors(&self) -> Vec<Arc<Pod>> {
        self.mirrors
            .iter()
            .filter(|(name, _)| !self.by_name.contains_key(*name))
            .map(|(_, mirror)| Arc::clone(mirror))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::pod::{MIRROR_ANNOTATION, SOURCE_ANNOTATION};

    fn pod(uid: &str, annotations: &[(&str, &str)]) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some("etcd-node".to_owned());
        pod.metadata.namespace = Some("kube-system".to_owned());
        pod.metadata.annotations =
            Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        Arc::new(pod)
    }

    #[test]
    fn static_and_mirror_pods_find_each_other_by_name() {
        let fixed = pod("s", &[(SOURCE_ANNOTATION, "file")]);
        let mirror = pod("m", &[(SOURCE_ANNOTATION, "api"), (MIRROR_ANNOTATION, "s")]);
        let mut desired = DesiredPods::default();
        desired.upsert(&mirror);
        assert_eq!(desired.orphaned_mirrors().len(), 1);
        desired.upsert(&fixed);
        assert!(desired.orphaned_mirrors().is_empty());
        assert_eq!(
            desired.mirror_of(&fixed).and_then(|m| m.metadata.uid.clone()),
            Some("m".into())
        );
        assert_eq!(
            desired.static_of(&mirror).and_then(|p| p.metadata.uid.clone()),
            Some("s".into())
        );
        desired.remove(&mirror);
        assert!(desired.mirror_of(&fixed).is_none());
    }

    #[test]
    fn removing_an_old_version_keeps_the_name_of_the_new_one() {
        let old = pod("1", &[(SOURCE_ANNOTATION, "file")]);
        let new = pod("2", &[(SOURCE_ANNOTATION, "file")]);
        let mirror = pod("m", &[(MIRROR_ANNOTATION, "1")]);
        let mut desired = DesiredPods::default();
        desired.upsert(&old);
        desired.upsert(&new);
        desired.remove(&old);
        assert_eq!(
            desired.static_of(&mirror).and_then(|p| p.metadata.uid.clone()),
            Some("2".into())
        );
    }
    #[test]
    fn a_mirror_shows_the_newest_static_pod_of_its_name_and_no_other() {
        let old = pod("1", &[(SOURCE_ANNOTATION, "file")]);
        let new = pod("2", &[(SOURCE_ANNOTATION, "file")]);
        let mirror = pod("m", &[(MIRROR_ANNOTATION, "1")]);
        let mut desired = DesiredPods::default();
        desired.upsert(&old);
        desired.upsert(&mirror);
        desired.remove(&old);
        assert!(desired.mirror_of(&old).is_some(), "its end is still to be shown");
        desired.upsert(&new);
        assert!(desired.mirror_of(&old).is_none());
        assert!(desired.mirror_of(&new).is_some());
        desired.remove(&new);
        desired.remove(&mirror);
        desired.upsert(&mirror);
        assert!(desired.mirror_of(&new).is_none(), "a mirror of unknown origin");
    }
}
