//! Pods as the runtime lists them: those with a ready sandbox or a running container (kubelet:
//! `kubeGenericRuntimeManager.GetPods`).
//!
//! Streams look up their container here by the pod's name, as upstream does: while a replaced pod
//! is still terminating and its successor of the same name has no sandbox yet, this is the old pod.

use crate::serve::ServerDeps;
use api::core::v1::Pod;
use cri::CriError;
use cri::api::{
    Container, ContainerFilter, ContainerState, ContainerStateValue, PodSandbox, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

const NAME: &str = "io.kubernetes.pod.name";
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const UID: &str = "io.kubernetes.pod.uid";

/// A pod with a sandbox or a container in the runtime.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RuntimePod {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) namespace: String,
    /// When its first ready sandbox was created; 0 without one.
    created: i64,
    /// Running containers, the newest first.
    pub(super) containers: Vec<Container>,
}

impl RuntimePod {
    /// The ID of the running container with this name.
    pub(super) fn container(&self, name: &str) -> Option<&str> {
        let named = |c: &&Container| c.metadata.as_ref().is_some_and(|meta| meta.name == name);
        self.containers.iter().find(named).map(|c| c.id.as_str())
    }
}

/// All pods, the newest first.
pub(super) async fn all(deps: &ServerDeps) -> Result<Vec<RuntimePod>, CriError> {
    list(deps, BTreeMap::new()).await
}

/// The newest pod with the name of this pod.
pub(super) async fn named(deps: &ServerDeps, pod: &Pod) -> Result<Option<RuntimePod>, CriError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let labels = [(NAME, text(&pod.metadata.name)), (NAMESPACE, text(&pod.metadata.namespace))];
    let labels = labels.map(|(label, value)| (label.to_owned(), value)).into();
    Ok(list(deps, labels).await?.into_iter().next())
}

/// The newest sandbox of a pod, in any state.
pub(super) async fn sandbox(deps: &ServerDeps, uid: &str) -> Result<Option<String>, CriError> {
    let filter = PodSandboxFilter {
        label_selector: BTreeMap::from([(UID.to_owned(), uid.to_owned())]),
        ..PodSandboxFilter::default()
    };
    let mut sandboxes = deps.runtime.list_pod_sandbox(Some(filter)).await?;
    newest_first(&mut sandboxes);
    Ok(sandboxes.into_iter().next().map(|sandbox| sandbox.id))
}

async fn list(
    deps: &ServerDeps,
    labels: BTreeMap<String, String>,
) -> Result<Vec<RuntimePod>, CriError> {
    let ready = PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() };
    let sandboxes = PodSandboxFilter {
        state: Some(ready),
        label_selector: labels.clone(),
        ..PodSandboxFilter::default()
    };
    let running = ContainerStateValue { state: ContainerState::ContainerRunning.into() };
    let containers = ContainerFilter {
        state: Some(running),
        label_selector: labels,
        ..ContainerFilter::default()
    };
    let (sandboxes, containers) = tokio::try_join!(
        deps.runtime.list_pod_sandbox(Some(sandboxes)),
        deps.runtime.list_containers(Some(containers)),
    )?;
    Ok(grouped(sandboxes, containers))
}

fn newest_first(sandboxes: &mut [PodSandbox]) {
    sandboxes.sort_by(|a, b| {
        let attempt = |s: &PodSandbox| s.metadata.as_ref().map(|meta| meta.attempt);
        let by_attempt = attempt(b).zip(attempt(a)).map(|(b, a)| b.cmp(&a));
        let by_time = || b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id));
        by_attempt.unwrap_or(std::cmp::Ordering::Equal).then_with(by_time)
    });
}

fn grouped(mut sandboxes: Vec<PodSandbox>, mut containers: Vec<Container>) -> Vec<RuntimePod> {
    newest_first(&mut sandboxes);
    containers.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
    let mut pods: Vec<RuntimePod> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(meta) = sandbox.metadata else { continue };
        let place = *places.entry(meta.uid.clone()).or_insert(pods.len());
        if place == pods.len() {
            let (uid, name, namespace) = (meta.uid, meta.name, meta.namespace);
            pods.push(RuntimePod { uid, name, namespace, ..RuntimePod::default() });
        }
        if let Some(pod) = pods.get_mut(place) {
            pod.created = sandbox.created_at;
        }
    }
    for container in containers.into_iter().filter(|c| c.metadata.is_some()) {
        let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        let uid = label(UID);
        let place = *places.entry(uid.clone()).or_insert(pods.len());
        if place == pods.len() {
            let (name, namespace) = (label(NAME), label(NAMESPACE));
            pods.push(RuntimePod { uid, name, namespace, ..RuntimePod::default() });
        }
        if let Some(pod) = pods.get_mut(place)
            && container.image.is_some()
        {
            pod.containers.push(container);
        }
    }
    pods.sort_by_key(|pod| Reverse(pod.created));
    pods
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::api::{ContainerMetadata, ImageSpec, PodSandboxMetadata};

    fn sandbox(id: &str, (uid, attempt): (&str, u32), created_at: i64) -> PodSandbox {
        let (name, namespace) = ("p".to_owned(), "ns".to_owned());
        PodSandbox {
            id: id.to_owned(),
            metadata: Some(PodSandboxMetadata { name, namespace, uid: uid.to_owned(), attempt }),
            created_at,
            ..PodSandbox::default()
        }
    }

    fn container(id: &str, uid: &str, name: &str, created_at: i64) -> Container {
        let labels = [(UID, uid), (NAME, "p"), (NAMESPACE, "ns")];
        Container {
            id: id.to_owned(),
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec::default()),
            labels: labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into(),
            created_at,
            ..Container::default()
        }
    }

    #[test]
    fn the_newest_of_two_pods_with_one_name_is_first_once_it_has_a_sandbox() {
        let old = || container("a", "old", "c", 10);
        let only_old = grouped(vec![sandbox("1", ("old", 0), 5)], vec![old()]);
        assert_eq!(only_old[0].container("c"), Some("a"), "the other has nothing yet");
        let both = grouped(
            vec![sandbox("1", ("old", 0), 5), sandbox("2", ("new", 0), 20)],
            vec![old(), container("b", "new", "d", 30)],
        );
        let uids: Vec<&str> = both.iter().map(|pod| pod.uid.as_str()).collect();
        assert_eq!(uids, ["new", "old"]);
        assert_eq!((both[0].container("c"), both[0].container("d")), (None, Some("b")));
    }

    #[test]
    fn a_pod_whose_sandbox_is_not_ready_is_there_by_its_containers_and_comes_last() {
        let pods = grouped(
            vec![sandbox("1", ("u", 0), 5)],
            vec![container("a", "other", "c", 10), container("b", "other", "c", 20)],
        );
        assert_eq!((pods[0].uid.as_str(), pods[0].containers.len()), ("u", 0));
        assert_eq!((pods[1].uid.as_str(), pods[1].name.as_str()), ("other", "p"));
        assert_eq!(pods[1].container("c"), Some("b"), "the newest");
    }

    #[test]
    fn of_several_sandboxes_the_last_attempt_is_the_newest() {
        let mut all = [sandbox("1", ("u", 0), 9), sandbox("2", ("u", 1), 5)];
        newest_first(&mut all);
        assert_eq!(all[0].id, "2");
    }
}
